// Command turn runs markdown documents in microVMs. It is a thin shell over the libraries: each
// subcommand has its own file, which converts flags to one call and prints the result.
package main

import "os"

func main() { os.Exit(realMain(nil)) }
