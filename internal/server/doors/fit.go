package doors

import (
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// Bounds of what connections may take of a process's open files, so that callers reach a bound of the
// server before they take its last descriptor.
const (
	filesEach = 2   // its own, and one to a sandbox
	reserved  = 256 // at least, for files, sandboxes and other roles; or an eighth
	least     = 16  // connections, below which nobody can work
)

// Connections are how many connections the listeners of a server may have at one time.
type Connections struct {
	Each      int // listener
	Listeners int
	Others    int // the bound of one more listener; 0: there is none
}

// Fit returns how many connections each listener may have if a process may have most open files: those
// that are asked for, or fewer. The error is of kind Unavailable if these are too few to work with.
func (c Connections) Fit(most uint64) (int, error) {
	const large = 1 << 40 // RLIM_INFINITY
	total := int64(min(most, large))
	room := total - max(total/8, reserved)
	if c.Listeners < 1 {
		return c.Each, nil
	}
	share := room / filesEach / int64(c.Listeners)
	if c.Others > 0 { // one more listener, which takes no more than its own bound
		share = max(room/filesEach/int64(c.Listeners+1),
			(room/filesEach-int64(c.Others))/int64(c.Listeners))
	}
	fit := int(min(int64(c.Each), share))
	if fit < min(least, c.Each) {
		return 0, turnstone.Errorf("server.limits", turnstone.KindUnavailable, "RLIMIT_NOFILE",
			"%d open files are too few for %d listeners", total, c.Listeners).
			WithHint("raise it with LimitNOFILE= in the unit, or with ulimit -n")
	}
	return fit, nil
}

// OpenFiles returns how many open files this process may have.
func OpenFiles() (uint64, error) {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Cur, err
}
