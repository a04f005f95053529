package agent

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestAttachAtOnce checks that a connection that attaches to its own step several times without
// waiting has one attachment in the end, and gets each record once.
func TestAttachAtOnce(t *testing.T) {
	h := newTracedHarness(t)
	l := h.listen(nil)
	const lines = 200
	res, err := l.ShellExecute(t.Context(),
		&wire.ShellExecuteParams{Script: "while [ ! -e go ]; do sleep 0.02; done\n" +
			strings.Repeat("true;true;true;true;true\n", lines)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := l.ProcessAttach(t.Context(),
				&wire.ProcessAttachParams{ProcessID: res.ProcessID}); err != nil {
				kindIs(t, err, turnstone.KindInvalid)
			}
		})
	}
	wg.Wait()
	if info := h.info(res.ProcessID); info.Attached != 1 {
		t.Errorf("%d attachments", info.Attached)
	}
	if _, err := h.start(nil, "touch", h.dir+"/workspace/go"); err != nil {
		t.Fatal(err)
	}
	seen := make(map[int64]bool)
	for timeout := time.After(2 * time.Minute); ; {
		select {
		case v := <-l.events:
			switch e := v.(type) {
			case *wire.ShellCommandsEvent:
				for _, r := range e.Records {
					if seen[r.ID] {
						t.Fatalf("record %d came twice", r.ID)
					}
					seen[r.ID] = true
				}
				continue
			case *wire.ShellFinishedEvent:
			default:
				continue
			}
		case <-timeout:
			t.Fatal("no end")
		}
		break
	}
	if len(seen) < 100 {
		t.Errorf("%d records", len(seen))
	}
}

// TestAttachUnderWay checks that while a Process.attach of a connection waits for the end of the
// previous attachment, another is rejected.
func TestAttachUnderWay(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	id := l.start(wire.ProcessStartParams{Argv: script("sleep 100"), KillOnDisconnect: true})
	proc, err := h.a.procs.Get("", id)
	if err != nil {
		t.Fatal(err)
	}
	var cl *client
	h.a.mu.Lock()
	for _, c := range h.a.clients {
		c.mu.Lock()
		if c.attached[proc] != nil {
			cl = c
			c.changing[proc] = struct{}{} // like an attach in progress
		}
		c.mu.Unlock()
	}
	h.a.mu.Unlock()
	_, err = l.ProcessAttach(t.Context(), &wire.ProcessAttachParams{ProcessID: id})
	kindIs(t, err, turnstone.KindInvalid)
	cl.mu.Lock()
	delete(cl.changing, proc)
	cl.mu.Unlock()
	if _, err := l.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: id}); err != nil {
		t.Error(err)
	}
}

// gateWriter blocks until its gate is open.
type gateWriter struct {
	gate    chan struct{}
	reached chan struct{}
	once    sync.Once
	n       int
}

func (w *gateWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.reached); <-w.gate })
	w.n += len(p)
	return len(p), nil
}

