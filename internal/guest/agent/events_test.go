package agent

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/journal"
	"turnstone.dev/turnstone/wire"
)

// A listener is a connection that keeps its events, like a stock client.
type listener struct {
	*wire.Conn
	t      *testing.T
	events chan any
	seen   sync.Mutex // held by the reading goroutine while it delivers an event
	deaf   bool
}

// listen opens a connection that gets output as events. The reading goroutine calls hold, if not
// nil, for each event.
func (h *harness) listen(hold func(any)) *listener {
	l := &listener{t: h.t, events: make(chan any, 100_000)}
	l.Conn = wire.NewConn(h.open(), wire.Options{OnEvent: func(e wire.Event) {
		v, err := wire.DecodeEvent(e)
		if err != nil || v == nil {
			h.t.Errorf("event %s: %v", e.Method, err)
			return
		}
		l.seen.Lock()
		if hold != nil && !l.deaf {
			hold(v)
		}
		l.seen.Unlock()
		l.events <- v
	}})
	h.t.Cleanup(func() { _ = l.Close(); l.Wait() })
	return l
}

// next returns the next event of a type.
func next[E any](l *listener) *E {
	l.t.Helper()
	for timeout := time.After(2 * time.Minute); ; {
		select {
		case v := <-l.events:
			if e, ok := v.(*E); ok {
				return e
			}
		case <-timeout:
			l.t.Fatalf("no %T came", new(E))
		}
	}
}

// collected is a process's output and records until its end.
type collected struct {
	out   map[wire.ProcessStream]string
	first map[wire.ProcessStream]int64
	lost  []*wire.ProcessLostEvent
	exit  *wire.ProcessExitedEvent
}

// collect checks that output has no gaps except the reported ones.
func (l *listener) collect(id string) collected {
	l.t.Helper()
	c := collected{out: map[wire.ProcessStream]string{}, first: map[wire.ProcessStream]int64{}}
	at := map[wire.ProcessStream]int64{}
	for timeout := time.After(2 * time.Minute); c.exit == nil; {
		select {
		case v := <-l.events:
			switch e := v.(type) {
			case *wire.ProcessOutputEvent:
				if e.ProcessID != id {
					continue
				}
				if _, seen := at[e.Stream]; !seen {
					c.first[e.Stream], at[e.Stream] = e.Offset, e.Offset
				}
				if e.Offset != at[e.Stream] || len(e.Data) > wire.MaxChunk {
					l.t.Fatalf("%s goes on at %d with %d bytes, want %d", e.Stream, e.Offset,
						len(e.Data), at[e.Stream])
				}
				at[e.Stream] += int64(len(e.Data))
				c.out[e.Stream] += string(e.Data)
			case *wire.ProcessLostEvent:
				c.lost = append(c.lost, e)
			case *wire.ProcessExitedEvent:
				if e.ProcessID == id {
					c.exit = e
				}
			}
		case <-timeout:
			l.t.Fatal("the process's end did not come")
		case <-l.Done():
			l.t.Fatalf("the connection ended: %v", l.Err())
		}
	}
	return c
}

func (l *listener) start(p wire.ProcessStartParams) string {
	l.t.Helper()
	res, err := l.ProcessStart(l.t.Context(), &p)
	if err != nil {
		l.t.Fatal(err)
	}
	return res.ProcessID
}

func script(text string) []string { return []string{"bash", "-c", text} }

// TestEvents checks a process whose input and output are messages.
func TestEvents(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	id := l.start(wire.ProcessStartParams{Argv: script("cat; echo err >&2; exit 3"), Stdin: true})
	for _, s := range []string{"one\n", "t\x00\xffo\n"} {
		err := l.ProcessWrite(t.Context(), &wire.ProcessWriteParams{ProcessID: id, Data: []byte(s)})
		if err != nil {
			t.Fatal(err)
		}
	}
	err := l.ProcessCloseStdin(t.Context(), &wire.ProcessCloseStdinParams{ProcessID: id})
	if err != nil {
		t.Fatal(err)
	}
	got := l.collect(id)
	if got.out["stdout"] != "one\nt\x00\xffo\n" || got.out["stderr"] != "err\n" ||
		got.exit.Exit.ExitCode != 3 ||
		got.exit.StdoutEnd != 9 || got.exit.StderrEnd != 4 {
		t.Errorf("%+v %+v", got, got.exit)
	}
	err = l.ProcessWrite(t.Context(), &wire.ProcessWriteParams{ProcessID: id, Data: []byte("x")})
	kindIs(t, err, turnstone.KindNotFound)
	exit, err := l.ProcessWait(t.Context(), &wire.ProcessWaitParams{ProcessID: id})
	if err != nil || exit.Exit.ExitCode != 3 {
		t.Errorf("%+v %v", exit, err)
	}
	if err := l.ProcessRelease(t.Context(), &wire.ProcessReleaseParams{ProcessID: id}); err != nil {
		t.Error(err)
	}
	_, err = l.ProcessWait(t.Context(), &wire.ProcessWaitParams{ProcessID: id})
	kindIs(t, err, turnstone.KindNotFound)
}

