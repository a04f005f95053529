// Random numbers of a deterministic sandbox. This file is added by Turnstone's build.

package rand

import "sync/atomic"

// seeded fills p and reports true if the caller gets its random numbers from a seed.
var seeded atomic.Pointer[func(p []byte) bool]

// SetSeeded sets a source of random numbers that is asked before the host's. The source reports
// false for callers that it does not serve.
func SetSeeded(source func(p []byte) bool) { seeded.Store(&source) }

// readSeeded fills p from the source of SetSeeded, if that serves the caller.
func readSeeded(p []byte) bool {
	source := seeded.Load()
	return source != nil && (*source)(p)
}
