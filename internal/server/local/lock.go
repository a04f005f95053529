package local

import (
	"fmt"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// OpLock is the operation of the errors of Lock.
const OpLock turnstone.Op = "server.lock"

// Lock takes the lock of a role in a state directory, until the lock is released or the process
// ends: two controllers or nodes with one state would damage it. The error is of kind Unavailable
// if another server has the role.
func Lock(dir *statedir.Dir, role string) (*statedir.Lock, error) {
	fail := func(err error) (*statedir.Lock, error) {
		return nil, turnstone.NewError(OpLock, turnstone.KindUnavailable, dir.Root, err)
	}
	if _, err := dir.MkdirAll("server"); err != nil {
		return fail(err)
	}
	l, err := statedir.TryAcquire(dir.Path("server", role+".lock"))
	if err != nil {
		return fail(err)
	}
	if l == nil {
		return nil, turnstone.Errorf(OpLock, turnstone.KindUnavailable, dir.Root,
			"is the state of another running server with the role %s", role).
			WithHint(endHint(dir))
	}
	return l, nil
}

// endHint says how to end the server of a state directory. A client may have started it: its user
// may not know of it.
func endHint(dir *statedir.Dir) string {
	other := "the other server"
	if c, err := net.DialTimeout("unix", dir.Path("server.sock"), probeTime); err == nil {
		if p, err := peer(c); err == nil && p.Pid > 0 {
			other += fmt.Sprintf(" (kill %d)", p.Pid)
		}
		c.Close()
	}
	return "end " + other + ", or set TURN_HOME to another directory; a server that a client " +
		"started for this machine ends by itself five minutes after its last use"
}
