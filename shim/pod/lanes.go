package pod

import (
	"context"
	"fmt"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Bounds of the processes of a pod.
const (
	maxProcesses = 512 // at once: first processes and execs
	laneSize     = 16  // processes of a connection: each has three streams and a command on it
	maxStarting  = 16  // processes that are started at once
	maxCopies    = 4   // images and volumes that are copied in at once
)

// lanes are the connections to the sandbox that its processes use. A connection has a bounded number
// of streams and commands: what many processes take of them must not be missing for a signal, or for
// another container.
type lanes struct {
	mu   sync.Mutex
	all  []*lane
	open func() (*wire.Client, error)
}

type lane struct {
	*wire.Client
	used int
}

// take returns a connection for another process. give takes it back.
func (ls *lanes) take() (*lane, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.all {
		if l.used < laneSize {
			l.used++
			return l, nil
		}
	}
	if len(ls.all) >= maxProcesses/laneSize {
		return nil, turnstone.Errorf("pod.start", turnstone.KindExhausted, "processes",
			"a pod has at most %d at once", maxProcesses).WithHint("end some of its execs")
	}
	c, err := ls.open()
	if err != nil {
		return nil, err
	}
	l := &lane{Client: c, used: 1}
	ls.all = append(ls.all, l)
	return l, nil
}

func (ls *lanes) give(l *lane) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.used--
}

// close ends the connections, and with them what waits for their processes.
func (ls *lanes) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.all {
		_ = l.Close()
	}
}

// connect opens another connection to the sandbox.
func (p *Pod) connect() (*wire.Client, error) {
	s, err := p.sb.Connect()
	if err != nil {
		return nil, p.sb.CauseOf(err)
	}
	return wire.NewClient(s), nil
}

// slot waits for a place among those that do the same at once.
func slot(ctx context.Context, places chan struct{}) (release func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the sandbox does not answer: %w", ctx.Err())
	}
}
