package cli

import (
	"runtime/debug"
	"time"
)

const (
	// hasteTime is the time for which garbage collection is delayed.
	hasteTime = 2 * time.Second
	// hastePercent delays the first garbage collection until 32 MB (runtime/debug, SetGCPercent: 4
	// MB for each hundred).
	hastePercent = 800
)

// collectLater delays garbage collection: most commands end before it is useful, and it takes a
// tenth of their time. A longer command, such as the holder of a sandbox, then collects as usual,
// and returns the memory.
func collectLater() {
	percent := debug.SetGCPercent(hastePercent)
	time.AfterFunc(hasteTime, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}
