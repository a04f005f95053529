package turns_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/turns"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// A server is a server in memory, as strict as the real one about keys, tickets and branches.
type server struct {
	mu       sync.Mutex
	tickets  map[string]*ticket // by ID
	keys     map[string]string  // of orders, to tickets
	sessions map[string]int     // by ID, to numbers of turns
	most     map[string]int     // turns of a session at a time
	builds   int
	texts    map[string]string             // documents by their paths
	lie      func(p *turnstone.TurnReport) // what a node reports; nil: the truth
	build    func(ctx context.Context, namespace string) error
	// step is called before and after each effect; an error is the caller's answer.
	step func() error
}

// A ticket is a turn.
type ticket struct {
	order    turns.Order
	tenant   string
	runs     int
	expired  bool
	canceled bool
	end      chan struct{} // closed when it may end
	over     bool
}

func newServer() *server {
	return &server{tickets: map[string]*ticket{}, keys: map[string]string{}, sessions: map[string]int{},
		most: map[string]int{}, texts: map[string]string{"/a.md": "```sh\ntrue\n```\n"}}
}

// do makes an effect, between two steps.
func (s *server) do(f func() error) error {
	if s.step != nil {
		if err := s.step(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	err := f()
	s.mu.Unlock()
	if err == nil && s.step != nil {
		err = s.step()
	}
	return err
}

var errCrash = errors.New("the operator has crashed")

func none(what string) error {
	return turnstone.Errorf("test", turnstone.KindNotFound, what, "is not there")
}

func (s *server) Document(_ context.Context, _ string, from v1alpha1.DocumentSource) (b []byte, err error) {
	err = s.do(func() error {
		text, has := s.texts[from.Path]
		if b = []byte(text); !has {
			return none(from.Path)
		}
		return nil
	})
	return b, err
}

func (s *server) Reserve(_ context.Context, namespace string, o turns.Order) (id string, err error) {
	err = s.do(func() error {
		for n := range 10 {
			k := fmt.Sprint(namespace, "/", o.Key, "/", n)
			has := false
			if id, has = s.keys[k]; has && s.tickets[id].expired {
				continue
			}
			if !has {
				id = fmt.Sprintf("tk_%d", len(s.tickets))
				s.keys[k], s.tickets[id] = id, &ticket{order: o, tenant: namespace, end: make(chan struct{})}
			}
			return nil
		}
		return errors.New("too many tickets")
	})
	return id, err
}

func (s *server) Follow(ctx context.Context, namespace, id string, o turns.Order) (p *turnstone.TurnReport, err error) {
	var t *ticket
	err = s.do(func() error {
		t = s.tickets[id]
		switch {
		case t == nil || t.tenant != namespace:
			return none(id)
		case t.expired:
			return &turns.NotStarted{Err: turns.ErrExpired}
		case t.runs > 0:
			return nil
		}
		if _, has := s.sessions[o.Session]; !has && o.Session != "" {
			return none("session " + o.Session) // a name is not enough: it may be another one's by now
		}
		t.runs++
		if o.Session != "" {
			running := 1
			for _, x := range s.tickets {
				if x != t && x.runs > 0 && !x.over && x.order.Session == o.Session && x.tenant == namespace {
					running++
				}
			}
			s.most[o.Session] = max(s.most[o.Session], running)
		}
		return nil
	})
	if errors.Is(err, errCrash) {
		return nil, &turns.NotStarted{Err: err}
	}
	if err != nil {
		return nil, err
	}
	if text, err := o.Document(ctx); err != nil || len(text) == 0 {
		return nil, fmt.Errorf("the document: %w", err)
	}
	select {
	case <-t.end:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err = s.do(func() error {
		if !t.over && o.Session != "" {
			s.sessions[o.Session]++
		}
		t.over = true
		p = &turnstone.TurnReport{ID: turnstone.TurnID("t_" + id), Result: turnstone.ResultPassed, Started: time.Now(),
			Session: o.Session, Receipt: "a receipt", Steps: []turnstone.StepReport{{Status: turnstone.StepPassed}}}
		if s.lie != nil {
			s.lie(p)
		}
		if t.canceled {
			p.Result, p.Kind, p.Error = turnstone.ResultError, turnstone.KindCanceled, "it was canceled"
		}
		return nil
	})
	if err != nil {
		return nil, &turns.NotStarted{Err: err} // a process that has crashed says nothing
	}
	return p, nil
}

func (s *server) Cancel(_ context.Context, namespace, id string) error {
	return s.do(func() error {
		t := s.tickets[id]
		if t == nil || t.tenant != namespace {
			return none(id)
		}
		if !t.over && !t.canceled {
			t.canceled = true
			close(t.end)
		}
		return nil
	})
}

// let lets the turn of an object end, once it is there.
func (s *server) let(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.order.Key == key && t.runs > 0 && !t.expired {
			close(t.end)
			return true
		}
	}
	return false
}

// running returns how many turns of a tenant run.
func (s *server) running(tenant string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.tenant == tenant && t.runs > 0 && !t.over {
			n++
		}
	}
	return n
}

// ran returns how often the turns of an object ran.
func (s *server) ran(key string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.order.Key == key {
			n += t.runs
		}
	}
	return n
}

func (s *server) Make(_ context.Context, _, name, _ string) (string, error) {
	return "s_" + name, s.do(func() error {
		if _, has := s.sessions["s_"+name]; !has {
			s.sessions["s_"+name] = 0
		}
		return nil
	})
}

func (s *server) Fork(_ context.Context, _ string, from v1alpha1.TurnRef, branch string) (id, name string, err error) {
	if err := turnstone.CheckName(turnstone.NameOfBranch, branch); err != nil {
		return "", "", err
	}
	return "s_" + from.Session, from.Session, s.do(func() error {
		if _, has := s.sessions["s_"+from.Session]; !has {
			return none(from.Session)
		}
		return nil
	})
}

func (s *server) Head(_ context.Context, _, session, _ string) (h *v1alpha1.Head, n int64, err error) {
	err = s.do(func() error {
		if n = int64(s.sessions[session]); n > 0 {
			h = &v1alpha1.Head{Turn: "t_", Number: n}
		}
		return nil
	})
	return h, n, err
}

func (s *server) Remove(_ context.Context, _, session, branch string) error {
	return s.do(func() error {
		switch branch {
		case "":
			delete(s.sessions, "s_"+session)
		case "main":
			return turnstone.Errorf("test", turnstone.KindInvalid, branch, "cannot be removed")
		default:
			return turnstone.CheckName(turnstone.NameOfBranch, branch)
		}
		return nil
	})
}

func (s *server) Build(ctx context.Context, namespace, image string) (turnstone.Digest, error) {
	if s.build != nil {
		if err := s.build(ctx, namespace); err != nil {
			return "", err
		}
	}
	err := s.do(func() error {
		s.builds++
		if image == "missing" {
			return none(image)
		}
		return nil
	})
	return sum, err
}
