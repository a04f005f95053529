package machine

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pipesOf returns an agent's pipes, with the host's ends. nonblock is the possible state in a
// restored sandbox.
func pipesOf(t *testing.T, nonblock bool) (p *pipes, in, out *os.File) {
	t.Helper()
	var a, b [2]int
	mustDo(t, errors.Join(unix.Pipe2(a[:], unix.O_CLOEXEC), unix.Pipe2(b[:], unix.O_CLOEXEC)))
	mustDo(t, errors.Join(unix.SetNonblock(a[0], nonblock), unix.SetNonblock(b[1], nonblock)))
	return &pipes{in: a[0], out: b[1]}, os.NewFile(uintptr(a[1]), "in"),
		os.NewFile(uintptr(b[0]), "out")
}

func TestPipes(t *testing.T) {
	for _, nonblock := range []bool{false, true} {
		p, in, out := pipesOf(t, nonblock)
		data := bytes.Repeat([]byte("data"), 200_000) // more than a pipe holds
		go func() {
			time.Sleep(20 * time.Millisecond) //wait: the reader probably waits by then; the test holds if not
			_, _ = in.Write(data)
			_ = in.Close()
		}()
		got, err := io.ReadAll(p)
		mustDo(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d", len(got), len(data))
		}
		go func() {
			_, _ = p.Write(data)
			_ = p.Close()
		}()
		if got, err = io.ReadAll(out); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
		}
		mustDo(t, out.Close())
	}
}

// TestPipesWaitForTheHost checks that the host's end may be missing until the host has sent data,
// because a checkpoint is taken without it.
func TestPipesWaitForTheHost(t *testing.T) {
	p, in, out := pipesOf(t, false)
	mustDo(t, in.Close())
	read := make(chan string)
	go func() {
		b := make([]byte, 10)
		n, err := p.Read(b)
		if err != nil {
			read <- err.Error()
		}
		read <- string(b[:n])
	}()
	select {
	case s := <-read:
		t.Fatalf("read %q of nobody", s)
	case <-time.After(50 * time.Millisecond): //wait: longer only makes the check stricter
	}
	var again [2]int // a restore replaces the pipe
	mustDo(t, unix.Pipe2(again[:], unix.O_CLOEXEC))
	mustDo(t, unix.Dup3(again[0], p.in, unix.O_CLOEXEC))
	_, err := unix.Write(again[1], []byte("hello"))
	mustDo(t, err)
	if s := <-read; s != "hello" {
		t.Errorf("read %q", s)
	}
	mustDo(t, errors.Join(unix.Close(again[0]), unix.Close(again[1])))
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	mustDo(t, errors.Join(p.Close(), out.Close()))
}

func TestMountedLayers(t *testing.T) {
	lower, context, err := mountedLayers([]string{"layer0", "layer1"})
	mustDo(t, err)
	if got := strings.Join(append(lower, context...),
		" "); got != "/layer/1/fs /layer/0/fs /layer/1/context /layer/0/context" {
		t.Error(got)
	}
	for _, bad := range []string{"layer6", "layer-1", "layer", "home", "layer0/x", "0"} {
		if _, _, err := mountedLayers([]string{bad}); err == nil {
			t.Errorf("%q is a slot", bad)
		}
	}
}

// TestPipesOfALink checks that reads use the poller while there is a link and the host has sent data,
// and that nothing of that is left for the pipe that replaces this one.
func TestPipesOfALink(t *testing.T) {
	p, in, out := pipesOf(t, false)
	defer func() { mustDo(t, errors.Join(p.Close(), in.Close(), out.Close())) }()
	read := func(from *os.File, want string, polled bool) {
		t.Helper()
		_, err := from.WriteString(want)
		mustDo(t, err)
		b := make([]byte, 10)
		n, err := p.Read(b)
		mustDo(t, err)
		if string(b[:n]) != want || (p.polled.Load() != nil) != polled {
			t.Errorf("read %q, not %q; the poller is used: %t", b[:n], want, !polled)
		}
	}
	read(in, "no link", false)
	p.Linked(true)
	read(in, "first", true)
	read(in, "second", true)
	p.Linked(false)
	read(in, "marker", false)
	p.Linked(true) // the read of the next link begins before the machine is saved
	var again [2]int
	mustDo(t, unix.Pipe2(again[:], unix.O_CLOEXEC))
	mustDo(t, errors.Join(unix.Dup3(again[0], p.in, unix.O_CLOEXEC), unix.Close(again[0])))
	restored := os.NewFile(uintptr(again[1]), "restored")
	read(restored, "restored", true)
	read(restored, "again", true)
	mustDo(t, restored.Close())
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	p.Linked(false)
}
