package agent

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// record opens a connection that records commands.
func (h *harness) record() *listener {
	h.t.Helper()
	l := h.listen(nil)
	if err := l.SandboxRecord(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	return l
}

// recorded is what a recording connection was told of one command.
type recordedCommand struct {
	start *wire.SandboxCommandStartedEvent
	out   map[wire.ProcessStream]string
	end   *wire.SandboxCommandEndedEvent
}

// command returns the next command that ends.
func (l *listener) command() recordedCommand {
	l.t.Helper()
	c := recordedCommand{out: map[wire.ProcessStream]string{}}
	c.start = next[wire.SandboxCommandStartedEvent](l)
	for c.end == nil {
		select {
		case v := <-l.events:
			switch e := v.(type) {
			case *wire.ProcessOutputEvent:
				c.out[e.Stream] += string(e.Data)
			case *wire.ProcessLostEvent:
				l.t.Fatalf("%+v", e)
			case *wire.SandboxCommandEndedEvent:
				c.end = e
			}
		case <-l.Done():
			l.t.Fatalf("the connection ended: %v", l.Err())
		}
	}
	return c
}

// TestRecord checks what is recorded of a process and of a step.
func TestRecord(t *testing.T) {
	h := newHarness(t)
	l := h.record()
	in := strings.NewReader("in\x00put")
	out := new(bytes.Buffer)
	_, err := h.Start(t.Context(), wire.ProcessStartParams{Argv: script("cat; echo err >&2; exit 3"),
		Env: []string{"A=1", "KEY=hidden"}, Secrets: []string{"KEY"}, Cwd: h.dir},
		wire.Stdio{In: in, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	c := l.command()
	if c.start.Argv[2] != "cat; echo err >&2; exit 3" || c.start.Cwd != h.dir ||
		c.start.Env[1] != "KEY=hidden" || c.start.Secrets[0] != "KEY" || c.start.Cut {
		t.Errorf("%+v", c.start)
	}
	if c.out["stdout"] != out.String() || c.out["stderr"] != "err\n" || c.end.Exit.ExitCode != 3 ||
		string(c.end.Input) != "in\x00put" || c.end.InputSize != 6 || c.end.StdoutEnd != 6 {
		t.Errorf("%q %+v", c.out, c.end)
	}
	h.bash("cd /; echo step")
	if c = l.command(); c.start.Script != "cd /; echo step" || c.start.Language != "bash" ||
		c.start.Argv != nil || c.out["stdout"] != "step\n" {
		t.Errorf("%+v %q", c.start, c.out)
	}
}

// TestRecordIsComplete checks that no byte of a record is lost to a client that reads faster, or
// forgets the process at once, and that the command waits for it.
func TestRecordIsComplete(t *testing.T) {
	h := newHarness(t)
	hold := make(chan struct{})
	l := h.listen(func(v any) {
		if _, ok := v.(*wire.SandboxCommandStartedEvent); ok {
			<-hold
		}
	})
	if err := l.SandboxRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	const size = 8 << 20 // more than an agent keeps
	ended := make(chan error, 1)
	go func() {
		_, err := h.Start(t.Context(), wire.ProcessStartParams{ProcessID: "big",
			Argv: script("head -c 8388608 /dev/zero")}, wire.Stdio{})
		ended <- err
	}()
	close(hold)
	c := l.command()
	if len(c.out["stdout"]) != size || c.end.StdoutEnd != size {
		t.Errorf("%d of %d bytes", len(c.out["stdout"]), c.end.StdoutEnd)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := h.ProcessRelease(t.Context(),
		&wire.ProcessReleaseParams{ProcessID: "big"}); err != nil {
		t.Error(err)
	}
}

// TestRecordContinues checks that another connection continues the record of a running command, and
// learns of commands that ended while nobody recorded.
func TestRecordContinues(t *testing.T) {
	h := newHarness(t)
	l := h.record()
	if _, err := h.ProcessStart(t.Context(), &wire.ProcessStartParams{ProcessID: "cat",
		Argv: []string{"cat"}, Stdin: true, Detach: true}); err != nil {
		t.Fatal(err)
	}
	next[wire.SandboxCommandStartedEvent](l)
	_ = l.Close()
	l.Wait()
	for h.a.records.Recording() {
		runtime.Gosched()
	}
	write := func(text string) {
		if err := h.ProcessWrite(t.Context(), &wire.ProcessWriteParams{ProcessID: "cat",
			Data: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	if _, err := h.start(nil, "echo", "unseen"); err != nil {
		t.Fatal(err)
	}
	if err := h.ProcessCloseStdin(t.Context(),
		&wire.ProcessCloseStdinParams{ProcessID: "cat"}); err != nil {
		t.Fatal(err)
	}
	l = h.record()
	var unseen string
	list, err := h.ProcessList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Processes {
		if p.ProcessID != "cat" {
			unseen = p.ProcessID
		}
	}
	for _, id := range []string{"cat", unseen} {
		if _, err := l.ProcessAttach(t.Context(),
			&wire.ProcessAttachParams{ProcessID: id}); err != nil {
			t.Fatal(err)
		}
	}
	ends := map[string]*wire.SandboxCommandEndedEvent{}
	for len(ends) < 2 {
		e := next[wire.SandboxCommandEndedEvent](l)
		ends[e.ProcessID] = e
	}
	if string(ends["cat"].Input) != "one" || ends["cat"].StdoutEnd != 3 ||
		ends[unseen].StdoutEnd != 7 {
		t.Errorf("%+v", ends)
	}
}

// TestOnlyTheHostRecords checks that a client of an encrypted channel cannot record others.
func TestOnlyTheHostRecords(t *testing.T) {
	if !wire.HostOnly(wire.MethodSandboxRecord) {
		t.Fatal("anybody may record")
	}
	h := newHarness(t)
	if err := h.a.remoteGate(wire.MethodSandboxRecord); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Error(err)
	}
}
