package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	sandboxAPI "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"
)

// A call is one of containerd's.
type call struct {
	what     string
	id, exec string
	signal   uint32
	limit    time.Duration // of the caller's patience
}

func (c call) String() string { return fmt.Sprintf("%s %s %s %d", c.what, c.id, c.exec, c.signal) }

// calls are those of both interfaces.
var calls = []string{"CreateSandbox", "StartSandbox", "StopSandbox", "ShutdownSandbox", "WaitSandbox",
	"SandboxStatus", "SandboxMetrics", "Create", "Create", "Create", "Start", "Start", "Start", "Exec",
	"Exec", "State", "Wait", "Kill", "Kill", "Kill", "Delete", "Delete", "ResizePty", "CloseIO",
	"Update", "Stats", "Pids", "Shutdown"}

func drawCall(what []string) *rapid.Generator[call] {
	return rapid.Custom(func(t *rapid.T) call {
		return call{what: rapid.SampledFrom(what).Draw(t, "call"),
			id:     rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "id"),
			exec:   rapid.SampledFrom([]string{"", "", "e", "f"}).Draw(t, "exec"),
			signal: rapid.SampledFrom([]uint32{9, 9, 15, 28, 0}).Draw(t, "signal"),
			limit: rapid.SampledFrom([]time.Duration{time.Millisecond, 2 * time.Second,
				10 * time.Minute}).Draw(t, "limit")}
	})
}

// do does c.
func (c call) do(ctx context.Context, s *Service, bundle string) (err error) {
	x, y := s.sandbox(), &tasks{s}
	exec := &anypb.Any{Value: []byte(`{"args":["true"],"cwd":"/"}`)}
	switch c.what {
	case "CreateSandbox":
		_, err = x.CreateSandbox(ctx, &sandboxAPI.CreateSandboxRequest{SandboxID: "s"})
	case "StartSandbox":
		_, err = x.StartSandbox(ctx, &sandboxAPI.StartSandboxRequest{SandboxID: "s"})
	case "StopSandbox":
		_, err = x.StopSandbox(ctx, &sandboxAPI.StopSandboxRequest{SandboxID: "s"})
	case "ShutdownSandbox":
		_, err = x.ShutdownSandbox(ctx, &sandboxAPI.ShutdownSandboxRequest{SandboxID: "s"})
	case "WaitSandbox":
		_, err = x.WaitSandbox(ctx, &sandboxAPI.WaitSandboxRequest{SandboxID: "s"})
	case "SandboxStatus":
		_, err = x.SandboxStatus(ctx, &sandboxAPI.SandboxStatusRequest{SandboxID: "s", Verbose: true})
	case "SandboxMetrics":
		_, err = x.SandboxMetrics(ctx, &sandboxAPI.SandboxMetricsRequest{SandboxID: "s"})
	case "Create":
		_, err = y.Create(ctx, &taskAPI.CreateTaskRequest{ID: c.id, Bundle: bundle})
	case "Start":
		_, err = y.Start(ctx, &taskAPI.StartRequest{ID: c.id, ExecID: c.exec})
	case "Exec":
		_, err = y.Exec(ctx, &taskAPI.ExecProcessRequest{ID: c.id, ExecID: "e" + c.exec, Spec: exec})
	case "State":
		_, err = y.State(ctx, &taskAPI.StateRequest{ID: c.id, ExecID: c.exec})
	case "Wait":
		_, err = y.Wait(ctx, &taskAPI.WaitRequest{ID: c.id, ExecID: c.exec})
	case "Kill":
		_, err = y.Kill(ctx, &taskAPI.KillRequest{ID: c.id, ExecID: c.exec, Signal: c.signal})
	case "Delete":
		_, err = y.Delete(ctx, &taskAPI.DeleteRequest{ID: c.id, ExecID: c.exec})
	case "ResizePty":
		_, err = y.ResizePty(ctx, &taskAPI.ResizePtyRequest{ID: c.id, ExecID: c.exec, Width: 80 + c.signal,
			Height: 24})
	case "CloseIO":
		_, err = y.CloseIO(ctx, &taskAPI.CloseIORequest{ID: c.id, ExecID: c.exec, Stdin: true})
	case "Update":
		_, err = y.Update(ctx, &taskAPI.UpdateTaskRequest{ID: c.id, Resources: &anypb.Any{
			Value: []byte("{}")}})
	case "Stats":
		_, err = y.Stats(ctx, &taskAPI.StatsRequest{ID: c.id})
	case "Pids":
		_, err = y.Pids(ctx, &taskAPI.PidsRequest{ID: c.id})
	case "Shutdown":
		_, err = y.Shutdown(ctx, &taskAPI.ShutdownRequest{ID: c.id})
	}
	return err
}

// known reports whether callers know the error.
func known(err error) bool {
	native := errgrpc.ToNative(err)
	return err == nil || errdefs.IsNotFound(native) || errdefs.IsFailedPrecondition(native) ||
		errdefs.IsAlreadyExists(native) || errdefs.IsInvalidArgument(native) ||
		errdefs.IsCanceled(native) || errdefs.IsDeadlineExceeded(native) ||
		strings.Contains(err.Error(), errFake.Error())
}

