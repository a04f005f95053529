// Command turn runs markdown documents in microVMs. It is a thin shell over the
// libraries: each subcommand has a file of its own, which makes flags into one
// call and prints what comes back.
package main

import "os"

func main() { os.Exit(realMain(nil)) }
