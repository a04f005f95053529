package firecracker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
)

// A held is the input of a process that holds a machine.
type held struct {
	Home, Binary, Jailer string
	Wall                 host.Wall
	Machine              substrate.Machine
}

// hold starts the machine that dir/held.json describes, prints its process's ID, and stays until it
// is killed.
func hold(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "held.json"))
	if err != nil {
		return err
	}
	var h held
	if err := json.Unmarshal(b, &h); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := open(ctx, &statedir.Dir{Root: h.Home}, Options{Binary: h.Binary, Jailer: h.Jailer})
	if err != nil {
		return err
	}
	s.wall.Wall = h.Wall
	vm, err := s.Restore(ctx, h.Machine)
	if err != nil {
		return err
	}
	fmt.Println(vm.(*machine).PID())
	<-vm.Done()
	return errors.New("the machine ended first")
}

// killed starts a machine in another process and kills that process, which cannot prepare for it.
func (b *bench) killed(t *testing.T) {
	t.Helper()
	jailer := b.s.jailer
	if jailer == "" {
		jailer = b.script(t, "none", sayJailer)
	}
	m := b.m
	m.Agent = nil
	text, err := json.Marshal(struct {
		Home, Binary, Jailer string
		Wall                 host.Wall
		Machine              map[string]any
	}{b.s.home.Root, b.s.binary, jailer, b.s.wall.Wall, map[string]any{"Kernel": m.Kernel,
		"KernelDigest": m.KernelDigest, "Initramfs": m.Initramfs,
		"InitDigest": m.InitDigest, "Root": m.Root, "RootDigest": m.RootDigest, "Shape": m.Shape,
		"Layers": m.Layers, "Home": m.Home}})
	check(t, err)
	check(t, os.WriteFile(filepath.Join(b.dir, "held.json"), text, 0o600))
	substratetest.Killed(t, b.dir)
}

// TestKilledHolder checks that a machine does not outlive the process that holds it, and that the
// next process cleans up.
func TestKilledHolder(t *testing.T) {
	b := newBench(t, "")
	b.killed(t)
	cells, err := os.ReadDir(b.s.home.Path(cellsDir))
	check(t, err)
	if len(cells) == 0 {
		t.Fatal("there is nothing to sweep")
	}
	for _, c := range cells {
		if _, err := os.Stat(b.s.home.Path(cellsDir, c.Name(), scratchName)); err == nil {
			t.Error("its scratch disk has a name, and takes up room")
		}
	}
	vm, err := b.s.Restore(within(t), b.m) // a running machine is not swept
	check(t, err)
	sweepCells(b.s.home)
	speak(t, vm)
	b.nothingLeft(t)
}

// TestCopyPages checks that a copy is equal up to its limit, and has no page of zeros.
func TestCopyPages(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const page = 4096
		n := rapid.IntRange(0, 600).Draw(rt, "pages")
		want := make([]byte, n*page+rapid.IntRange(0, page-1).Draw(rt, "rest"))
		for i := range want[:len(want)/page*page] {
			if i%page == 0 && rapid.IntRange(0, 3).Draw(rt, "data") == 0 {
				want[i+rapid.IntRange(0, page-1).Draw(rt, "at")] = 1
			}
		}
		f, err := os.CreateTemp(t.TempDir(), "")
		check(t, err)
		defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
		_, err = f.Write(want)
		check(t, err)
		limit := rapid.Int64Range(0, int64(len(want))+page).Draw(rt, "limit")
		to, err := os.CreateTemp(t.TempDir(), "")
		check(t, err)
		defer func() { _, _ = to.Close(), os.Remove(to.Name()) }()
		check(t, copyPages(t.Context(), to, f, limit))
		got, err := os.ReadFile(to.Name())
		check(t, err)
		want = want[:min(limit, int64(len(want)))]
		if !bytes.Equal(got, want) {
			rt.Fatal("the file is another")
		}
		full := int64(0)
		for i := 0; i < len(want); i += page {
			if bytes.Count(want[i:min(i+page, len(want))], []byte{0}) < min(page, len(want)-i) {
				full += page
			}
		}
		if onDisk(t, to.Name()) > full+8*page { // the file system's metadata
			rt.Fatalf("the copy takes %d bytes, of which %d are not zeros", onDisk(t, to.Name()),
				full)
		}
	})
}

func TestChannel(t *testing.T) {
	c := new(channel)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading nothing: %v", err)
	}
	a1, b1 := net.Pipe()
	c.swap(a1)
	go func() { _, _ = b1.Write([]byte("1")) }()
	buf := make([]byte, 1)
	if _, err := io.ReadFull(c, buf); err != nil || buf[0] != '1' {
		t.Errorf("%q, %v", buf, err)
	}
	a2, b2 := net.Pipe()
	c.swap(a2)
	if _, err := b1.Write([]byte("x")); err == nil {
		t.Error("the connection before is open")
	}
	check(t, c.SetDeadline(time.Unix(1, 0)))
	if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	check(t, c.SetDeadline(time.Time{}))
	go func() { _, _ = io.ReadFull(b2, buf) }()
	if _, err := c.Write([]byte("2")); err != nil {
		t.Error(err)
	}
	check(t, c.Close())
	check(t, c.Close())
	a3, b3 := net.Pipe()
	c.swap(a3) // too late
	if _, err := b3.Write([]byte("x")); err == nil {
		t.Error("a closed channel has taken a connection")
	}
}

func TestExplain(t *testing.T) {
	m := newMachine(turnstone.NewSandboxID(), &cell{})
	_, _ = m.Console.Write([]byte(
		"2026-01-01T00:00:00.0 [sb-1:main:WARN] never mind\n" +
			"2026-01-01T00:00:00.0 [sb-1:main:ERROR] Kvm error: no \x1b access\n" +
			"2026-01-01T00:00:00.0 [sb-1:main:ERROR] Firecracker exiting with error. exit_code=1\n"))
	_, _ = m.stderr.Write([]byte("Error: RunWithApi(MicroVMStoppedWithError(GenericError))\n"))
	err := exec.Command("/bin/sh", "-c", "exit 1").Run()
	if got := m.explain(err).Error(); !strings.Contains(got, "Kvm error: no ? access") {
		t.Errorf("got %q", got)
	}
	killed := exec.Command("/bin/sh", "-c", "kill -BUS $$").Run()
	if got := m.explain(killed).Error(); !strings.Contains(got, "SIGBUS") {
		t.Errorf("got %q", got)
	}
	var exit *exec.ExitError
	if !errors.As(killed, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGBUS {
		t.Error(killed)
	}
}

// TestNewCell checks that a cell that cannot be created leaves nothing, and that an existing cell
// is not used.
func TestNewCell(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	id := turnstone.NewSandboxID()
	c, err := newCell(t.Context(), h, id)
	check(t, err)
	sweepCells(h)
	if _, err := os.Stat(c.dir); err != nil {
		t.Error("a cell that is held was swept")
	}
	c.remove()
	if left, _ := os.ReadDir(h.Path(cellsDir)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	check(t, os.WriteFile(h.Path(cellsDir, string(id)), nil, 0o600))
	if _, err := newCell(t.Context(), h, id); err == nil {
		t.Error("a cell in the place of a file")
	}
	check(t, os.WriteFile(h.Path(cellsDir, "stray.lock"), nil, 0o600))
	sweepCells(h)
	if left, _ := os.ReadDir(h.Path(cellsDir)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