// A round runs calls at once, and collects what is wrong.
type round struct {
	s      *Service
	f      *fake
	bundle string
	mu     sync.Mutex
	wrong  []string
}

func (r *round) report(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

func (r *round) do(c call) {
	ctx, cancel := context.WithTimeout(log.WithLogger(context.Background(), log.G(r.s.ctx)), c.limit)
	defer cancel()
	began := time.Now()
	err := c.do(ctx, r.s, r.bundle)
	if !known(err) {
		r.report("%v: nobody knows the error %v", c, err)
	}
	if took := time.Since(began); took > c.limit+time.Second {
		r.report("%v: it took %v, its caller had %v", c, took, c.limit)
	}
	if r.f.mu.Lock(); c.what == "ShutdownSandbox" && err == nil && r.f.creating > 0 {
		r.report("%v: a container is still being created", c)
	}
	r.f.mu.Unlock()
}

// run runs the calls of each thread one after the other, and all threads at once; it ends the sandbox
// and checks that nothing is left.
func (r *round) run(threads [][]call) {
	var all sync.WaitGroup
	for _, thread := range threads {
		all.Go(func() {
			for _, c := range thread {
				r.do(c)
			}
		})
	}
	all.Wait()
	r.do(call{what: "ShutdownSandbox", limit: time.Minute})
	<-r.s.shutdown.Done()
	time.Sleep(time.Hour) // of the bubble: all bounds are over
	synctest.Wait()
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if r.f.machines != 0 || r.f.creating != 0 || len(r.f.alive) != 0 {
		r.report("left: %d machines, %d creations, %d processes", r.f.machines, r.f.creating,
			len(r.f.alive))
	}
	close(r.s.events)
	r.checkEvents()
}

// checkEvents checks that every start has one end, in this order, and that nothing follows a
// deletion.
func (r *round) checkEvents() {
	runs, exists := map[string]bool{}, map[string]bool{}
	for e := range r.s.events {
		switch x := e.what.(type) {
		case *eventstypes.TaskCreate:
			exists[x.ContainerID] = true
		case *eventstypes.TaskStart:
			runs[x.ContainerID+"/"+x.ContainerID] = true
		case *eventstypes.TaskExecStarted:
			runs[x.ContainerID+"/"+x.ExecID] = true
		case *eventstypes.TaskExit:
			if x.ID == x.ContainerID && !exists[x.ContainerID] {
				r.report("container %s ends after its deletion", x.ID)
			}
			delete(runs, x.ContainerID+"/"+x.ID)
		case *eventstypes.TaskDelete:
			if !exists[x.ContainerID] || runs[x.ContainerID+"/"+x.ContainerID] {
				r.report("container %s is deleted twice, or runs", x.ContainerID)
			}
			delete(exists, x.ContainerID)
		}
	}
	for name := range runs {
		r.report("%s: its end was not announced", name)
	}
}

// testBundle returns a folder with the description of a container.
func testBundle(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(&specs.Spec{Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace},
			{Type: specs.NetworkNamespace, Path: "/n"}, {Type: specs.IPCNamespace, Path: "/i"},
			{Type: specs.MountNamespace}}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRaces checks calls of both interfaces in all orders and at once, of a sandbox that answers in
// all moods: each has an answer that containerd knows in the time that its caller has, and nothing is
// left at the end, no goroutine either.
func TestRaces(t *testing.T) {
	bundle := testBundle(t)
	rapid.Check(t, func(rt *rapid.T) {
		answers := rapid.SliceOfN(rapid.IntRange(0, int(2*moods)), 0, 20).Draw(rt, "answers")
		var how []mood
		for _, n := range answers {
			how = append(how, mood(max(0, n-int(moods)-1))) // most are prompt
		}
		threads := rapid.SliceOfN(rapid.SliceOfN(drawCall(calls), 1, 12), 1, 4).Draw(rt, "threads")
		if rapid.Bool().Draw(rt, "runs") {
			begin := []call{{what: "CreateSandbox", limit: time.Hour}, {what: "StartSandbox",
				limit: time.Hour}, {what: "Create", id: "a", limit: time.Hour},
				{what: "Start", id: "a", limit: time.Hour}}[:rapid.IntRange(3, 4).Draw(rt, "begun")]
			threads[0] = slices.Concat(begin, threads[0])
		}
		var r *round
		synctest.Test(t, func(t *testing.T) {
			s, f := fakeService(t, how...)
			r = &round{s: s, f: f, bundle: bundle}
			r.run(threads)
		})
		if len(r.wrong) > 0 {
			rt.Fatal(strings.Join(r.wrong, "\n"))
		}
	})
}

// TestSlowStart checks that a start of the sandbox that takes long holds up nobody, and ends with
// the sandbox.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := fakeService(t, stuck)
		r := &round{s: s, f: f}
		r.do(call{what: "CreateSandbox", limit: time.Second})
		started := make(chan error, 1)
		go func() {
			_, err := s.sandbox().StartSandbox(context.Background(), &sandboxAPI.StartSandboxRequest{})
			started <- err
		}()
		synctest.Wait()
		for _, what := range calls {
			if what != "StopSandbox" && what != "ShutdownSandbox" && what != "WaitSandbox" {
				r.do(call{what: what, id: "a", signal: 9, limit: time.Second})
			}
		}
		r.run([][]call{{{what: "StopSandbox", limit: time.Second}}})
		if err := <-started; !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
			t.Errorf("the start: %v", err)
		}
		for _, what := range r.wrong {
			t.Error(what)
		}
	})
}

