package agents_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// A server is a control API in memory, as strict as the real one about idempotency keys.
type server struct {
	mu      sync.Mutex
	boxes   map[string]*box
	keys    map[string]string // of creations, to IDs
	created int
	targets map[string]int32         // of pools
	quota   map[string]int           // sandboxes of a tenant; nil: any
	noEnd   atomic.Bool              // End is refused
	holds   map[string]chan struct{} // creations of a tenant wait until it is closed
	nodes   []agents.Node            // nil: n1
	since   time.Time                // when lost nodes answered last
	// answersRemoved: a creation is repeated by an answer about the sandbox that was removed.
	answersRemoved bool
	// fails says how a creation fails; with wait, the sandbox is there and waits for the repetition of the call, which
	// may fail, too. nil: it does not.
	fails func(r *v1.CreateSandboxRequest) (wait bool, err error)
	// answer is what a sandbox answers to FollowContainer; nil: it does what is asked.
	answer   func(ctx context.Context, b *box) error
	holdStop chan struct{} // nil, or stops wait until it is closed
	stopped  []agents.Main // containers
	// step is called before and after each effect; an error is the caller's answer.
	step  func(what string, after bool) error
	over  atomic.Bool  // of what tests make fail: the cause has passed
	lists atomic.Int64 // calls of List
	asked atomic.Int64 // of them, about one object
}

type box struct {
	v1.Sandbox
	request *v1.CreateSandboxRequest
	main    []agents.Main
	stops   int // how often its container was stopped
	inputs  agents.Inputs
	told    chan agents.Process // what its container tells next
	tenant  string
	foreign bool // another client key made it
}

func newServer() *server {
	return &server{boxes: make(map[string]*box), keys: make(map[string]string), targets: make(map[string]int32)}
}

// do makes an effect, between the two calls of step.
func (s *server) do(what string, f func() error) error {
	if s.step != nil {
		if err := s.step(what, false); err != nil {
			return err
		}
	}
	s.mu.Lock()
	err := f()
	s.mu.Unlock()
	if err == nil && s.step != nil {
		err = s.step(what, true)
	}
	return err
}

func (s *server) Create(ctx context.Context, namespace string, r *v1.CreateSandboxRequest) (out *v1.Sandbox, err error) {
	if err := serve.Validate("test", r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	hold := s.holds[namespace]
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	err = s.do("create", func() error {
		k := namespace + "/" + r.IdempotencyKey
		if id, has := s.keys[k]; has {
			b := s.boxes[id]
			if b == nil && id != "" && s.answersRemoved {
				out = &v1.Sandbox{SandboxId: id, Removed: true, State: v1.SandboxState_SANDBOX_STATE_STOPPED, Metadata: r.Metadata}
				return nil
			}
			if b == nil || !proto.Equal(b.request, r) {
				return api.SpendKey(turnstone.Errorf("test", turnstone.KindInvalid, "the key", "was used"))
			}
			if b.State == v1.SandboxState_SANDBOX_STATE_CREATING && s.fails != nil {
				if _, err := s.fails(r); err != nil {
					return err
				}
			}
			b.State = v1.SandboxState_SANDBOX_STATE_READY
			out = proto.Clone(&b.Sandbox).(*v1.Sandbox)
			return nil
		}
		if most, has := s.quota[namespace]; has && s.held(namespace) >= most {
			return turnstone.Errorf("quota.check", turnstone.KindExhausted, "tenant "+namespace,
				"the limit of its sandboxes is %d", most).WithHint("remove a sandbox")
		}
		wait, failed := false, error(nil)
		if s.fails != nil {
			wait, failed = s.fails(r)
		}
		if failed != nil && !wait {
			s.keys[k] = ""
			return failed
		}
		s.created++
		id := fmt.Sprintf("sb_%d", s.created)
		b := &box{tenant: namespace, request: proto.Clone(r).(*v1.CreateSandboxRequest)}
		b.SandboxId, b.State, b.Node, b.Metadata = id, v1.SandboxState_SANDBOX_STATE_READY, s.place(), r.Metadata
		b.ManagedBy = r.ManagedBy
		b.Created, b.Expires = timestamppb.Now(), timestamppb.New(time.Now().Add(r.Timeout.AsDuration()))
		s.boxes[id], s.keys[k] = b, id
		if wait {
			b.State = v1.SandboxState_SANDBOX_STATE_CREATING
			return failed
		}
		out = proto.Clone(&b.Sandbox).(*v1.Sandbox)
		return nil
	})
	return out, err
}

// madeOf counts the sandboxes that were made.
func (s *server) madeOf() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.created
}

