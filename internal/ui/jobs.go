package ui

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// Bounds of jobs.
const (
	maxJobs    = 50 // that are remembered
	maxRunning = 4
	maxEvents  = 20_000 // of a job
	maxPrinted = 1 << 20
	// pollTime is how long a request for events waits: a browser has six connections for all pages.
	pollTime = 5 * time.Second
)

// An event is something that happened in a job.
type event struct {
	// Kind is "say", "step", "output", "passed" (a step ended, in any way) or "end".
	Kind   string           `json:"kind"`
	Step   int              `json:"step,omitempty"`
	Name   string           `json:"name,omitempty"`
	Stream turnstone.Stream `json:"stream,omitempty"`
	Text   string           `json:"text,omitempty"`
	Status turnstone.Status `json:"status,omitempty"`
	Exit   *int             `json:"exit,omitempty"`
	Millis int64            `json:"ms,omitempty"`
	Result any              `json:"result,omitempty"` // of the job, at its end
	Failed *failure         `json:"failed,omitempty"`
}

// A job is something that the page started and that may take long. It is an executor.Observer.
type job struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"` // "run", "replay", "verify", "merge"
	What    string    `json:"what"` // the session or the turn
	Started time.Time `json:"started"`
	Steps   []string  `json:"steps,omitempty"` // names, of a run

	cancel context.CancelFunc

	mu      sync.Mutex
	events  []event
	texts   map[output]*decoder
	printed int
	done    bool
	changed chan struct{} // closed at the next change
}

// jobs are the jobs of a server.
type jobs struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	next   int
	all    []*job // the oldest first
}

func newJobs() *jobs {
	j := &jobs{}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// close cancels all jobs and waits for their ends.
func (j *jobs) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.cancel()
	j.wg.Wait()
}

// start starts a job that f performs.
func (j *jobs) start(kind, what string, steps []string,
	f func(ctx context.Context, j *job) (any, error)) (*job, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	running := 0
	for _, o := range j.all {
		if !o.isDone() {
			running++
		}
	}
	if running >= maxRunning || j.closed {
		return nil, turnstone.Errorf("ui.start", turnstone.KindExhausted, "this server",
			"works on %d things already", running).WithHint("wait for an end, or cancel one")
	}
	if len(j.all) >= maxJobs {
		at := slices.IndexFunc(j.all, (*job).isDone)
		j.all = slices.Delete(j.all, at, at+1)
	}
	j.next++
	n := &job{ID: strconv.Itoa(j.next), Kind: kind, What: what, Steps: steps, Started: time.Now(),
		changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(j.ctx)
	n.cancel = cancel
	j.all = append(j.all, n)
	j.wg.Go(func() {
		defer cancel()
		result, err := f(ctx, n)
		end := event{Kind: "end", Result: result}
		if err != nil {
			end.Failed = failureOf(err)
		}
		n.add(end)
	})
	return n, nil
}

func (j *jobs) find(id string) (*job, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, n := range j.all {
		if n.ID == id {
			return n, nil
		}
	}
	return nil, turnstone.Errorf("ui.job", turnstone.KindNotFound, "job "+cut(id, maxRef), "is not known")
}

func (n *job) isDone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.done
}

// add adds an event. Outputs beyond the bounds are left out: the receipt has them.
func (n *job) add(e event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case e.Kind == "end":
		n.done = true
	case len(n.events) >= maxEvents:
		return
	case e.Kind == "output":
		if n.printed >= maxPrinted {
			return
		}
		n.printed += len(e.Text)
	}
	n.events = append(n.events, e)
	close(n.changed)
	n.changed = make(chan struct{})
}

// after returns the events from number at on, and what is closed when there are more.
func (n *job) after(at int) (events []event, done bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at = min(max(at, 0), len(n.events))
	return slices.Clone(n.events[at:]), n.done, n.changed
}

// Preparing implements executor.Observer.
func (n *job) Preparing(what string) { n.add(event{Kind: "say", Text: cut(what, maxText)}) }

