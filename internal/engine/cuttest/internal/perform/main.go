// Command perform performs file operations inside of a sandbox: perform DIR <OPERATIONS >RESULTS.
package main

import (
	"fmt"
	"os"

	"turnstone.dev/turnstone/internal/engine/cuttest/internal/fsops"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: perform DIR <OPERATIONS >RESULTS")
		os.Exit(2)
	}
	if err := fsops.Perform(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "perform:", err)
		os.Exit(1)
	}
}
