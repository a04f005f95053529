package mcpdoor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// heartbeat is the time between notifications of a call in which nothing else happens, so that
// clients do not give it up.
const heartbeat = 10 * time.Second

// A progress tells the client of a call what happens: the latest text, at least once for each
// heartbeat. It never delays what it tells of. It is an executor.Observer.
type progress struct {
	steps int // 0: unknown
	tell  func(n float64, text string)

	mu      sync.Mutex
	text    string
	begun   int
	changed chan struct{}
	stop    chan struct{}
	stopped chan struct{}
}

// newProgress returns the progress of a call, which the caller ends. It is nil if the client does
// not want to know.
func (c call) newProgress(ctx context.Context, steps int) *progress {
	token := c.request.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	p := &progress{steps: steps, changed: make(chan struct{}, 1), stop: make(chan struct{}),
		stopped: make(chan struct{})}
	p.tell = func(n float64, text string) {
		_ = c.request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: n, Message: text}) // a client that is gone
	}
	go p.run()
	return p
}

func (p *progress) run() {
	defer close(p.stopped)
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for n := 1.0; ; n++ {
		select {
		case <-p.changed:
		case <-tick.C:
		case <-p.stop:
			return
		}
		p.mu.Lock()
		text := p.text
		p.mu.Unlock()
		p.tell(n, text)
	}
}

// end ends the notifications.
func (p *progress) end() {
	if p == nil {
		return
	}
	close(p.stop)
	<-p.stopped
}

func (p *progress) say(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.text = cut(text, maxError)
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Preparing implements executor.Observer.
func (p *progress) Preparing(what string) { p.say(what) }

// StepStarted implements executor.Observer.
func (p *progress) StepStarted(step *document.Step) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.begun++
	n := p.begun
	p.mu.Unlock()
	of := ""
	if p.steps > 0 {
		of = fmt.Sprintf(" of %d", p.steps)
	}
	p.say(fmt.Sprintf("step %d%s: %s", n, of, step.Name))
}

// StepOutput implements executor.Observer. Outputs are in the receipt.
func (p *progress) StepOutput(*document.Step, turnstone.Stream, []byte) {}

// StepFinished implements executor.Observer.
func (p *progress) StepFinished(step *document.Step, report turnstone.StepReport) {
	p.say(fmt.Sprintf("step %s: %s", step.Name, report.Status))
}