// TestFlood checks that floods of signals and sizes of a terminal keep the sandbox busy with a few,
// that the last size holds, and that a signal which ends the process arrives.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := fakeService(t)
		r := &round{s: s, f: f, bundle: testBundle(t)}
		for _, what := range []string{"CreateSandbox", "StartSandbox", "Create", "Start"} {
			r.do(call{what: what, id: "a", limit: time.Minute})
		}
		_, p, err := s.find("a", "")
		if err != nil {
			t.Fatal(err)
		}
		counted := &countedProcess{fakeProcess: p.running.(*fakeProcess)}
		p.running = counted
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() { r.do(call{what: "Kill", id: "a", signal: 28, limit: time.Minute}) })
			all.Go(func() { r.do(call{what: "ResizePty", id: "a", signal: uint32(i), limit: time.Minute}) })
		}
		all.Wait()
		counted.mu.Lock()
		if counted.signals > 100 || counted.sizes > 100 || counted.columns != p.size.columns {
			t.Errorf("%d signals, %d sizes, the last %d, asked for was %d", counted.signals,
				counted.sizes, counted.columns, p.size.columns)
		}
		counted.mu.Unlock()
		r.run([][]call{{{what: "Kill", id: "a", signal: uint32(syscall.SIGTERM), limit: time.Minute},
			{what: "Wait", id: "a", limit: time.Minute}}})
		if _, code, _ := p.state(); code != 128+uint32(syscall.SIGTERM) {
			t.Errorf("exit code %d", code)
		}
		for _, what := range r.wrong {
			t.Error(what)
		}
	})
}

// A countedProcess counts what reaches the sandbox.
type countedProcess struct {
	*fakeProcess
	mu             sync.Mutex
	signals, sizes int
	columns        uint32
}

func (p *countedProcess) Kill(ctx context.Context, sig syscall.Signal) error {
	p.mu.Lock()
	p.signals++
	p.mu.Unlock()
	return p.fakeProcess.Kill(ctx, sig)
}

func (p *countedProcess) Resize(ctx context.Context, columns, rows uint32) error {
	p.mu.Lock()
	p.sizes++
	p.columns = columns
	p.mu.Unlock()
	return p.fakeProcess.Resize(ctx, columns, rows)
}

// TestOutOfMemory checks that it is announced before the end of the container.
func TestOutOfMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := fakeService(t)
		r := &round{s: s, f: f, bundle: testBundle(t)}
		for _, what := range []string{"CreateSandbox", "StartSandbox", "Create", "Start"} {
			r.do(call{what: what, id: "a", limit: time.Minute})
		}
		f.mu.Lock()
		for p := range f.alive {
			p.oom = true
			f.endLocked(p, 137)
		}
		f.mu.Unlock()
		r.do(call{what: "Wait", id: "a", limit: time.Minute})
		r.do(call{what: "ShutdownSandbox", limit: time.Minute})
		synctest.Wait()
		close(s.events)
		var topics []string
		for e := range s.events {
			topics = append(topics, e.topic)
		}
		if want := []string{"/tasks/create", "/tasks/start", "/tasks/oom", "/tasks/exit"}; !slices.Equal(
			topics, want) {
			t.Errorf("%v", topics)
		}
		<-s.shutdown.Done()
	})
}

// TestExpire checks that a shim which nobody asks for a sandbox ends, and no other.
func TestExpire(t *testing.T) {
	for _, asked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, f := fakeService(t)
			r := &round{s: s, f: f}
			s.expire()
			if asked {
				r.do(call{what: "CreateSandbox", limit: time.Second})
			}
			time.Sleep(2 * expireAfter)
			select {
			case <-s.shutdown.Done():
				if asked {
					t.Error("a shim with a sandbox has ended")
				}
			default:
				if !asked {
					t.Error("it does not end")
				}
			}
		})
	}
}

// TestShutdownWhileCreating checks that no creation outlives the sandbox: what it has mounted would be
// left.
func TestShutdownWhileCreating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := fakeService(t, prompt, stuck)
		r := &round{s: s, f: f, bundle: testBundle(t)}
		r.do(call{what: "CreateSandbox", limit: time.Second})
		r.do(call{what: "StartSandbox", limit: time.Second})
		go r.do(call{what: "Create", id: "a", limit: time.Hour})
		synctest.Wait()
		r.do(call{what: "ShutdownSandbox", limit: time.Minute})
		<-s.shutdown.Done()
		for _, what := range r.wrong {
			t.Error(what)
		}
	})
}
