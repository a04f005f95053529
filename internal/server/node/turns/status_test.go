package turns

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/wire"
)

func (c *scene) state(t *testing.T) Info {
	t.Helper()
	i, err := c.Get(c.ticket.ID)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// TestStatus follows a ticket from its reservation to its turn's end, and over a restart.
func TestStatus(t *testing.T) {
	x, dir := newPlayer(), t.TempDir()
	s := newScene(t, dir, x)
	var mu sync.Mutex
	told := 0
	s.Notify(func(id string) {
		mu.Lock()
		defer mu.Unlock()
		if told++; id != s.ticket.ID {
			t.Error(id)
		}
	})
	if i := s.state(t); i.State != Reserved || i.Created.IsZero() || s.Count() != 0 {
		t.Fatalf("%+v", i)
	}
	if err := start(s.connect(t, s.client), source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	if i := s.state(t); i.State != Running || i.Started.IsZero() || s.Count() != 1 {
		t.Fatalf("%+v", i)
	}
	close(x.go2)
	waitIdle(s.Service)
	end := s.state(t)
	if end.State != Done || end.Result != turnstone.ResultPassed || end.Turn != "t_1" ||
		end.Ended.IsZero() || s.Count() != 0 {
		t.Fatalf("%+v", end)
	}
	if err := s.Cancel(s.ticket.ID); err != nil || s.state(t) != end {
		t.Fatalf("%v, %+v", err, s.state(t))
	}
	again := s.restart(t, x)
	if i := again.state(t); i != end {
		t.Fatalf("%+v", i)
	}
	if all, err := again.List(); err != nil || len(all) != 1 || all[0] != end {
		t.Fatalf("%+v, %v", all, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if told < 2 { // start and end
		t.Fatal(told)
	}
}

// TestCancelTicket: after a cancellation no turn begins, and it stays so.
func TestCancelTicket(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	for range 2 {
		if err := s.Cancel(s.ticket.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*scene{s, s.restart(t, x)} {
		if i := s.state(t); i.State != Expired {
			t.Fatalf("%+v", i)
		}
		err := start(s.connect(t, s.client), source, s.ticket.ID, nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid || x.runs.Load() != 0 {
			t.Fatal(err)
		}
	}
	if err := s.Cancel("tk_unknown"); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Fatal(err)
	}
}

// TestCancelRunning ends a turn by its ticket.
func TestCancelRunning(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	if err := start(s.connect(t, s.client), source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	<-x.first
	if err := s.Cancel(s.ticket.ID); err != nil {
		t.Fatal(err)
	}
	waitIdle(s.Service)
	if i := s.state(t); i.State != Done || i.Result != turnstone.ResultError {
		t.Fatalf("%+v", i)
	}
}

// TestStatusOfLost: a turn that a former process left has ended, with an error.
func TestStatusOfLost(t *testing.T) {
	s := newScene(t, t.TempDir(), newPlayer())
	if err := os.WriteFile(filepath.Join(s.dir, s.ticket.ID, begunFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again := s.restart(t, newPlayer())
	if i := again.state(t); i.State != Done || i.Result != turnstone.ResultError ||
		i.Ended.IsZero() {
		t.Fatalf("%+v", i)
	}
	late := s.ticket
	late.ID, late.Expires = "k_late0000", time.Now().Add(-time.Second)
	if err := again.Reserve(late); err != nil {
		t.Fatal(err)
	}
	if i, err := again.Get(late.ID); err != nil || i.State != Expired {
		t.Fatalf("%+v %v", i, err)
	}
}

// TestReserveAgain: a repetition has other times, and a different request is refused.
func TestReserveAgain(t *testing.T) {
	s := newScene(t, t.TempDir(), newPlayer())
	before := s.state(t)
	again := s.ticket
	again.Expires = again.Expires.Add(time.Hour)
	if err := s.Reserve(again); err != nil || s.state(t) != before {
		t.Fatalf("%v, %+v", err, s.state(t))
	}
	for _, change := range []func(*Ticket){
		func(t *Ticket) { t.Session = "other" },
		func(t *Ticket) { t.SessionID = "s_000000000000000000" },
		func(t *Ticket) { t.Template = "python" },
		func(t *Ticket) { t.Machine.CPUs = 2 },
		func(t *Ticket) { t.Timeout = time.Hour },
		func(t *Ticket) { t.Client[0] ^= 1 },
	} {
		other := s.ticket
		change(&other)
		if err := s.Reserve(other); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// TestBound: the turn stays within its ticket, and gets what the ticket says if it asks for nothing.
func TestBound(t *testing.T) {
	ticket := Ticket{Template: "python", Timeout: time.Minute, Machine: turnstone.Machine{CPUs: 2,
		Memory: 1 << 30, Disk: 1 << 30}}
	for name, c := range map[string]struct {
		front document.FrontMatter
		s     wire.TurnSettings
		bad   bool
	}{
		"nothing":       {},
		"the same":      {front: document.FrontMatter{Image: "python", CPUs: 2, Timeout: 60e9}},
		"less":          {s: wire.TurnSettings{CPUs: 1, Memory: 1 << 29, Disk: 1 << 29}},
		"cpus":          {front: document.FrontMatter{CPUs: 3}, bad: true},
		"cpus by flag":  {s: wire.TurnSettings{CPUs: 3}, bad: true},
		"memory":        {front: document.FrontMatter{Memory: 2 << 30}, bad: true},
		"disk":          {front: document.FrontMatter{Disk: 2 << 30}, bad: true},
		"time":          {front: document.FrontMatter{Timeout: time.Hour}, bad: true},
		"another image": {front: document.FrontMatter{Image: "node"}, bad: true},
	} {
		front := c.front
		if err := bound(&front, ticket, &c.s); (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		} else if err == nil && (front.Image != "python" || front.CPUs < 1 ||
			front.Timeout != time.Minute || front.Memory < 1<<29) {
			t.Errorf("%s: %+v", name, front)
		}
	}
	// What the ticket does not bound, the usual machine of its template does; the turn gets nothing of it.
	ticket = Ticket{Most: turnstone.Machine{CPUs: 1, Memory: 1 << 30, Disk: 1 << 30},
		Machine: turnstone.Machine{CPUs: 4}}
	if err := bound(&document.FrontMatter{Memory: 2 << 30}, ticket, &wire.TurnSettings{}); err == nil {
		t.Error("more than the usual memory")
	}
	front := document.FrontMatter{CPUs: 3}
	if err := bound(&front, ticket, &wire.TurnSettings{}); err != nil || front.CPUs != 3 || front.Memory != 0 {
		t.Errorf("%+v %v", front, err)
	}
}
