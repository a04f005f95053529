package agent

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestReplay checks that connections that are lost in the middle of 3 MB miss nothing when they
// attach again with their last offset.
func TestReplay(t *testing.T) {
	h := newHarnessWith(t, Options{Keep: 12 << 20})
	const size = 3 << 20
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	file := filepath.Join(h.dir, "data")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for tries := 0; len(got) < size; tries++ {
		stopAt := min(size, len(got)+300<<10+tries*777)
		enough := make(chan struct{})
		l := h.listen(func(v any) {
			e, ok := v.(*wire.ProcessOutputEvent)
			if !ok || len(got) >= stopAt {
				return
			}
			if int(e.Offset) != len(got) {
				t.Errorf("offset %d, want %d", e.Offset, len(got))
			}
			if got = append(got, e.Data...); len(got) >= stopAt {
				close(enough)
			}
		})
		if tries == 0 {
			l.start(wire.ProcessStartParams{ProcessID: "r", Argv: []string{"cat", file}})
		} else {
			res, err := l.ProcessAttach(t.Context(),
				&wire.ProcessAttachParams{ProcessID: "r", StdoutOffset: int64(len(got))})
			if err != nil || res.Process.ProcessID != "r" {
				t.Fatal(err)
			}
		}
		select {
		case <-enough:
		case <-time.After(2 * time.Minute):
			t.Fatal("nothing comes")
		}
		_ = l.Close() // in the middle
		l.seen.Lock() // its remaining events arrive too late
		l.deaf = true
		l.seen.Unlock()
		if tries > 100 {
			t.Fatal("too many tries")
		}
	}
	if !bytes.Equal(got, data) {
		t.Error("the bytes differ")
	}
}

// TestReplayWhole checks that a process that waits for its reader loses no output, however often
// the connection is lost.
func TestReplayWhole(t *testing.T) {
	h := newHarness(t)
	const lines = 2000
	keeper := h.listen(nil)
	// A second attached connection that does not acknowledge blocks the process.
	id := keeper.start(wire.ProcessStartParams{
		Argv:   script(fmt.Sprintf("for ((i=0;i<%d;i++)); do printf '%%0512d\\n' $i; done", lines)),
		Window: 1})
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "%0512d\n", i)
	}
	var got []byte
	for tries := 1; len(got) < want.Len(); tries++ {
		c := h.connect()
		sid := c.NewStream()
		r, err := c.Receiver(sid)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.ProcessAttach(t.Context(),
			&wire.ProcessAttachParams{ProcessID: id, StdoutOffset: int64(len(got)),
				StdoutStream: sid})
		if err != nil {
			t.Fatal(err)
		}
		if res.StdoutOffset != int64(len(got)) {
			t.Fatalf("attached at %d, want %d", res.StdoutOffset, len(got))
		}
		part := make([]byte, 300_000)
		n, err := io.ReadFull(r, part)
		got = append(got, part[:n]...)
		if err != nil && len(got) < want.Len() {
			t.Fatalf("%d bytes: %v", len(got), err)
		}
		_ = c.Close()
		if tries > 10 {
			t.Fatal("too many tries")
		}
	}
	if string(got) != want.String() {
		t.Error("the bytes differ")
	}
}

// TestLost checks that the loss in a small log is reported exactly.
func TestLost(t *testing.T) {
	h := newHarnessWith(t, Options{Keep: 1 << 16})
	l := h.listen(nil)
	id := l.start(wire.ProcessStartParams{Argv: script("head -c 1000000 /dev/zero; echo end"),
		Detach: true})
	if _, err := l.ProcessWait(t.Context(), &wire.ProcessWaitParams{ProcessID: id}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all output to be read", func() bool { return h.info(id).StdoutEnd == 1000004 })
	info := h.info(id)
	if kept := info.StdoutEnd - info.StdoutFirst; kept < 1<<16 || kept > 2<<16 || info.Exit == nil {
		t.Errorf("%d bytes are kept: %+v", kept, info)
	}
	_, err := l.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: id, StdoutOffset: 7})
	if err != nil {
		t.Fatal(err)
	}
	got := l.collect(id)
	if len(got.lost) != 1 || got.lost[0].From != 7 || got.lost[0].To != info.StdoutFirst ||
		got.first["stdout"] != info.StdoutFirst {
		t.Errorf("lost %+v, output from %d; the log begins at %d", got.lost, got.first["stdout"],
			info.StdoutFirst)
	}
	if out := got.out["stdout"]; int64(len(out)) != info.StdoutEnd-info.StdoutFirst ||
		!strings.HasSuffix(out, "\x00end\n") {
		t.Errorf("%d bytes came", len(out))
	}
	_, err = l.ProcessAttach(t.Context(),
		&wire.ProcessAttachParams{ProcessID: id, StdoutOffset: 1 << 40})
	kindIs(t, err, turnstone.KindInvalid)
}

