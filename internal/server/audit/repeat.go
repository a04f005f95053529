package audit

import (
	"sync"
	"time"
)

// maxRepeats bounds the kinds of calls whose repetitions are counted apart.
const maxRepeats = 256

// repeats counts calls that are like one that has a line.
type repeats struct {
	mu    sync.Mutex
	of    map[Entry]*repeat
	other repeat // of calls beyond maxRepeats
}

type repeat struct {
	count int
	since time.Time
}

// like returns what calls have in common that are counted together.
func (e Entry) like() Entry {
	e.Seq, e.Prev, e.Time, e.Count, e.Since = 0, "", time.Time{}, 0, time.Time{}
	if e.Outcome != Done {
		e.Object = "" // the caller has chosen it
	}
	return e
}

// Note is Append for calls that a caller may repeat as often as it likes, such as refused ones: the
// first of those that are alike gets a line at once, and the others of each Options.Every one line
// with their number. The lines of a flood are bounded.
func (l *Log) Note(e Entry) {
	if e.Time.IsZero() {
		e.Time = l.o.Now()
	}
	e.bound()
	if l.repeats.add(e) {
		_ = l.Append(e) // a line that waits was reported
	}
}

// add counts a call, and reports whether it is the first.
func (r *repeats) add(e Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[Entry]*repeat)
	}
	to := r.of[e.like()]
	if to == nil && len(r.of) < maxRepeats {
		r.of[e.like()] = &repeat{}
		return true
	}
	if to == nil {
		to = &r.other
	}
	if to.count++; to.count == 1 {
		to.since = e.Time
	}
	return false
}

// take returns the repetitions since the last time, and forgets what was not repeated.
func (r *repeats) take() (all []Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e, n := range r.of {
		if n.count == 0 {
			delete(r.of, e)
			continue
		}
		e.Count, e.Since = n.count, n.since.UTC().Round(0)
		all = append(all, e)
		n.count = 0
	}
	if n := &r.other; n.count > 0 {
		all = append(all, Entry{Method: "audit.others", Outcome: Refused, Count: n.count,
			Since: n.since.UTC().Round(0)})
		n.count = 0
	}
	return all
}

// tell writes the lines about repetitions.
func (l *Log) tell() {
	for _, e := range l.repeats.take() {
		_ = l.Append(e)
	}
}