// held counts the sandboxes of a tenant. The caller holds mu.
func (s *server) held(namespace string) (n int) {
	for _, b := range s.boxes {
		if b.tenant == namespace {
			n++
		}
	}
	return n
}

func (s *server) List(_ context.Context, namespace, by string) (all []*v1.Sandbox, err error) {
	s.lists.Add(1)
	if !strings.HasSuffix(by, "/") {
		s.asked.Add(1)
	}
	err = s.do("list", func() error {
		for _, b := range s.boxes {
			below := strings.HasSuffix(by, "/") && strings.HasPrefix(b.ManagedBy, by)
			if b.tenant == namespace && (by == "" || b.ManagedBy == by || below) {
				all = append(all, s.seen(b))
			}
		}
		return nil
	})
	return all, err
}

// change changes a sandbox.
func (s *server) change(what, namespace, id string, f func(b *box)) error {
	return s.do(what, func() error {
		b := s.boxes[id]
		if b == nil || b.tenant != namespace {
			return turnstone.Errorf("test", turnstone.KindNotFound, id, "is not there")
		}
		if b.foreign {
			return turnstone.Errorf("test", turnstone.KindDenied, id, "belongs to another client key")
		}
		f(b)
		return nil
	})
}

func (s *server) Delete(_ context.Context, namespace, id string) error {
	return s.change("delete", namespace, id, func(*box) { delete(s.boxes, id) })
}

func (s *server) Pause(_ context.Context, namespace, id string) error {
	return s.change("pause", namespace, id, func(b *box) { b.Paused = true })
}

func (s *server) Resume(_ context.Context, namespace, id string) error {
	return s.change("resume", namespace, id, func(b *box) { b.Paused = false })
}

func (s *server) SetLife(_ context.Context, namespace, id string, life time.Duration) error {
	return s.change("life", namespace, id, func(b *box) { b.Expires = timestamppb.New(time.Now().Add(life)) })
}

func (s *server) FollowContainer(ctx context.Context, namespace, id string, m agents.Main, tell func(agents.Process)) error {
	if m.Stop {
		if s.holdStop != nil {
			select {
			case <-s.holdStop:
			case <-ctx.Done():
			}
		}
		return s.change("stop", namespace, id, func(b *box) { b.stops++; s.stopped = append(s.stopped, m) })
	}
	p, err := s.run(ctx, namespace, id, m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	b := s.boxes[id]
	if b != nil {
		b.told = make(chan agents.Process, 8)
	}
	s.mu.Unlock()
	for b != nil {
		tell(p)
		select {
		case p = <-b.told:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// run starts a container. A fault of the kind NotFound is one of its program.
func (s *server) run(ctx context.Context, namespace, id string, m agents.Main) (agents.Process, error) {
	if s.answer != nil {
		s.mu.Lock()
		b := s.boxes[id]
		s.mu.Unlock()
		if b != nil && b.tenant == namespace {
			if err := s.answer(ctx, b); turnstone.KindOf(err) == turnstone.KindNotFound {
				return agents.Process{Ended: true, Failed: true, Message: err.Error()}, nil
			} else if err != nil {
				return agents.Process{}, err
			}
		}
	}
	in, err := agents.Inputs{}, error(nil)
	if m.Inputs != nil {
		in, err = m.Inputs(ctx)
	}
	if err != nil {
		return agents.Process{Reason: "CreateContainerConfigError", Message: err.Error()}, nil
	}
	return agents.Process{Ready: true}, s.change("run", namespace, id, func(b *box) {
		if len(b.main) == 0 {
			b.main, b.inputs = append(b.main, m), in
		}
	})
}

// says has the container of the only sandbox tell something.
func (s *server) says(p agents.Process) {
	for {
		s.mu.Lock()
		for _, b := range s.boxes {
			if b.told != nil {
				b.told <- p
				s.mu.Unlock()
				return
			}
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

func (s *server) SetPool(_ context.Context, namespace, name string, _ *v1.CreateSandboxRequest, replicas int32,
	_ time.Duration) (agents.Waiting, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets[namespace+"/"+name] = replicas
	return agents.Waiting{Ready: replicas, Making: 2}, nil
}

// target returns what was set for a pool last.
func (s *server) target(pool string) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets[pool]
}

// all returns a copy of the sandboxes.
func (s *server) all() (list []*box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := range maps.Values(s.boxes) {
		c := &box{request: b.request, main: b.main, inputs: b.inputs, tenant: b.tenant}
		proto.Merge(&c.Sandbox, &b.Sandbox)
		list = append(list, c)
	}
	return list
}

var errCrash = errors.New("the operator has crashed")
