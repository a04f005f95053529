package service

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/pod"
	"turnstone.dev/turnstone/shim/rootfs"
	"turnstone.dev/turnstone/shim/spec"
)

// A mood is how a sandbox answers.
type mood int

const (
	prompt mood = iota
	slow
	failing
	stuck // never
	moods
)

var errFake = errors.New("the sandbox has failed on purpose")

// A fake is a sandbox without a machine. It answers in the moods, one after the other, and counts
// what lives.
type fake struct {
	mu       sync.Mutex
	moods    []mood
	machines int
	creating int
	alive    map[*fakeProcess]bool
	done     chan struct{} // of the machine
}

func (f *fake) answer(ctx context.Context) error {
	f.mu.Lock()
	done := f.done
	f.mu.Unlock()
	return f.answerUntil(ctx, done)
}

// answerUntil answers unless done is closed before; nil: never.
func (f *fake) answerUntil(ctx context.Context, done <-chan struct{}) error {
	f.mu.Lock()
	m := prompt
	if len(f.moods) > 0 {
		m, f.moods = f.moods[0], f.moods[1:]
	}
	f.mu.Unlock()
	wait := make(<-chan time.Time)
	switch m {
	case failing:
		return errFake
	case slow:
		wait = time.After(time.Second) //wait: the bubble's clock: no other test has this mood
	case prompt:
		wait = time.After(time.Microsecond) //wait: an answer at once, in a bubble or not
	}
	select {
	case <-wait:
		return nil
	case <-done:
		return errFake
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fake) launch(ctx context.Context, _ *spec.Pod, _ string) (machine, error) {
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines++
	f.done = make(chan struct{})
	return f, nil
}

func (f *fake) Create(ctx context.Context, _ string, _ rootfs.Root, _ *spec.Container) (group, error) {
	f.count(1)
	defer f.count(-1)
	if err := f.answerUntil(ctx, nil); err != nil { // the copy on the host outlives the machine
		return nil, err
	}
	return fakeGroup{f}, nil
}

func (f *fake) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creating += n
}

func (f *fake) Done() <-chan struct{} { return f.done }
func (f *fake) Err() error            { return nil }
func (f *fake) Substrate() string     { return "fake" }
func (f *fake) Used() turnstone.Used  { return turnstone.Used{} }

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines--
	close(f.done)
	for p := range f.alive {
		f.endLocked(p, 128+int(syscall.SIGKILL))
	}
	return nil
}

func (f *fake) endLocked(p *fakeProcess, code int) {
	if f.alive[p] {
		delete(f.alive, p)
		p.code, p.at = code, time.Now()
		close(p.ended)
	}
}

type fakeGroup struct{ f *fake }

func (g fakeGroup) Start(ctx context.Context, _ pod.IO) (running, error) {
	if err := g.f.answer(ctx); err != nil {
		return nil, err
	}
	g.f.mu.Lock()
	defer g.f.mu.Unlock()
	if g.f.machines == 0 {
		return nil, errFake
	}
	p := &fakeProcess{f: g.f, ended: make(chan struct{})}
	g.f.alive[p] = true
	return p, nil
}

func (g fakeGroup) Exec(ctx context.Context, _ string, _ guest.Process, files pod.IO) (running, error) {
	return g.Start(ctx, files)
}
func (g fakeGroup) Update(ctx context.Context, _ guest.Limits) error { return g.f.answer(ctx) }
func (g fakeGroup) CopyBack(ctx context.Context) error               { return g.f.answer(ctx) }
func (g fakeGroup) Remove(ctx context.Context) error                 { return g.f.answer(ctx) }
func (g fakeGroup) Stats(ctx context.Context) (guest.Stats, error) {
	return guest.Stats{}, g.f.answer(ctx)
}

type fakeProcess struct {
	f     *fake
	ended chan struct{}
	code  int
	at    time.Time
	oom   bool
}

func (p *fakeProcess) OutOfMemory() bool                                      { return p.oom }
func (p *fakeProcess) Ended() <-chan struct{}                                 { return p.ended }
func (p *fakeProcess) Exit() (int, time.Time)                                 { return p.code, p.at }
func (p *fakeProcess) Resize(ctx context.Context, columns, rows uint32) error { return p.f.answer(ctx) }

func (p *fakeProcess) Kill(ctx context.Context, sig syscall.Signal) error {
	if err := p.f.answer(ctx); err != nil {
		return err
	}
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		p.f.endLocked(p, 128+int(sig))
	}
	return nil
}

// fakeShutdown notes that the shim is to end.
type fakeShutdown struct {
	once sync.Once
	done chan struct{}
}

func (s *fakeShutdown) Shutdown()                                    { s.once.Do(func() { close(s.done) }) }
func (s *fakeShutdown) RegisterCallback(func(context.Context) error) {}
func (s *fakeShutdown) Done() <-chan struct{}                        { return s.done }
func (s *fakeShutdown) Err() error                                   { return nil }

// fakeService returns a service with a fake sandbox that is to answer in the moods.
func fakeService(t testing.TB, moods ...mood) (*Service, *fake) {
	t.Helper()
	f := &fake{moods: moods, alive: map[*fakeProcess]bool{}}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	return &Service{ctx: log.WithLogger(context.Background(), logrus.NewEntry(quiet)),
		settings: Settings{KillLimit: 60, CPUs: 1, Memory: 1 << 30, Disk: 1 << 30, MaxCPUs: 8,
			MaxMemory: 1 << 40, MaxDisk: 1 << 40},
		events: make(chan event, maxEvents), stopped: make(chan struct{}), launch: f.launch,
		shutdown: &fakeShutdown{done: make(chan struct{})}, containers: map[string]*container{}}, f
}