// TestReadIsKept checks that others neither evict nor release a process whose output a connection
// is still reading.
func TestReadIsKept(t *testing.T) {
	h := newHarness(t)
	w := &gateWriter{gate: make(chan struct{}), reached: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := h.Start(t.Context(), wire.ProcessStartParams{ProcessID: "slow",
			Argv: script("head -c 1900000 /dev/zero")}, wire.Stdio{Out: w})
		ended <- err
	}()
	<-w.reached
	other := h.listen(nil)
	if _, err := other.ProcessWait(t.Context(),
		&wire.ProcessWaitParams{ProcessID: "slow"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all output to be in the log",
		func() bool { return h.info("slow").StdoutEnd == 1_900_000 })
	kindIs(t, other.ProcessRelease(t.Context(), &wire.ProcessReleaseParams{ProcessID: "slow"}),
		turnstone.KindInvalid)
	for range 70 {
		if _, err := h.start(nil, "true"); err != nil {
			t.Fatal(err)
		}
	}
	close(w.gate)
	if err := <-ended; err != nil || w.n != 1_900_000 {
		t.Errorf("%d bytes came: %v", w.n, err)
	}
	if err := other.ProcessRelease(t.Context(),
		&wire.ProcessReleaseParams{ProcessID: "slow"}); err != nil {
		t.Error(err)
	}
	_, err := other.ProcessAttach(t.Context(), &wire.ProcessAttachParams{ProcessID: "slow"})
	kindIs(t, err, turnstone.KindNotFound)
}

// TestSlowOther checks that a connection that attaches to another connection's process and reads
// nothing does not block the process. It learns about its loss; its stream is reset.
func TestSlowOther(t *testing.T) {
	h := newHarness(t)
	l, other := h.listen(nil), h.listen(nil)
	const size = 8_000_000
	id := l.start(wire.ProcessStartParams{Argv: script("read x; head -c 8000000 /dev/zero"),
		Stdin: true})
	if _, err := other.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: id, Window: 1}); err != nil {
		t.Fatal(err)
	}
	third := h.listen(nil)
	sid := third.NewStream()
	r, err := third.Receiver(sid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := third.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: id, StdoutStream: sid}); err != nil {
		t.Fatal(err)
	}
	if err := l.ProcessWrite(t.Context(),
		&wire.ProcessWriteParams{ProcessID: id, Data: []byte("\n")}); err != nil {
		t.Fatal(err)
	}
	if got := l.collect(id); len(got.out["stdout"]) != size || len(got.lost) != 0 {
		t.Errorf("the first got %d bytes, and lost %+v", len(got.out["stdout"]), got.lost)
	}
	if n, err := io.Copy(io.Discard, r); err == nil || n == size {
		t.Errorf("a stream with a gap ended as if it were whole: %d bytes, %v", n, err)
	}
	if e := next[wire.ProcessLostEvent](third); e.ProcessID != id || e.To <= e.From {
		t.Errorf("%+v", e)
	}
	// not always byte 0: the connection may attach late
	first := next[wire.ProcessOutputEvent](other)
	if len(first.Data) != 1 {
		t.Fatalf("%d bytes at %d", len(first.Data), first.Offset)
	}
	if err := other.ProcessAcknowledge(t.Context(), &wire.ProcessAcknowledgeParams{ProcessID: id,
		Stream: "stdout", Offset: first.Offset + 1}); err != nil {
		t.Fatal(err)
	}
	lost := next[wire.ProcessLostEvent](other)
	if first.Offset > 0 && lost.To == first.Offset {
		lost = next[wire.ProcessLostEvent](other) // the first event was about the beginning
	}
	if e := lost; e.From != first.Offset+1 || e.To < size-4<<20 || e.To >= size {
		t.Errorf("%+v", e)
	}
}

// TestEndWaitsForNobody checks that a process's end is reported while the reader of its output
// reads nothing.
func TestEndWaitsForNobody(t *testing.T) {
	h := newHarnessWith(t, Options{Keep: 1 << 16})
	slow := h.listen(nil)
	const size = 900_000 // more than the log, less than a pipe
	id := slow.start(wire.ProcessStartParams{Argv: script("head -c 900000 /dev/zero"), Window: 10})
	l := h.listen(nil)
	if _, err := l.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: id}); err != nil {
		t.Fatal(err)
	}
	if e := next[wire.ProcessExitedEvent](l); e.StdoutEnd != size {
		t.Errorf("%+v", e)
	}
	var got []byte
	for len(got) < size { // without any loss
		e := next[wire.ProcessOutputEvent](slow)
		if int(e.Offset) != len(got) {
			t.Fatalf("offset %d after %d bytes", e.Offset, len(got))
		}
		got = append(got, e.Data...)
		if len(got) == 10 { // the rest arrives without gaps
			if _, err := slow.ProcessAttach(t.Context(),
				&wire.ProcessAttachParams{ProcessID: id, StdoutOffset: 10}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLateCommand checks that a command of a connection that the agent has already closed has no
// effect, and does no harm.
func TestLateCommand(t *testing.T) {
	h := newHarness(t)
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	c := wire.NewConn(near, wire.Options{})
	defer c.Wait()
	defer func() { _ = c.Close() }()
	s := &processes{h.a}
	if _, err := s.Start(t.Context(), c,
		&wire.ProcessStartParams{ProcessID: "late", Argv: []string{"sleep", "100"}}); err == nil {
		t.Error("it was started for nobody")
	}
	if exit, err := h.ProcessWait(t.Context(),
		&wire.ProcessWaitParams{ProcessID: "late"}); err != nil || !exit.Exit.Killed {
		t.Errorf("%+v %v", exit, err)
	}
	kindIs(t, s.Detach(t.Context(), c, &wire.ProcessDetachParams{ProcessID: "late"}),
		turnstone.KindNotFound)
	if err := h.a.files.Unwatch(t.Context(), c,
		&wire.FileSystemUnwatchParams{WatchID: "x"}); err == nil {
		t.Error("nothing was watched")
	}
}
