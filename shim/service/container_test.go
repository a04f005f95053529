package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sandboxAPI "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
)

// testService returns a service with a container that has been created and not started.
func testService(t *testing.T) (*Service, *container) {
	s, _ := fakeService(t)
	c := s.newContainer(&taskAPI.CreateTaskRequest{ID: "c"}, func() {})
	c.pod = fakeGroup{}
	close(c.made)
	s.containers[c.id] = c
	return s, c
}

// TestDeleteWhileCreated checks that a deletion ends a creation that is under way.
func TestDeleteWhileCreated(t *testing.T) {
	s, c := testService(t)
	ctx, cancel := context.WithCancel(t.Context())
	c.pod, c.cancel, c.made = nil, cancel, make(chan struct{})
	go func() { // as Create does
		<-ctx.Done()
		s.forget(c)
		close(c.made)
	}()
	_, err := (&tasks{s}).Delete(t.Context(), &taskAPI.DeleteRequest{ID: "c"})
	if !errdefs.IsNotFound(errgrpc.ToNative(err)) || ctx.Err() == nil {
		t.Errorf("%v; the creation: %v", err, ctx.Err())
	}
}

// TestKillWhileStarting checks that a start that hangs ends with the signal, and that a process
// whose start is under way is not forgotten.
func TestKillWhileStarting(t *testing.T) {
	s, c := testService(t)
	p := newProcess(c, "e", "", "", "", false)
	c.execs["e"] = p
	starting, cancel := context.WithCancel(t.Context())
	p.started, p.cancel = true, cancel
	r := &taskAPI.DeleteRequest{ID: "c", ExecID: "e"}
	if _, err := (&tasks{s}).Delete(t.Context(), r); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) || c.execs["e"] == nil {
		t.Errorf("a deletion: %v", err)
	}
	go func() { // as start does
		<-starting.Done()
		p.finish(255, time.Now(), false)
		close(p.begun)
	}()
	if err := p.kill(t.Context(), unix.SIGKILL); !errdefs.IsNotFound(err) {
		t.Errorf("a signal: %v", err)
	}
	if _, err := (&tasks{s}).Delete(t.Context(), r); err != nil || c.execs["e"] != nil {
		t.Errorf("the deletion afterwards: %v", err)
	}
}

// TestNeverStarted checks that a deleted process cannot be started, and ends for who waits for it;
// and that nothing is executed in a container that does not run.
func TestNeverStarted(t *testing.T) {
	s, c := testService(t)
	e := newProcess(c, "e", "", "", "", false)
	if err := e.start(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an exec in a container that does not run: %v", err)
	}
	first := c.first
	if _, err := (&tasks{s}).Delete(t.Context(), &taskAPI.DeleteRequest{ID: "c"}); err != nil {
		t.Error(err)
	}
	for _, p := range []*process{e, first} {
		select {
		case <-p.over:
		default:
			t.Errorf("process %q is not over", p.exec)
		}
	}
	if err := first.start(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a start after the deletion: %v", err)
	}
}

// TestLone checks a container without a pod: its sandbox starts with it and ends with its first
// process, no other container comes into it, and the shim ends after its deletion.
func TestLone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := fakeService(t)
		x, y, bundle := s.sandbox(), &tasks{s}, testBundle(t)
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		refused := func(_ any, err error) {
			t.Helper()
			if native := errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(native) &&
				!errdefs.IsAlreadyExists(native) {
				t.Errorf("not refused: %v", err)
			}
		}
		must(y.Create(t.Context(), &taskAPI.CreateTaskRequest{ID: "c", Bundle: bundle}))
		refused(y.Create(t.Context(), &taskAPI.CreateTaskRequest{ID: "d", Bundle: bundle}))
		refused(x.CreateSandbox(t.Context(), &sandboxAPI.CreateSandboxRequest{SandboxID: "s"}))
		refused(x.StartSandbox(t.Context(), &sandboxAPI.StartSandboxRequest{SandboxID: "s"}))
		must(y.Stats(t.Context(), &taskAPI.StatsRequest{ID: "c"}))
		if f.machines != 0 {
			t.Error("the sandbox runs before the container")
		}
		must(y.Start(t.Context(), &taskAPI.StartRequest{ID: "c"}))
		if f.machines != 1 {
			t.Error("there is no sandbox")
		}
		must(y.Kill(t.Context(), &taskAPI.KillRequest{ID: "c", Signal: 15}))
		must(y.Wait(t.Context(), &taskAPI.WaitRequest{ID: "c"}))
		<-s.stopped
		if f.machines != 0 {
			t.Error("the sandbox runs after the container")
		}
		gone, err := y.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "c"})
		if err != nil || gone.GetExitStatus() != 143 {
			t.Errorf("the deletion: %v, %v", gone, err)
		}
		must(y.Shutdown(t.Context(), &taskAPI.ShutdownRequest{ID: "c"}))
		<-s.shutdown.Done()
		synctest.Wait()
	})
}

// TestLoneCancelled checks that a deadly signal ends the start of a container without a pod, and its
// sandbox.
func TestLoneCancelled(t *testing.T) {
	for _, how := range [][]mood{{stuck}, {prompt, stuck}, {prompt, prompt, stuck}} {
		synctest.Test(t, func(t *testing.T) {
			s, f := fakeService(t, how...)
			r := &round{s: s, f: f, bundle: testBundle(t)}
			r.do(call{what: "Create", id: "a", limit: time.Minute})
			go r.do(call{what: "Start", id: "a", limit: time.Hour})
			synctest.Wait()
			r.do(call{what: "Kill", id: "a", signal: 9, limit: time.Minute})
			r.do(call{what: "Delete", id: "a", limit: time.Minute})
			r.run(nil)
			for _, what := range r.wrong {
				t.Error(what)
			}
		})
	}
}
