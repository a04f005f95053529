package firecracker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// outOf returns a machine whose Firecracker writes its snapshots to the new folder dir.
func outOf(t *testing.T) (m *machine, dir string) {
	t.Helper()
	dir = t.TempDir()
	f, err := os.Open(dir)
	check(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return &machine{owner: uint32(os.Geteuid()), cell: &cell{dir: filepath.Dir(dir), outDir: f}},
		dir
}

// TestTake checks that only a file that Firecracker itself has written there is taken, and that no
// other file is read or changed.
func TestTake(t *testing.T) {
	const limit = 1 << 20
	host := t.TempDir()
	victim := filepath.Join(host, "victim")
	for name, c := range map[string]struct {
		place func(at string) error
		says  string // empty: it is taken
	}{
		"a file": {func(at string) error {
			return os.WriteFile(at, []byte("memory"),
				0o600)
		}, ""},
		"nothing": {func(string) error { return nil }, "has not written"},
		"a link": {func(at string) error { return os.Symlink(victim, at) },
			"too many levels"},
		"another name": {func(at string) error { return os.Link(victim, at) }, "2 names"},
		"a folder": {func(at string) error { return os.Mkdir(at, 0o700) },
			"is not a regular file"},
		"a pipe": {func(at string) error { return unix.Mkfifo(at, 0o600) },
			"is not a regular file"},
		"a large file": {func(at string) error {
			return errors.Join(os.WriteFile(at, nil, 0o600),
				os.Truncate(at, limit+1))
		}, "at most"},
		"a huge file": {func(at string) error {
			return errors.Join(os.WriteFile(at, nil, 0o600),
				os.Truncate(at, 8<<40))
		}, "at most"},
		"a link to none": {func(at string) error {
			return os.Symlink(filepath.Join(host, "none"),
				at)
		}, "too many levels"},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.WriteFile(victim, []byte("the host's"), 0o600))
			m, dir := outOf(t)
			check(t, c.place(filepath.Join(dir, ramFile)))
			dst := filepath.Join(t.TempDir(), ramFile)
			err := m.take(t.Context(), ramFile, dst, limit)
			got, readErr := os.ReadFile(dst)
			if c.says == "" {
				if err != nil || string(got) != "memory" {
					t.Errorf("%v: took %q, %v", err, got, readErr)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.says) || readErr == nil {
				t.Errorf("got %v, want %q; took %q", err, c.says, got)
			}
			st, err := os.Lstat(victim)
			check(t, err)
			if b, err := os.ReadFile(victim); err != nil || string(b) != "the host's" ||
				st.Mode() != 0o600 {
				t.Errorf("the host's file has %q, %v, mode %v", b, err, st.Mode())
			}
			check(t, os.RemoveAll(victim))
		})
	}
}

// TestTakeOwner checks that a jailed Firecracker's files belong to nobody.
func TestTakeOwner(t *testing.T) {
	m, dir := outOf(t)
	check(t, os.WriteFile(filepath.Join(dir, stateFile), []byte("state"), 0o600))
	m.owner = nobody
	if err := m.take(t.Context(), stateFile, filepath.Join(t.TempDir(), stateFile),
		1<<20); err == nil || !strings.Contains(err.Error(), "it belongs to user ") {
		t.Errorf("got %v", err)
	}
}

// TestTakeSwapped checks that a file that is swapped during the copy is either taken in its
// original form or rejected, and that the host's file is never copied.
func TestTakeSwapped(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	check(t, os.WriteFile(victim, []byte("the host's"), 0o600))
	rapid.Check(t, func(rt *rapid.T) {
		m, dir := outOf(t)
		at, spare := filepath.Join(dir, ramFile), filepath.Join(dir, "spare")
		check(t, errors.Join(os.WriteFile(at, []byte("memory"), 0o600), os.Symlink(victim, spare)))
		swaps := rapid.IntRange(1, 20).Draw(rt, "swaps")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range swaps {
				_ = unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, spare, unix.RENAME_EXCHANGE)
			}
		}()
		dst := filepath.Join(t.TempDir(), ramFile)
		err := m.take(t.Context(), ramFile, dst, 1<<20)
		<-done
		if got, _ := os.ReadFile(dst); err == nil && string(got) != "memory" ||
			strings.Contains(string(got), "host") {
			rt.Fatalf("took %q, %v", got, err)
		}
	})
}

// TestDialIn checks that a link in a jail does not lead to a socket of the host.
func TestDialIn(t *testing.T) {
	dir, host := t.TempDir(), t.TempDir()
	for _, at := range []string{filepath.Join(dir, "own"), filepath.Join(host, "other")} {
		l, err := net.Listen("unix", at)
		check(t, err)
		defer func() { _ = l.Close() }()
	}
	check(t, errors.Join(os.Symlink(filepath.Join(host, "other"), filepath.Join(dir, "link")),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)))
	f, err := os.Open(dir)
	check(t, err)
	defer func() { _ = f.Close() }()
	conn, err := dialIn(t.Context(), f, "own")
	check(t, err)
	_ = conn.Close()
	for _, name := range []string{"link", "file"} {
		if conn, err := dialIn(t.Context(), f, name); !errors.Is(err, syscall.ENOTSOCK) {
			if err == nil {
				_ = conn.Close()
			}
			t.Errorf("%s: %v", name, err)
		}
	}
	var op *net.OpError
	if _, err := dialIn(t.Context(), f, "none"); !errors.As(err, &op) || op.Op != "dial" ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket that is not there yet: %v", err)
	}
}

// TestInherited checks that a machine's processes do not inherit the descriptors that this process
// was started with.
func TestInherited(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "canary")
	check(t, os.WriteFile(canary, nil, 0o600))
	fd, err := unix.Open(canary, unix.O_RDONLY, 0) // like a shell's `7<canary`
	check(t, err)
	defer func() { _ = unix.Close(fd) }()
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", vm.(*machine).PID()))
	if err != nil || len(links) < 3 {
		t.Fatal(links, err)
	}
	for _, link := range links {
		if to, _ := os.Readlink(link); to == canary {
			t.Errorf("it has %s open", to)
		}
	}
}
