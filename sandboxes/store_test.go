package sandboxes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// holderName is the process name of a test's holder, by which the test binary recognizes its role.
const holderName = "turnstone-test-holder"

func TestMain(m *testing.M) {
	if os.Args[0] == holderName {
		os.Exit(holderMain())
	}
	if os.Args[0] == ownerName {
		os.Exit(ownerMain())
	}
	os.Exit(m.Run())
}

// holderMain is a holder of a fake machine. The image determines its behavior.
func holderMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s := sandboxes.NewStore(os.Args[2])
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := s.Hold(ctx, turnstone.SandboxID(os.Args[3]), openFake, os.Stdin,
		os.NewFile(3, "reports"), log)
	if err != nil {
		return 1
	}
	return 0
}

func openFake(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec,
	progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	if spec.Spare {
		return openSpare(spec)
	}
	details := sandboxes.Details{Substrate: "fake", Isolation: "none",
		Template: turnstone.DigestBytes(nil)}
	m, err := sandboxtest.New(sandboxtest.Serve(fake(spec.Image == "rude")))
	if err != nil {
		return nil, details, err
	}
	progress("making " + string(id))
	switch spec.Image {
	case "slow":
		<-ctx.Done()
		return nil, details, context.Cause(ctx)
	case "deaf": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Minute)
	case "broken":
		return nil, details, turnstone.Errorf("test", turnstone.KindUnavailable, "the machine",
			"out of steam").WithHint("heat it")
	case "unknown":
		return nil, details, turnstone.NewError("test", turnstone.KindNotFound, "template unknown",
			nil)
	case "crash":
		_, _ = os.Stderr.WriteString("the last words\n")
		os.Exit(7)
	case "dying":
		go func() {
			for _, err := os.Stat(spec.Env[0][len("WHEN="):]); err != nil; _, err = os.Stat(spec.Env[0][len("WHEN="):]) {
				time.Sleep(time.Millisecond)
			}
			m.Die(errors.New("it ran out of memory"))
		}()
	case "env":
		progress(strings.Join(spec.Env, ","))
	case "session":
		return openSession(spec)
	case "live":
		return openLive(m, spec, details)
	case "agent":
		r, err := openReal()
		return r, details, err
	case "old": // an agent without Sandbox.activity
		m, err := sandboxtest.New(sandboxtest.Serve(wire.NewDispatcher()))
		return m, details, err
	}
	return m, details, nil
}

// fake implements what the holder and the tests request.
func fake(rude bool) *wire.Dispatcher {
	a := &fakeAgent{rude: rude}
	d := wire.NewDispatcher()
	wire.RegisterProcess(d, processes{a: a})
	wire.RegisterSandbox(d, counts{a: a})
	return d
}

type fakeAgent struct {
	rude bool // it ends connections that follow its commands

	mu      sync.Mutex
	running int64
	told    []*wire.Conn

	defaults wire.SandboxSetDefaultsParams
}

// add changes the number of commands that run.
func (a *fakeAgent) add(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running += n
	for _, c := range a.told {
		_ = c.EmitSandboxActivityChanged(c.Context(),
			&wire.SandboxActivityChangedEvent{Running: a.running})
	}
}

type counts struct {
	wire.SandboxServer
	a *fakeAgent
}

func (s counts) Activity(ctx context.Context, c *wire.Conn) (*wire.SandboxActivityResult, error) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.a.rude {
		wire.AfterReply(ctx, func() { _ = c.Close() })
	}
	s.a.told = append(s.a.told, c)
	return &wire.SandboxActivityResult{Running: s.a.running}, nil
}

// Seal refuses: the fake has no channels.
func (counts) Seal(context.Context, *wire.Conn, *wire.SandboxSealParams) (*wire.SandboxSealResult,
	error) {
	return nil, turnstone.Errorf("test", turnstone.KindUnavailable, "the key", "cannot be made")
}

func (s counts) SetDefaults(_ context.Context, _ *wire.Conn,
	p *wire.SandboxSetDefaultsParams) error {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	s.a.defaults = *p
	return nil
}

type processes struct {
	wire.ProcessServer
	a *fakeAgent
}

