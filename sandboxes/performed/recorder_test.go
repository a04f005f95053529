package performed

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/wire"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func open(t interface {
	Helper()
	Fatal(...any)
}, dir string, secrets ...string) *Recorder {
	t.Helper()
	r, err := NewRecorder(dir, Options{Log: quiet(), Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// send gives r an event of the agent.
func (r *Recorder) send(method string, event any) {
	b, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	r.event(wire.Event{Method: method, Params: b})
}

func (r *Recorder) start(e wire.SandboxCommandStartedEvent) {
	r.send(wire.EventSandboxCommandStarted, &e)
}

func (r *Recorder) output(id string, stream wire.ProcessStream, offset int64, data string) {
	r.send(wire.EventProcessOutput, &wire.ProcessOutputEvent{ProcessID: id, Stream: stream,
		Offset: offset, Data: []byte(data)})
}

func (r *Recorder) end(id string, code int64) {
	r.send(wire.EventSandboxCommandEnded, &wire.SandboxCommandEndedEvent{ProcessID: id,
		Exit: wire.ProcessExit{ExitCode: code}})
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// TestMasking checks that a value is masked in all parts of a command, also if it arrives in pieces.
func TestMasking(t *testing.T) {
	const value = "sesame-open-4711"
	dir := t.TempDir()
	var held []string
	r, err := NewRecorder(dir, Options{Log: quiet(), Held: func(n []string) { held = n }})
	if err != nil {
		t.Fatal(err)
	}
	r.start(wire.SandboxCommandStartedEvent{ProcessID: "a", Argv: []string{"x", value},
		Env: []string{"KEY=" + value, "B=is " + value}, Secrets: []string{"KEY"}, Cwd: "/" + value})
	r.output("a", wire.ProcessStreamStdout, 0, "1 sesame-")
	r.output("a", wire.ProcessStreamStdout, 9, "open-4711 2")
	r.end("a", 0)
	w := r.Work()
	c := w.Commands[0]
	if len(c.Env) != 1 || c.Secrets[0] != "KEY" || len(held) != 1 || c.Stdout.Size != 20 ||
		w.Secrets[0] != "KEY="+value {
		t.Errorf("%+v %q %q", c, held, w.Secrets)
	}
	files, err := filepath.Glob(dir + "/*")
	if err != nil || len(files) != 2 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, f := range files {
		if text := content(t, f); strings.Contains(text, "sesame") {
			t.Errorf("%s: %s", f, text)
		}
	}
	if text := content(t, c.Stdout.Path); !strings.HasPrefix(text, "1 ") ||
		!strings.HasSuffix(text, " 2") {
		t.Errorf("%q", text)
	}
}

// TestBounds checks what is kept of many commands, and of a full disk.
func TestBounds(t *testing.T) {
	r := open(t, t.TempDir())
	for i := range maxPerformed + 3 {
		id := strconv.Itoa(i)
		r.start(wire.SandboxCommandStartedEvent{ProcessID: id, Argv: []string{"true"}})
		r.end(id, 0)
	}
	if w := r.Work(); len(w.Commands) != maxPerformed || w.Unlisted != 3 {
		t.Errorf("%d and %d", len(w.Commands), w.Unlisted)
	}
	r = open(t, t.TempDir())
	long := strings.Repeat("x", 1<<20)
	for i := range 20 {
		r.start(wire.SandboxCommandStartedEvent{ProcessID: string(rune('a' + i)), Script: long,
			Language: "bash", Env: []string{"A=" + long}})
	}
	if w := r.Work(); len(w.Commands) > 12 || w.Unlisted < 8 || !w.Commands[0].Cut {
		t.Errorf("%d and %d", len(w.Commands), w.Unlisted)
	}
	r = open(t, t.TempDir())
	r.Room = func() error { return io.ErrShortWrite }
	r.start(wire.SandboxCommandStartedEvent{ProcessID: "a", Argv: []string{"true"}})
	r.output("a", wire.ProcessStreamStderr, 0, "text")
	if o := r.Work().Commands[0].Stderr; o.Size != 4 || o.Kept != 0 || content(t, o.Path) != "" {
		t.Errorf("%+v", o)
	}
}

// TestContinues checks that a fork continues with a copy of the commands so far, and that neither
// side sees what the other one does.
func TestContinues(t *testing.T) {
	r := open(t, t.TempDir())
	for _, id := range []string{"past", "done", "runs"} {
		r.start(wire.SandboxCommandStartedEvent{ProcessID: id, Argv: []string{id}})
		if id == "past" {
			r.Committed(r.Work().Commands)
		}
		r.output(id, wire.ProcessStreamStdout, 0, "1")
	}
	r.end("done", 1)
	to := filepath.Join(t.TempDir(), "copy")
	if err := r.CopyTo(to); err != nil {
		t.Fatal(err)
	}
	clone := open(t, to)
	r.output("runs", wire.ProcessStreamStdout, 1, "original")
	clone.output("runs", wire.ProcessStreamStdout, 0, "1clone") // from an earlier offset
	clone.start(wire.SandboxCommandStartedEvent{ProcessID: "runs", Argv: []string{"again"}})
	clone.end("past", 0)
	for want, w := range map[string]Work{"1original": r.Work(), "1clone": clone.Work()} {
		if len(w.Commands) != 2 || w.Commands[0].ID != "done" || w.Commands[1].Argv[0] != "runs" {
			t.Fatalf("%+v", w.Commands)
		}
		if got := content(t, w.Commands[1].Stdout.Path); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// TestHostileEvents checks that no sequence of events of a hostile guest makes the recorder fail or
// keep more than was sent.
func TestHostileEvents(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		d, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		r := open(t, d, "KEY=sesame-open-4711")
		number := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-2, 9),
			rapid.Just(int64(math.MaxInt64)))
		id := rapid.SampledFrom([]string{"a", "b", "../../x", ""})
		sent := int64(0)
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			p := id.Draw(t, "id")
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				r.start(wire.SandboxCommandStartedEvent{ProcessID: p, Started: rapid.String().Draw(t,
					"started"), Argv: []string{rapid.String().Draw(t, "argv")}})
			case 1:
				text := rapid.String().Draw(t, "data")
				sent += int64(len(text))
				r.output(p, wire.ProcessStream(rapid.SampledFrom([]string{"stdout", "stderr", "x"}).
					Draw(t, "stream")), number.Draw(t, "offset"), text)
			case 2:
				r.end(p, number.Draw(t, "code"))
			case 3:
				r.send(wire.EventProcessLost, &wire.ProcessLostEvent{ProcessID: p, Stream: "stdout",
					From: number.Draw(t, "from"), To: number.Draw(t, "to")})
			case 4:
				r.event(wire.Event{Method: wire.EventSandboxCommandEnded,
					Params: json.RawMessage(rapid.String().Draw(t, "json"))})
			}
		}
		kept := int64(0)
		for _, c := range r.Work().Commands {
			kept += c.Stdout.Kept + c.Stderr.Kept
			if c.Stdout.Kept > c.Stdout.Size || c.Took < 0 {
				t.Errorf("%+v", c)
			}
		}
		if kept > sent {
			t.Errorf("%d bytes of %d", kept, sent)
		}
		r.Close()
		if left, err := os.ReadDir(dir); err != nil || len(left) == 0 {
			t.Fatalf("%v, %v", left, err)
		}
	})
}

