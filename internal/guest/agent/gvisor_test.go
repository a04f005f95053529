package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/wire"
)

// pipesOf is an agent's pipes, with the host's ends. nonblock is how a restored
// sandbox may have them.
func pipesOf(t *testing.T, nonblock bool) (p *pipes, in, out *os.File) {
	t.Helper()
	var a, b [2]int
	must(t, errors.Join(unix.Pipe2(a[:], unix.O_CLOEXEC), unix.Pipe2(b[:], unix.O_CLOEXEC)))
	must(t, errors.Join(unix.SetNonblock(a[0], nonblock), unix.SetNonblock(b[1], nonblock)))
	return &pipes{in: a[0], out: b[1]}, os.NewFile(uintptr(a[1]), "in"), os.NewFile(uintptr(b[0]), "out")
}

func TestPipes(t *testing.T) {
	for _, nonblock := range []bool{false, true} {
		p, in, out := pipesOf(t, nonblock)
		data := bytes.Repeat([]byte("data"), 200_000) // more than a pipe holds
		go func() {
			time.Sleep(20 * time.Millisecond)
			_, _ = in.Write(data)
			_ = in.Close()
		}()
		got, err := io.ReadAll(p)
		must(t, err)
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
		must(t, out.Close())
	}
}

// Until the host has spoken its end may not be there: a checkpoint is taken without it.
func TestPipesWaitForTheHost(t *testing.T) {
	p, in, out := pipesOf(t, false)
	must(t, in.Close())
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
	case <-time.After(50 * time.Millisecond):
	}
	var again [2]int // a restore puts another pipe in its place
	must(t, unix.Pipe2(again[:], unix.O_CLOEXEC))
	must(t, unix.Dup3(again[0], p.in, unix.O_CLOEXEC))
	_, err := unix.Write(again[1], []byte("hello"))
	must(t, err)
	if s := <-read; s != "hello" {
		t.Errorf("read %q", s)
	}
	must(t, errors.Join(unix.Close(again[0]), unix.Close(again[1])))
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	must(t, errors.Join(p.Close(), out.Close()))
}

func TestMountedLayers(t *testing.T) {
	lower, context, err := mountedLayers([]string{"layer0", "layer1"})
	must(t, err)
	if got := strings.Join(append(lower, context...), " "); got != "/layer/1/fs /layer/0/fs /layer/1/context /layer/0/context" {
		t.Error(got)
	}
	for _, bad := range []string{"layer6", "layer-1", "layer", "home", "layer0/x", "0"} {
		if _, _, err := mountedLayers([]string{bad}); err == nil {
			t.Errorf("%q is a slot", bad)
		}
	}
}

// On the host, what is for the first process of a sandbox does nothing.
func TestOnlyTheFirstProcess(t *testing.T) {
	if err := killOthers(t.Context()); err == nil {
		t.Error("it would have killed every process")
	}
}

// frozenAgent has a directory as its scratch disk, and takes it for frozen.
func frozenAgent(t *testing.T) (a *Agent, c *wire.Client, dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "upper"), 0o755))
	d := &disks{upper: "upper"}
	must(t, d.add(dir))
	renew := func(*wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
		return &wire.SandboxRenewResult{}, nil
	}
	a, err := New(Options{RunDir: t.TempDir(), Cwd: t.TempDir(), disks: d, renew: renew})
	must(t, err)
	near, far := net.Pipe()
	a.ServeConn(far)
	c = wire.NewClient(near)
	t.Cleanup(func() { must(t, errors.Join(c.Close(), a.Close(), unix.Close(d.fds[0]))) })
	return a, c, dir
}

func TestExportOverTheWire(t *testing.T) {
	a, c, dir := frozenAgent(t)
	must(t, os.WriteFile(filepath.Join(dir, "upper", "f"), bytes.Repeat([]byte("x"), 3<<20), 0o644))
	read := func(r io.Reader) error {
		u, err := upperdir.Read(t.Context(), r, t.TempDir(), upperdir.Options{})
		if err != nil {
			return err
		}
		defer func() { _ = u.Close() }()
		kids, err := u.Root().Children(t.Context())
		if err != nil || len(kids) != 1 {
			t.Errorf("%v %v", kids, err)
		}
		return err
	}
	if err := c.Export(t.Context(), read); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("not frozen: %v", err)
	}
	a.frozen.Store(true)
	for range 2 {
		must(t, c.Export(t.Context(), read))
	}
	enough := errors.New("enough")
	if err := c.Export(t.Context(), func(r io.Reader) error { _, _ = r.Read(make([]byte, 10)); return enough }); !errors.Is(err, enough) {
		t.Errorf("given up: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Export(ctx, func(r io.Reader) error {
		cancel()
		_, err := io.Copy(io.Discard, r)
		return err
	})
	if err == nil {
		t.Error("the call went on when its context had ended")
	}
	must(t, c.Export(t.Context(), read)) // the connection lives on
}

// A sandbox that goes on afterwards is held from its export to its renewal.
func TestExportHeld(t *testing.T) {
	_, c, dir := frozenAgent(t)
	write := func() error {
		_, err := c.FileSystemWrite(t.Context(), &wire.FileSystemWriteParams{Path: filepath.Join(dir, "f"), Data: []byte("x")})
		return err
	}
	drain := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	must(t, write())
	must(t, c.ExportHeld(t.Context(), drain))
	if err := write(); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a write while it stands still: %v", err)
	}
	if err := c.ExportHeld(t.Context(), drain); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("again: %v", err)
	}
	_, err := c.SandboxRenew(t.Context(), &wire.SandboxRenewParams{})
	must(t, err)
	must(t, write())
	must(t, os.Rename(filepath.Join(dir, "upper"), filepath.Join(dir, "gone")))
	if err := c.ExportHeld(t.Context(), drain); err == nil {
		t.Error("there is nothing to export")
	}
	must(t, write()) // it was let go
}

func TestWrites(t *testing.T) {
	w := new(writes)
	must(t, w.enter(t.Context()))
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.stop(soon); err == nil {
		t.Error("stopped while one runs")
	}
	w.resume()
	// One that waits for its client holds nobody up, and goes on afterwards.
	r, feed := io.Pipe()
	read := make(chan struct{})
	go func() {
		_, _ = w.from(r).Read(make([]byte, 1))
		close(read)
		w.leave()
	}()
	must(t, w.stop(t.Context()))
	_, _ = feed.Write([]byte("x"))
	select {
	case <-read:
		t.Error("it goes on while the disk is frozen")
	case <-time.After(30 * time.Millisecond):
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.enter(ended); err == nil {
		t.Error("another begins")
	}
	w.resume()
	<-read
	must(t, w.enter(t.Context()))
	w.leave()
	must(t, w.stop(t.Context()))
	w.resume()
}