// TestWindow checks that events stop without acknowledgements, that the process waits, and that
// another process's output on the same connection continues.
func TestWindow(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	const size = 20 << 20
	id := l.start(wire.ProcessStartParams{Argv: []string{"head", "-c", strconv.Itoa(size),
		"/dev/zero"}, Window: 100_000})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	other := l.start(wire.ProcessStartParams{Argv: script("seq 1000")})
	got, taken := int64(0), ""
	for taken == "" {
		switch e := (<-l.events).(type) {
		case *wire.ProcessOutputEvent:
			if e.ProcessID == id {
				got += int64(len(e.Data))
			}
		case *wire.ProcessExitedEvent:
			taken = e.ProcessID
		}
	}
	if taken != other {
		t.Fatalf("%s ended first", taken)
	}
	time.Sleep(300 * time.Millisecond) //wait: longer only makes the checks stricter
	runtime.ReadMemStats(&after)
	info := h.info(id)
	// The log, one chunk, and the pipe's content stay with the process.
	if info.Exit != nil || info.StdoutEnd > 2<<20 {
		t.Errorf("the process was not held back: %+v", info)
	}
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	ack := func(offset int64) error {
		return l.ProcessAcknowledge(t.Context(),
			&wire.ProcessAcknowledgeParams{ProcessID: id, Stream: "stdout", Offset: offset})
	}
	kindIs(t, ack(size*2), turnstone.KindInvalid)
	end := false
	for !end {
		select {
		case v := <-l.events:
			switch e := v.(type) {
			case *wire.ProcessOutputEvent:
				got += int64(len(e.Data))
			case *wire.ProcessExitedEvent:
				end = true
			}
		case <-time.After(50 * time.Millisecond): //wait: the loop polls
		}
		if !end {
			if err := ack(got); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got != size {
		t.Errorf("%d bytes, want %d", got, size)
	}
}

// TestSilentClient checks that a client that never reads blocks only itself.
func TestSilentClient(t *testing.T) {
	h := newHarness(t)
	s := h.open()
	f := wire.NewFrames(s, false)
	for i := range 20 {
		msg := fmt.Sprintf(`{"id":%d,"method":"Process.start",`+
			`"params":{"processId":"silent%d","argv":["yes"],"killOnDisconnect":true}}`, i, i)
		if err := f.WriteText([]byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the processes to be there", func() bool {
		res, err := h.ProcessList(t.Context())
		return err == nil && len(res.Processes) == 20
	})
	if r := h.bash("echo fine"); r.stdout != "fine\n" {
		t.Errorf("%+v", r)
	}
	time.Sleep(200 * time.Millisecond) //wait: longer only makes the check stricter
	for i := range 20 {
		if info := h.info(fmt.Sprintf("silent%d", i)); info.StdoutEnd > 3<<20 {
			t.Errorf("%s has written %d bytes", info.ProcessID, info.StdoutEnd)
		}
	}
	_ = s.Close()
	waitFor(t, "the processes to end with their connection", func() bool {
		for i := range 20 {
			if h.info(fmt.Sprintf("silent%d", i)).Exit == nil {
				return false
			}
		}
		return true
	})
}

// TestDetach checks that a process without an attached connection continues, and that its newest
