package template

import (
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A teller turns a build's messages into events. It is safe for concurrent use.
type teller struct {
	name   string
	start  time.Time
	events func(turnstone.BuildEvent) // may be nil

	mu    sync.Mutex
	phase string
}

func (t *teller) say(phase string) {
	t.mu.Lock()
	t.phase = phase
	t.mu.Unlock()
	t.tell(turnstone.BuildEvent{})
}

// tell sends e, in the current phase.
func (t *teller) tell(e turnstone.BuildEvent) {
	if t.events == nil {
		return
	}
	t.mu.Lock()
	e.Phase = t.phase
	t.mu.Unlock()
	e.Template, e.Took = t.name, time.Since(t.start).Seconds()
	t.events(e)
}
