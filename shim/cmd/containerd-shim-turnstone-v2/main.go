// Command containerd-shim-turnstone-v2 runs the pods of a RuntimeClass in sandboxes. containerd
// starts it, one for each pod: see docs/shim.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/shim"

	"turnstone.dev/turnstone/shim/bootstrap"
	"turnstone.dev/turnstone/shim/service"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == service.ImageCommand {
		if err := service.MakeImage(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	service.Register()
	bootstrap.Run(context.Background(), service.Manager{}, func(c *shim.Config) {
		// the drivers wait for their own processes, which a reaper of all would take from them
		c.NoReaper, c.NoSubreaper = true, true
	})
}