// A lateAgent is a machine whose agent lists a command before it says that the command has started.
type lateAgent struct {
	t    *testing.T
	exit *wire.ProcessExit
	conn *wire.Conn
	list int
}

type lateSandbox struct{ wire.SandboxServer }

func (lateSandbox) Record(context.Context, *wire.Conn) error { return nil }

type lateProcesses struct {
	wire.ProcessServer
	*lateAgent
}

func (a lateProcesses) List(ctx context.Context, c *wire.Conn) (*wire.ProcessListResult, error) {
	if a.list++; a.list == 1 {
		return &wire.ProcessListResult{}, nil
	}
	wire.AfterReply(ctx, func() {
		c.Go(func() {
			time.Sleep(50 * time.Millisecond) //wait: the bubble's clock; the answer goes far ahead
			err := c.EmitSandboxCommandStarted(c.Context(), &wire.SandboxCommandStartedEvent{
				ProcessID: "late", Argv: []string{"sleep"}})
			if err == nil && a.exit != nil {
				err = c.EmitSandboxCommandEnded(c.Context(), &wire.SandboxCommandEndedEvent{
					ProcessID: "late", Exit: *a.exit})
			}
			if err != nil {
				a.t.Error(err)
			}
		})
	})
	return &wire.ProcessListResult{Processes: []wire.ProcessProcessInfo{{ProcessID: "late",
		Exit: a.exit}}}, nil
}

