package remote_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/remote"
)

// lossy loses a client's connection, and keeps new ones away for a time.
type lossy struct {
	node *node

	mu   sync.Mutex
	open io.Closer
	away bool
}

func (l *lossy) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		return nil, turnstone.Errorf("remote.dial", turnstone.KindUnavailable, "the node", "is away")
	}
	c, err := l.node.dial(ctx)
	if err == nil {
		l.open = c
	}
	return c, err
}

func (l *lossy) lose(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
	if l.open != nil {
		_ = l.open.Close()
		l.open = nil
	}
}

// away runs a turn whose connections a function loses; the turn ends when wait is closed. The turn
// runs once, and each byte of its output arrives once.
func away(t *testing.T, loses func(l *lossy, wait chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		x := &teller{wait: make(chan struct{})}
		l := &lossy{node: newNode(t, x)}
		var wg sync.WaitGroup
		h := &heard{first: func() { wg.Go(func() { loses(l, x.wait) }) }}
		report, err := (&remote.Turns{Dial: l.dial}).Run(t.Context(), remote.TurnRequest{
			Ticket: l.node.ticket("k_00000001", ""), Document: parse(t, "```bash\necho\n```\n")}, h)
		if err != nil || report.Receipt != "receipt" {
			t.Errorf("%+v: %v", report, err)
		}
		if x.runs != 1 || h.out.Len() != 50_000 || h.started != 1 || h.finished != 1 {
			t.Errorf("%d runs, %d bytes of output, %d starts, %d ends; %d connections", x.runs,
				h.out.Len(), h.started, h.finished, l.node.dials)
		}
		wg.Wait()
	})
}

// TestAnHourAway: a client that cannot connect for nearly an hour, as on a machine that sleeps, gets
// the result of the turn that ended meanwhile.
func TestAnHourAway(t *testing.T) {
	away(t, func(l *lossy, wait chan struct{}) {
		time.Sleep(time.Second) //wait: the bubble's clock
		l.lose(true)
		time.Sleep(30 * time.Minute)
		close(wait)
		time.Sleep(29 * time.Minute)
		l.lose(false)
	})
}

// TestSilentTurn: a turn that says nothing for hours uses up nothing of its client's patience, and a
// connection that is lost then is made again.
func TestSilentTurn(t *testing.T) {
	away(t, func(l *lossy, wait chan struct{}) {
		time.Sleep(time.Second) //wait: the bubble's clock
		l.lose(false)           // nothing arrives on the next connection
		time.Sleep(3 * time.Hour)
		l.lose(true)
		time.Sleep(30 * time.Minute)
		l.lose(false)
		time.Sleep(3 * time.Hour)
		close(wait)
	})
}
