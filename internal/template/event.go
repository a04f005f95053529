package template

import (
	"fmt"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// An Event describes the progress of a template's build.
type Event struct {
	Template string `json:"template"`
	Phase    string `json:"phase"` // such as "downloading"
	// Item is the file that is being fetched; Done and Total are its bytes, and Rate is the bytes
	// per second of all downloads. Total is -1 if unknown.
	Item  string  `json:"item,omitempty"`
	Done  int64   `json:"done,omitempty"`
	Total int64   `json:"total,omitempty"`
	Rate  int64   `json:"rate,omitempty"`
	Took  float64 `json:"seconds,omitempty"` // since the build's start
}

// String returns the event as a line of text.
func (e Event) String() string {
	if e.Item == "" {
		return "template " + e.Template + ": " + e.Phase
	}
	line := fmt.Sprintf("template %s: %s: %s, %s", e.Template, e.Phase, e.Item,
		turnstone.Bytes(e.Done).Human())
	if e.Total > 0 {
		line += " of " + turnstone.Bytes(e.Total).Human()
	}
	if e.Rate > 0 {
		line += fmt.Sprintf(", %s/s", turnstone.Bytes(e.Rate).Human())
	}
	return line
}

// A teller turns a build's messages into events. It is safe for concurrent use.
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

// tell sends e, in the current phase.
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