// Start runs nothing: it copies its input to its output.
func (p processes) Start(ctx context.Context, c *wire.Conn,
	q *wire.ProcessStartParams) (*wire.ProcessStartResult, error) {
	out, err := c.Sender(q.StdoutStream)
	if err != nil {
		return nil, err
	}
	errs, err := c.Sender(q.StderrStream)
	if err != nil {
		return nil, err
	}
	_ = errs.Close()
	var in io.Reader = strings.NewReader(strings.Join(q.Argv, " "))
	if q.StdinStream != 0 {
		if in, err = c.Receiver(q.StdinStream); err != nil {
			return nil, err
		}
	}
	p.a.add(1)
	wire.AfterReply(ctx, func() {
		c.Go(func() {
			n, _ := io.Copy(out, in)
			_ = out.Close()
			p.a.add(-1)
			_ = c.EmitProcessExited(c.Context(),
				&wire.ProcessExitedEvent{ProcessID: q.ProcessID, StdoutEnd: n})
		})
	})
	return &wire.ProcessStartResult{ProcessID: q.ProcessID, PID: 1}, nil
}

func newStore(t *testing.T) *sandboxes.Store {
	t.Helper()
	s := sandboxes.NewStore(t.TempDir())
	s.Holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{holderName}}
	t.Cleanup(func() {
		all, err := s.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, i := range all {
			if err := s.Remove(context.Background(), i.ID); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func spec(image string) sandboxes.Spec {
	return sandboxes.Spec{Image: image, Shape: turnstone.DefaultShape(), TTL: time.Minute}
}

func create(t *testing.T, s *sandboxes.Store, sp sandboxes.Spec) sandboxes.Info {
	t.Helper()
	i, err := s.Create(t.Context(), sp, nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func use(t *testing.T, s *sandboxes.Store, id turnstone.SandboxID, text string) {
	t.Helper()
	conn, err := s.Dial(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(conn)
	defer func() { _ = c.Close() }()
	var out bytes.Buffer
	_, err = c.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"cat"}},
		wire.Stdio{In: strings.NewReader(text), Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != text {
		t.Fatalf("%d bytes came back of %d", out.Len(), len(text))
	}
}

// await waits until the sandbox is in the state.
func await(t *testing.T, s *sandboxes.Store, id turnstone.SandboxID,
	want sandboxes.State) sandboxes.Info {
	t.Helper()
	var i sandboxes.Info
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(
		10 * time.Millisecond) {
		var err error
		if i, err = s.Get(id); err != nil {
			t.Fatal(err)
		}
		if i.State == want {
			return i
		}
	}
	t.Fatalf("it is %s (%s), not %s", i.State, i.Reason, want)
	return i
}

func names(t *testing.T, s *sandboxes.Store) []string {
	t.Helper()
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var n []string
	for _, i := range all {
		n = append(n, i.Name+" "+string(i.State))
	}
	return n
}

// TestLife covers all phases of a sandbox's life, in another process.
func TestLife(t *testing.T) {
	s := newStore(t)
	sp := spec("env")
	sp.Name, sp.Env = "mine", []string{"A=b", "C=d"}
	var told []string
	i, err := s.Create(t.Context(), sp, func(what string) { told = append(told, what) })
	if err != nil {
		t.Fatal(err)
	}
	if i.State != sandboxes.StateReady || i.Substrate != "fake" || i.Expires == nil || i.Version != turnstone.Version ||
		i.Name != "mine" {
		t.Errorf("%+v", i)
	}
	if want := []string{"making " + string(i.ID), "A=b,C=d"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	for _, ref := range []string{string(i.ID), string(i.ID[:12]), "mine"} {
		if got, err := s.Find(t.Context(), ref); err != nil || got.ID != i.ID {
			t.Errorf("find %q: %v, %v", ref, got.ID, err)
		}
	}
	if got := names(t, s); !slices.Equal(got, []string{"mine ready"}) {
		t.Errorf("%q", got)
	}
	use(t, s, i.ID, strings.Repeat("0123456789", 1<<18)) // larger than every window and buffer
	await(t, s, i.ID, sandboxes.StateReady)
	if err := s.Stop(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if got := await(t, s, i.ID, sandboxes.StateStopped); got.Reason != "on request" {
		t.Errorf("reason %q", got.Reason)
	}
	_, err = s.Dial(t.Context(), i.ID)
	if turnstone.KindOf(err) != turnstone.KindDead ||
		!strings.Contains(err.Error(), "it is stopped: on request") {
		t.Errorf("dial: %v", err)
	}
	if err := s.Stop(t.Context(), i.ID); err != nil {
		t.Errorf("stopping it again: %v", err)
	}
	if err := s.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(i.ID); turnstone.KindOf(err) != turnstone.KindNotFound ||
		turnstone.HintOf(err) == "" {
		t.Errorf("get: %v", err)
	}
	if got := names(t, s); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

func TestTimeUp(t *testing.T) {
	s := newStore(t)
	sp := spec("fine")
	sp.TTL = 300 * time.Millisecond
	i := create(t, s, sp)
	if got := await(t, s, i.ID, sandboxes.StateStopped); got.Reason != "its time was up (300ms)" {
		t.Errorf("reason %q", got.Reason)
	}
	sp.TTL = 0
	if i := create(t, s, sp); i.Expires != nil {
		t.Errorf("it expires at %v", i.Expires)
	}
}

func TestMachineDies(t *testing.T) {
	s := newStore(t)
	sp, when := spec("dying"), filepath.Join(t.TempDir(), "when")
	sp.Env = []string{"WHEN=" + when}
	i := create(t, s, sp)
	if err := os.WriteFile(when, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := await(t, s, i.ID, sandboxes.StateFailed); got.Reason != "it ran out of memory" {
		t.Errorf("reason %q", got.Reason)
	}
}

// TestHolderDies: any reader detects the death, and concurrent readers agree.
func TestHolderDies(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	if err := syscall.Kill(i.Holder.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; time.Sleep(time.Millisecond) {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", i.Holder.PID))
		gone = err != nil
	}
	var wrong atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got, err := s.Get(i.ID); err != nil || got.State != sandboxes.StateFailed {
				wrong.Add(1)
				t.Errorf("%s %v", got.State, err)
			}
		})
	}
	wg.Wait()
	if got := await(t, s, i.ID, sandboxes.StateFailed); !strings.Contains(got.Reason,
		"was killed") {
		t.Errorf("reason %q", got.Reason)
	}
	// The name is free again.
	sp := spec("fine")
	sp.Name = "again"
	j := create(t, s, sp)
	_ = syscall.Kill(j.Holder.PID, syscall.SIGKILL)
	await(t, s, j.ID, sandboxes.StateFailed)
	create(t, s, sp)
}

func TestCreateFails(t *testing.T) {
	for _, tt := range []struct {
		image, text string
		kind        turnstone.Kind
		left        []string
	}{
		{"broken", "out of steam", turnstone.KindUnavailable, nil},
		{"unknown", "template unknown", turnstone.KindNotFound, nil},
		{"crash", "the last words", turnstone.KindDead, nil},
	} {
		t.Run(tt.image, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Create(t.Context(), spec(tt.image), nil)
			if turnstone.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v", turnstone.KindOf(err), err)
			}
			if got := names(t, s); !slices.Equal(got, tt.left) {
				t.Errorf("left: %q", got)
			}
		})
	}
	s := newStore(t)
	sp := spec("fine")
	sp.Name = "n"
	i := create(t, s, sp)
	if _, err := s.Create(t.Context(), sp, nil); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), string(i.ID)) {
		t.Errorf("a name twice: %v", err)
	}
	for _, bad := range []func(*sandboxes.Spec){
		func(s *sandboxes.Spec) { s.Name = "a/b" }, func(s *sandboxes.Spec) { s.Name = "sb_1" },
		func(s *sandboxes.Spec) { s.TTL = -1 }, func(s *sandboxes.Spec) { s.Shape.CPUs = 0 },
		func(s *sandboxes.Spec) { s.Env = []string{"x"} },
	} {
		sp := spec("fine")
		bad(&sp)
		if _, err := s.Create(t.Context(), sp, nil); turnstone.KindOf(
			err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", sp, err)
		}
	}
	entries, err := os.ReadDir(s.Dir())
	if err != nil || len(entries) != 1 {
		t.Errorf("%d folders, %v", len(entries), err)
	}
}

// TestCreateInterrupted: nothing remains, whether the holder reacts or not.
func TestCreateInterrupted(t *testing.T) {
	for _, image := range []string{"slow", "deaf"} {
		t.Run(image, func(t *testing.T) {
			s := newStore(t)
			s.KillAfter = 300 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := s.Create(ctx, spec(image),
				func(string) { time.AfterFunc(50*time.Millisecond, cancel) }) //wait: any moment is right
			if turnstone.KindOf(err) != turnstone.KindCanceled {
				t.Errorf("%v", err)
			}
			entries, err := os.ReadDir(s.Dir())
			if err != nil || len(entries) != 0 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

// TestRemoveByForce: a holder that ignores the request to end is killed.
func TestRemoveByForce(t *testing.T) {
	s := newStore(t)
	s.KillAfter = 300 * time.Millisecond
	i := create(t, s, spec("fine"))
	if err := syscall.Kill(i.Holder.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(s.Dir()); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestDamaged(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	if err := s.Stop(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(filepath.Join(s.Dir(), string(i.ID), "state.json"), []byte("{"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, s); !slices.Equal(got, []string{" failed"}) {
		t.Errorf("%q", got)
	}
	if _, err := s.Dial(t.Context(), i.ID); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("%v", err)
	}
	if err := s.Remove(t.Context(), i.ID); err != nil {
		t.Error(err)
	}
}
