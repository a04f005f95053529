package agent

import (
	"strconv"
	"testing"

	"turnstone.dev/turnstone/wire"
)

// running returns the number of commands that run, on a connection that is not told of changes.
func (h *harness) running() int64 {
	h.t.Helper()
	h.a.activity.mu.Lock()
	defer h.a.activity.mu.Unlock()
	return h.a.activity.now.running
}

// TestActivity checks what counts as a command that runs, and who is told.
func TestActivity(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	for range 2 { // the second changes nothing
		if res, err := l.SandboxActivity(t.Context()); err != nil || res.Running != 0 ||
			res.Started != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	until := func(running, started int64) {
		t.Helper()
		for {
			e := next[wire.SandboxActivityChangedEvent](l)
			if e.Started > started || e.Started == started && e.Running < running {
				t.Fatalf("%+v, and %d of %d did not come", e, running, started)
			}
			if e.Running == running && e.Started == started {
				return
			}
		}
	}
	if _, err := h.ProcessStart(t.Context(), &wire.ProcessStartParams{ProcessID: "cat",
		Argv: []string{"cat"}, Stdin: true, Detach: true}); err != nil {
		t.Fatal(err)
	}
	until(1, 1)
	// A step counts from its acceptance, also while it waits for its turn; what it leaves behind
	// does not.
	ended := make(chan ran, 2)
	for i := range 2 {
		go func() { ended <- h.bash("sleep 2 & sleep 0.1; echo " + strconv.Itoa(i)) }()
	}
	until(3, 3)
	<-ended
	<-ended
	if n := h.running(); n != 1 {
		t.Errorf("%d commands run after the steps", n)
	}
	until(1, 3)
	if err := h.ProcessCloseStdin(t.Context(),
		&wire.ProcessCloseStdinParams{ProcessID: "cat"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ProcessWait(t.Context(),
		&wire.ProcessWaitParams{ProcessID: "cat"}); err != nil {
		t.Fatal(err)
	}
	if n := h.running(); n != 0 { // before the client learns of the end
		t.Errorf("%d commands run at the end", n)
	}
	until(0, 3)
}

// TestActivityOfFailures checks that commands that could not be started are not counted as running.
func TestActivityOfFailures(t *testing.T) {
	h := newHarness(t)
	for _, p := range []wire.ProcessStartParams{{Argv: []string{"/no/such/program"}}, {},
		{Argv: []string{"true"}, User: "nobody-of-this-name"},
		{Argv: []string{"true"}, Cwd: "/dev/null/x"}} {
		if _, err := h.ProcessStart(t.Context(), &p); err == nil {
			t.Errorf("%+v was started", p)
		}
	}
	for _, p := range []wire.ShellExecuteParams{{Language: "perl"}, {Cwd: "relative"},
		{User: "nobody-of-this-name"}} {
		if _, err := h.ShellExecute(t.Context(), &p); err == nil {
			t.Errorf("%+v was started", p)
		}
	}
	if n := h.running(); n != 0 {
		t.Errorf("%d commands run", n)
	}
}
