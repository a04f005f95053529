// Turn-agent is the program inside a sandbox: /init of a microVM, and "/init gvisor"
// of a gVisor container. It has no use outside of one, and refuses to run there.
package main

import (
	"os"

	"turnstone.dev/turnstone/internal/guest/machine"
)

func main() {
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString("turn-agent: this is the first process of a sandbox, not a command; use turn\n")
		os.Exit(2)
	}
	if len(os.Args) == 2 && os.Args[1] == "gvisor" { // a microVM's kernel passes on what it does not know
		machine.BootGVisor()
	}
	machine.Boot()
}
