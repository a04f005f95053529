package main

import (
	"runtime/debug"
	"time"
)

const (
	// hasteTime is how long a command is in haste.
	hasteTime = 2 * time.Second
	// hastePercent has the first garbage collection begin at 32 MB (runtime/debug,
	// SetGCPercent: 4 MB for each hundred).
	hastePercent = 800
)

// collectLater puts off the collection of garbage: most commands end before their garbage
// is worth a look, which takes a tenth of their time. One that goes on, as what holds a
// sandbox does, collects as usual from then on, and gives back what it had.
func collectLater() {
	percent := debug.SetGCPercent(hastePercent)
	time.AfterFunc(hasteTime, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}
