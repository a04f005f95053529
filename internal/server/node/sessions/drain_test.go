package sessions

import (
	"context"
	"errors"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
)

// patient is an executor whose replays end when the test says so.
type patient struct {
	player
	began, end chan struct{}
}

func (p patient) Replay(ctx context.Context, ref string, o executor.ReplayOptions,
	obs executor.Observer) (*turnstone.ReplayReport, error) {
	close(p.began)
	select {
	case <-p.end:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return p.player.Replay(ctx, ref, o, obs)
}

// TestDrain: a replay that runs when the node is told to end finishes, no other one begins, and
// what needs no machine is answered meanwhile.
func TestDrain(t *testing.T) {
	s := newScene(t)
	x := patient{player{s.x}, make(chan struct{}), make(chan struct{})}
	service := s.serve(x)
	client := s.remote(service, s.mine)
	ended := make(chan error, 1)
	go func() {
		r, err := client.Replay(t.Context(), "research@2", executor.ReplayOptions{}, nil)
		if err == nil && r.Turn == nil {
			err = errors.New("the report has no turn")
		}
		ended <- err
	}()
	<-x.began
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if err := service.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a replay runs: %v", err)
	}
	if _, err := s.remote(service, s.mine).Replay(t.Context(), "research@2",
		executor.ReplayOptions{}, nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("another replay: %v", err)
	}
	if _, err := client.Show(t.Context(), "research@2"); err != nil {
		t.Error(err)
	}
	close(x.end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := service.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
