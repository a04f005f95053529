// Command containerd-shim-turnstone-v2 runs the pods of a RuntimeClass in sandboxes. containerd
// starts it, one for each pod: see docs/shim.md.
package main

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/shim"

	"turnstone.dev/turnstone/shim/bootstrap"
	"turnstone.dev/turnstone/shim/service"
)

func main() {
	service.Register()
	bootstrap.Run(context.Background(), service.Manager{}, func(c *shim.Config) {
		// the drivers wait for their own processes, which a reaper of all would take from them
		c.NoReaper, c.NoSubreaper = true, true
	})
}