func (a *lateAgent) Done() <-chan struct{} { return nil }

func (a *lateAgent) Connect() (wire.LinkStream, error) {
	near, far := net.Pipe()
	d := wire.NewDispatcher()
	wire.RegisterSandbox(d, lateSandbox{})
	wire.RegisterProcess(d, lateProcesses{lateAgent: a})
	a.conn = wire.NewConn(far, wire.Options{Dispatcher: d})
	return pipeStream{near}, nil
}

type pipeStream struct{ net.Conn }

func (s pipeStream) CloseWrite() error { return nil }
func (s pipeStream) Abort()            { _ = s.Close() }

// TestSettle checks that a turn has each command that its client knows to be started, also if the
// agent's word about it is late.
func TestSettle(t *testing.T) {
	for _, exit := range []*wire.ProcessExit{nil, {ExitCode: 7}} {
		synctest.Test(t, func(t *testing.T) { // a busy machine would use up the time for the word
			a := &lateAgent{t: t, exit: exit}
			r := open(t, t.TempDir())
			if err := r.Follow(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			r.Settle(t.Context())
			all := r.Work().Commands
			if len(all) != 1 || all[0].ID != "late" || all[0].Ended != (exit != nil) {
				t.Errorf("exit %v: the work has %+v", exit, all)
			}
			r.Close()
			_ = a.conn.Close()
			a.conn.Wait()
		})
	}
}

// A toldAgent is that of a fork: it lists a command whose record it has given to the recorder of the
// machine that was forked.
type toldAgent struct{ lateAgent }

type toldProcesses struct{ wire.ProcessServer }

func (toldProcesses) List(context.Context, *wire.Conn) (*wire.ProcessListResult, error) {
	return &wire.ProcessListResult{Processes: []wire.ProcessProcessInfo{{ProcessID: "told",
		Exit: &wire.ProcessExit{}}}}, nil
}

func (toldProcesses) Attach(ctx context.Context, c *wire.Conn, p *wire.ProcessAttachParams) (
	*wire.ProcessAttachResult, error) {
	wire.AfterReply(ctx, func() {
		_ = c.EmitProcessExited(c.Context(), &wire.ProcessExitedEvent{ProcessID: p.ProcessID})
	})
	return &wire.ProcessAttachResult{}, nil
}

func (a *toldAgent) Connect() (wire.LinkStream, error) {
	near, far := net.Pipe()
	d := wire.NewDispatcher()
	wire.RegisterSandbox(d, lateSandbox{})
	wire.RegisterProcess(d, toldProcesses{})
	a.conn = wire.NewConn(far, wire.Options{Dispatcher: d})
	return pipeStream{near}, nil
}

// TestSettleOfFork checks that a fork's end does not wait for a command that a turn of the session has
// already.
func TestSettleOfFork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &toldAgent{}
		r := open(t, t.TempDir())
		if err := r.Follow(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		began := time.Now() // of a clock that stands still while anybody works
		r.Settle(t.Context())
		if waited := time.Since(began); waited != 0 {
			t.Errorf("it waited %v for a command whose record nobody sends", waited)
		}
		if w := r.Work(); len(w.Commands) != 0 {
			t.Errorf("the fork has %+v", w.Commands)
		}
		r.Close()
		_ = a.conn.Close()
		a.conn.Wait()
	})
}
