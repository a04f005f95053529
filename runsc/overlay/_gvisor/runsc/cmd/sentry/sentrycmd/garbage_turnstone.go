// When garbage is collected. This file is added by Turnstone's build.

package sentrycmd

import (
	"runtime/debug"
	"time"
)

const (
	// startTime is how long nothing is collected.
	startTime = 2 * time.Second
	// startMemory is how much memory the Go runtime may take until then without collecting,
	// in bytes. A template's checkpoint takes a third of it.
	startMemory = 96 << 20
)

// collectLater puts off the collection of garbage until the sandbox has started: a restore
// makes a heap of objects that nearly all stay, and would look through them several times
// while the caller waits. What is garbage then goes back to the host.
func collectLater() {
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(startMemory)
	time.AfterFunc(startTime, func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}