// StepStarted implements executor.Observer.
func (n *job) StepStarted(step *document.Step) {
	n.add(event{Kind: "step", Step: step.Index, Name: step.Name})
}

// StepOutput implements executor.Observer. A character may be in two parts.
func (n *job) StepOutput(step *document.Step, stream turnstone.Stream, p []byte) {
	n.mu.Lock()
	text := n.text(output{step.Index, stream}).next(p)
	n.mu.Unlock()
	if text != "" {
		n.add(event{Kind: "output", Step: step.Index, Stream: stream, Text: text})
	}
}

// An output is a stream of a step.
type output struct {
	step   int
	stream turnstone.Stream
}

// text returns the decoder of an output. The caller holds mu.
func (n *job) text(of output) *decoder {
	if n.texts == nil {
		n.texts = map[output]*decoder{}
	}
	if n.texts[of] == nil {
		n.texts[of] = &decoder{}
	}
	return n.texts[of]
}

// StepFinished implements executor.Observer.
func (n *job) StepFinished(step *document.Step, r turnstone.StepReport) {
	for _, stream := range []turnstone.Stream{turnstone.Stdout, turnstone.Stderr} {
		n.mu.Lock()
		text := n.text(output{step.Index, stream}).end()
		n.mu.Unlock()
		if text != "" {
			n.add(event{Kind: "output", Step: step.Index, Stream: stream, Text: text})
		}
	}
	n.add(event{Kind: "passed", Step: step.Index, Name: step.Name, Status: r.Status, Exit: r.ExitCode,
		Millis: r.Millis})
}

// A decoder decodes a stream of UTF-8 whose parts end anywhere.
type decoder struct{ begun []byte } // of a character, at most 3 bytes

// next returns the characters that end in the next part.
func (t *decoder) next(p []byte) string {
	b := append(t.begun, p...)
	t.begun = nil
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if at := len(b) - n; utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				b, t.begun = b[:at], slices.Clone(b[at:])
			}
			break
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// end returns what a stream that ends in the middle of a character has of it.
func (t *decoder) end() string {
	b := t.begun
	t.begun = nil
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

type jobsOut struct {
	Jobs []jobOut `json:"jobs"` // the oldest first
}

type jobOut struct {
	*job
	Done bool `json:"done"`
}

func (s *Server) listJobs(context.Context, url.Values) (jobsOut, error) {
	s.jobs.mu.Lock()
	defer s.jobs.mu.Unlock()
	out := jobsOut{[]jobOut{}}
	for _, n := range s.jobs.all {
		out.Jobs = append(out.Jobs, jobOut{n, n.isDone()})
	}
	return out, nil
}

type cancelIn struct {
	ID string `json:"id"`
}

func (s *Server) cancelJob(_ context.Context, in cancelIn) (struct{}, error) {
	n, err := s.jobs.find(in.ID)
	if err == nil {
		n.cancel()
	}
	return struct{}{}, err
}

type eventsOut struct {
	Job    *job    `json:"job"`
	Events []event `json:"events"`
	Next   int     `json:"next"`
	Done   bool    `json:"done"`
}

// watchJob answers with the events of a job after a number. It waits for a while if there are none.
func (s *Server) watchJob(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	n, err := s.jobs.find(q.Get("id"))
	at, bad := strconv.Atoi(q.Get("after"))
	if err == nil && (bad != nil || at < 0) {
		err = invalid("after", "is no number")
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	wait := time.NewTimer(pollTime)
	defer wait.Stop()
	for {
		events, done, changed := n.after(at)
		if len(events) > 0 || done {
			answer(w, eventsOut{n, events, at + len(events), done}, nil)
			return
		}
		select {
		case <-changed:
		case <-wait.C:
			answer(w, eventsOut{n, []event{}, at, false}, nil)
			return
		case <-r.Context().Done():
			return
		case <-s.jobs.ctx.Done():
			answer(w, nil, turnstone.Errorf("ui.job", turnstone.KindUnavailable, "the server", "is ending"))
			return
		}
	}
}
