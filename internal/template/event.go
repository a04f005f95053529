package template

import (
	"fmt"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// An Event tells how far the build of a template is.
type Event struct {
	Template string `json:"template"`
	Phase    string `json:"phase"` // what is done, as "downloading"
	// Item is the file that is fetched now; with it, Done and Total are its bytes and
	// Rate the bytes per second of all that is fetched. Total is -1 when it is not known.
	Item  string  `json:"item,omitempty"`
	Done  int64   `json:"done,omitempty"`
	Total int64   `json:"total,omitempty"`
	Rate  int64   `json:"rate,omitempty"`
	Took  float64 `json:"seconds,omitempty"` // since the build began
}

// String says it in a line.
func (e Event) String() string {
	if e.Item == "" {
		return "template " + e.Template + ": " + e.Phase
	}
	line := fmt.Sprintf("template %s: %s: %s, %s", e.Template, e.Phase, e.Item, turnstone.Bytes(e.Done).Human())
	if e.Total > 0 {
		line += " of " + turnstone.Bytes(e.Total).Human()
	}
	if e.Rate > 0 {
		line += fmt.Sprintf(", %s/s", turnstone.Bytes(e.Rate).Human())
	}
	return line
}

// A teller makes events of what a build says. It is safe for concurrent use.
type teller struct {
	name   string
	start  time.Time
	events func(Event) // may be nil

	mu    sync.Mutex
	phase string
}

func (t *teller) say(phase string) {
	t.mu.Lock()
	t.phase = phase
	t.mu.Unlock()
	t.tell(Event{})
}

// tell sends e, in the phase that there is.
func (t *teller) tell(e Event) {
	if t.events == nil {
		return
	}
	t.mu.Lock()
	e.Phase = t.phase
	t.mu.Unlock()
	e.Template, e.Took = t.name, time.Since(t.start).Seconds()
	t.events(e)
}