// TestAnswerFirst checks that the answer to start comes before any event of the process.
func TestAnswerFirst(t *testing.T) {
	h := newHarness(t)
	for range 30 {
		s := h.open()
		f := wire.NewFrames(s, false)
		err := f.WriteText([]byte(
			`{"id":1,"method":"Process.start","params":{"argv":["echo","hi"]}}`))
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		for len(order) < 3 {
			text, p, err := f.Next(nil)
			if err != nil || !text {
				t.Fatal(text, err)
			}
			m, err := wire.ParseMessage(p)
			if err != nil {
				t.Fatal(err)
			}
			order = append(order, m.Method)
		}
		_ = f.Close()
		if want := ",Process.output,Process.exited"; strings.Join(order, ",") != want {
			t.Fatalf("messages %q, want %q", order, want)
		}
	}
}

func (h *harness) info(id string) wire.ProcessProcessInfo {
	h.t.Helper()
	res, err := h.ProcessList(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range res.Processes {
		if p.ProcessID == id {
			return p
		}
	}
	h.t.Fatalf("no process %s in the list", id)
	return wire.ProcessProcessInfo{}
}

// output is kept.
func TestDetach(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	id := l.start(wire.ProcessStartParams{ProcessID: "d.1",
		Argv: script("echo a; read x; echo $x; sleep 0.1; echo c"), Stdin: true})
	if id != "d.1" {
		t.Fatalf("named %s", id)
	}
	if e := next[wire.ProcessOutputEvent](l); string(e.Data) != "a\n" {
		t.Fatalf("%q", e.Data)
	}
	if err := l.ProcessDetach(t.Context(), &wire.ProcessDetachParams{ProcessID: id}); err != nil {
		t.Fatal(err)
	}
	kindIs(t, l.ProcessDetach(t.Context(), &wire.ProcessDetachParams{ProcessID: id}),
		turnstone.KindNotFound)
	err := h.ProcessWrite(t.Context(), &wire.ProcessWriteParams{ProcessID: id, Data: []byte("b\n")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.ProcessWait(t.Context(), &wire.ProcessWaitParams{ProcessID: id}); err != nil {
		t.Fatal(err)
	}
	other := h.listen(nil)
	_, err = other.ProcessAttach(t.Context(), &wire.ProcessAttachParams{ProcessID: id})
	if err != nil {
		t.Fatal(err)
	}
	if got := other.collect(id); got.out["stdout"] != "a\nb\nc\n" {
		t.Errorf("%q", got.out["stdout"])
	}
	select {
	case v := <-l.events:
		t.Errorf("a detached connection got %T", v)
	default:
	}
	_, err = l.ProcessStart(t.Context(),
		&wire.ProcessStartParams{ProcessID: id, Argv: script("true")})
	kindIs(t, err, turnstone.KindInvalid)
	for _, bad := range []string{"a/b", "a b", strings.Repeat("x", 65)} {
		_, err := l.ProcessStart(t.Context(),
			&wire.ProcessStartParams{ProcessID: bad, Argv: script("true")})
		kindIs(t, err, turnstone.KindInvalid)
	}
}

// TestManyConnections checks that 64 connections are served, and that another is rejected.
func TestManyConnections(t *testing.T) {
	h := newHarness(t) // one
	var all []*wire.Client
	for range 63 {
		all = append(all, h.connect())
	}
	for _, c := range all {
		if _, err := c.SandboxGetVersion(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.connect().SandboxGetVersion(t.Context())
	if turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("one too many: %v", err)
	}
	_ = all[0].Close()
	waitFor(t, "cannot start another process", func() bool {
		c := h.connect()
		_, err := c.SandboxGetVersion(t.Context())
		_ = c.Close()
		return err == nil
	})
}

// TestNotConfigured checks that no command runs before Sandbox.configure, which works once.
func TestNotConfigured(t *testing.T) {
	calls := 0
	h := newHarnessWith(t,
		Options{Configure: func(p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult,
			error) {
			if calls++; p.Hostname == "bad" {
				return nil, Invalid(wire.MethodSandboxConfigure, "hostname", "malformed")
			}
			return &wire.SandboxConfigureResult{Reseeded: true}, nil
		}})
	_, err := h.SandboxGetVersion(t.Context())
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.start(nil, "true")
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.SandboxConfigure(t.Context(), &wire.SandboxConfigureParams{Hostname: "bad"})
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.SandboxConfigure(t.Context(),
		&wire.SandboxConfigureParams{Env: []string{"FROM=host"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.SandboxConfigure(t.Context(), &wire.SandboxConfigureParams{})
	kindIs(t, err, turnstone.KindInvalid)
	if r, err := h.start(nil, "sh", "-c", "echo $FROM"); err != nil || r.stdout != "host\n" {
		t.Errorf("%+v %v", r, err)
	}
	if r := h.bash("echo $FROM"); r.stdout != "host\n" {
		t.Errorf("%+v", r)
	}
	if calls != 2 {
		t.Errorf("configured %d times", calls)
	}
}

// TestJournal checks that the journal contains the commands, without their content.
func TestJournal(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	if err := l.TraceEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := h.Start(t.Context(), wire.ProcessStartParams{ProcessID: "j",
		Argv: []string{"echo", "s3cret"}, Env: []string{"KEY=s3cret"}}, wire.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if e := next[wire.TraceEntryEvent](l); e.Entry.Method != "Trace.enable" {
		t.Errorf("%+v", e)
	}
	if e := next[wire.TraceEntryEvent](l); e.Entry.Method != "Process.start" ||
		e.Entry.Subject != "j" || e.Entry.Duration <= 0 {
		t.Errorf("%+v", e)
	}
	_, _ = h.FileSystemStat(t.Context(), &wire.FileSystemStatParams{Path: "/nope"})
	res, err := h.TraceGetEntries(t.Context(), &wire.TraceGetEntriesParams{After: 2})
	if err != nil || res.First != 1 || len(res.Entries) != 1 || res.Entries[0].Error == "" ||
		res.Entries[0].Subject != "/nope" || res.Entries[0].Sequence != 3 {
		t.Errorf("%+v %v", res, err)
	}
	all, err := h.TraceGetEntries(t.Context(), &wire.TraceGetEntriesParams{})
	if err != nil || len(all.Entries) < 3 {
		t.Fatalf("%+v %v", all, err)
	}
	for _, e := range all.Entries {
		if strings.Contains(fmt.Sprint(e), "s3cret") ||
			strings.Contains(fmt.Sprint(e), base64.StdEncoding.EncodeToString([]byte("s3cret"))) {
			t.Errorf("the journal keeps a secret: %+v", e)
		}
	}
	if err := l.TraceDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range journal.Size {
		h.a.journal.Observe("x", nil, time.Now(), nil)
	}
	res, err = h.TraceGetEntries(t.Context(), &wire.TraceGetEntriesParams{Limit: 5})
	if err != nil || len(res.Entries) != 5 || res.Entries[0].Sequence != res.First ||
		res.First < 5 {
		t.Errorf("%+v %v", res, err)
	}
}

// TestTyping checks that writes without waiting for answers arrive in order, and so does the end.
func TestTyping(t *testing.T) {
	h := newHarness(t)
	s := h.open()
	f := wire.NewFrames(s, false)
	defer func() { _ = f.Close() }()
	start := func(id string) {
		t.Helper()
		err := f.WriteText([]byte(`{"id":1,"method":"Process.start","params":{"processId":"` + id +
			`","argv":["cat"],"stdin":true,"detach":true}}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Next(nil); err != nil {
			t.Fatal(err)
		}
	}
	start("one")
	start("two")
	go func() { // answers
		for {
			if _, _, err := f.Next(nil); err != nil {
				return
			}
		}
	}()
	var want strings.Builder
	for i := range 200 {
		word := fmt.Sprintf("%d ", i)
		want.WriteString(word)
		for _, id := range []string{"one", "two"} {
			msg := fmt.Sprintf(`{"id":%d,"method":"Process.write",`+
				`"params":{"processId":"%s","data":"%s"}}`, i, id,
				base64.StdEncoding.EncodeToString([]byte(word)))
			if err := f.WriteText([]byte(msg)); err != nil {
				t.Fatal(err)
			}
		}
		if i%50 == 49 {
			waitFor(t, "the words to arrive",
				func() bool { return h.info("two").StdoutEnd == int64(want.Len()) })
		}
	}
	for _, id := range []string{"one", "two"} {
		for _, m := range []string{`"id":7,"method":"Process.write","params":{"data":"ZW5k",`,
			`"id":8,"method":"Process.closeStdin","params":{`} {
			if err := f.WriteText([]byte(`{` + m + `"processId":"` + id + `"}}`)); err != nil {
				t.Fatal(err)
			}
		}
		l := h.listen(nil)
		_, err := l.ProcessAttach(t.Context(), &wire.ProcessAttachParams{ProcessID: id})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.collect(id); got.out["stdout"] != want.String()+"end" {
			t.Errorf("%s: %q", id, got.out["stdout"])
		}
	}
}
