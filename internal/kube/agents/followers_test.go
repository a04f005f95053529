package agents

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	"turnstone.dev/turnstone"
)

// scripted is a server whose containers tell something, and are followed then.
type scripted struct {
	Server
	open  atomic.Int64
	asked atomic.Int64
	tells func(tell func(Process)) error
}

func (s *scripted) FollowContainer(ctx context.Context, _, _ string, _ Main, tell func(Process)) error {
	s.asked.Add(1)
	s.open.Add(1)
	defer s.open.Add(-1)
	if err := s.tells(tell); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func object(namespace, name string) *sandboxv1.Sandbox {
	return &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// TestFollowersAreBounded: however many containers a namespace has, others are followed too, and all are
// looked at.
func TestFollowersAreBounded(t *testing.T) {
	s := &scripted{tells: func(tell func(Process)) error { tell(Process{Ready: true}); return nil }}
	f := newFollowers(&Options{Server: s})
	f.most = 8
	ask := func(namespace, name string) {
		t.Helper()
		if p, err := f.state(t.Context(), object(namespace, name), "sb", Main{}); err != nil || !p.Ready {
			t.Fatalf("%s/%s: %+v %v", namespace, name, p, err)
		}
	}
	for range 2 {
		for n := range 20 {
			ask("flood", string(rune('a'+n)))
		}
	}
	if f.taken != 4 || f.of["flood"] != 4 {
		t.Errorf("the flood has %d of %d places", f.of["flood"], f.taken)
	}
	ask("quiet", "a")
	if f.of["quiet"] != 1 {
		t.Error("another namespace has no place")
	}
	for n := range 20 {
		f.end(key(object("flood", string(rune('a'+n)))))
	}
	f.end(key(object("quiet", "a")))
	f.cancel()
	if f.taken != 0 || len(f.of) != 0 || len(f.all) != 0 {
		t.Errorf("places stay taken: %+v", f)
	}
	for end := time.Now().Add(2 * time.Minute); s.open.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d are still followed", s.open.Load())
		}
	}
}

// TestFollowers: a container is followed once, also when it is looked at often; another one, or another
// description of it, anew. A fault of the first call is told once, and the next look tries again.
func TestFollowers(t *testing.T) {
	var fails atomic.Bool
	more := make(chan Process, 1)
	s := &scripted{tells: func(tell func(Process)) error {
		if fails.Load() {
			return turnstone.Errorf("test", turnstone.KindUnavailable, "the node", "does not answer")
		}
		tell(Process{Ready: true})
		go func() {
			if p, ok := <-more; ok {
				tell(p)
			}
		}()
		return nil
	}}
	f := newFollowers(&Options{Server: s})
	defer f.cancel()
	o := object("a", "b")
	for range 3 {
		if _, err := f.state(t.Context(), o, "sb_1", Main{Cwd: "/", Was: Was{Ended: true}}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.state(t.Context(), o, "sb_1", Main{Cwd: "/", Inputs: func(context.Context) (Inputs, error) {
			return Inputs{}, nil
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.asked.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	more <- Process{Ended: true}
	if e := <-f.events; e.Object.GetName() != "b" || e.Object.GetNamespace() != "a" {
		t.Errorf("an event about %+v", e.Object)
	}
	if p, err := f.state(t.Context(), o, "sb_1", Main{Cwd: "/"}); err != nil || !p.Ended {
		t.Errorf("%+v %v", p, err)
	}
	for n, box := range []string{"sb_2", "sb_2", "sb_1"} {
		if _, err := f.state(t.Context(), o, box, Main{Cwd: "/"}); err != nil {
			t.Fatal(n, err)
		}
	}
	if n := s.asked.Load(); n != 3 || f.taken != 1 {
		t.Errorf("it was asked %d times, and has %d places", n, f.taken)
	}
	fails.Store(true)
	for range 2 {
		if _, err := f.state(t.Context(), o, "sb_3", Main{}); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Error(err)
		}
	}
	if n := s.asked.Load(); n != 5 || f.taken != 0 {
		t.Errorf("it was asked %d times, and has %d places", n, f.taken)
	}
}

// TestSilent: a container of which nothing is told is waited for once, for as long as a guest has.
func TestSilent(t *testing.T) {
	s := &scripted{tells: func(func(Process)) error { return nil }}
	f := newFollowers(&Options{Server: s, Guest: time.Millisecond})
	defer f.cancel()
	for range 3 {
		if _, err := f.state(t.Context(), object("a", "b"), "sb", Main{}); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Error(err)
		}
	}
	if s.asked.Load() != 1 || f.taken != 1 {
		t.Errorf("it was asked %d times, and has %d places", s.asked.Load(), f.taken)
	}
}
