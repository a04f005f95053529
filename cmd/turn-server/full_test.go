package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// homeSize makes this program as a server mount a file system of a size over its state directory.
const homeSize = "TURNSTONE_TEST_HOME_SIZE"

// mountHome does what homeSize asks for. Its mount namespace has no other process. Links in the state
// directory are in it afterwards, too.
func mountHome() {
	size := os.Getenv(homeSize)
	if size == "" {
		return
	}
	_ = os.Unsetenv(homeSize)
	home, links := os.Getenv("TURN_HOME"), map[string]string{}
	entries, err := os.ReadDir(home)
	for _, e := range entries {
		if err == nil {
			links[e.Name()], err = os.Readlink(filepath.Join(home, e.Name()))
		}
	}
	if err == nil {
		err = unix.Mount("turn", home, "tmpfs", 0, "mode=0700,size="+size)
	}
	for name, to := range links {
		if err == nil {
			err = os.Symlink(to, filepath.Join(home, name))
		}
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "tmpfs:", err)
		os.Exit(1)
	}
	if len(os.Args) == 1 {
		os.Exit(0) // only to see whether it can be mounted
	}
}

// namespaces gives a process a mount namespace of its own; a user who is not root gets a user
// namespace too, without which nobody else may mount.
func namespaces() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		a.Cloneflags = syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// small returns the command of a server whose state directory has a size. The test is skipped where
// the host lets its user mount nothing: some hosts have no user namespaces, or only for root.
func small(t *testing.T, size string, args ...string) *process {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	check(t, os.Mkdir(home, 0o700))
	probe := asServerCommand(t, home, []string{homeSize + "=" + size})
	probe.SysProcAttr = namespaces()
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("no small file system can be mounted here: %v\n%s", err, out)
	}
	p := &process{t: t, home: home, done: make(chan struct{})}
	p.cmd = asServerCommand(t, home, []string{homeSize + "=" + size}, append([]string{"serve"}, args...)...)
	p.cmd.SysProcAttr = namespaces()
	p.cmd.Stdout, p.cmd.Stderr = p, p
	return p
}

// fill leaves no byte free in dir, and returns what undoes it.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	check(t, err)
	// bounded, because a size that is not in effect must not fill the host's disk
	if _, err = io.Copy(f, io.LimitReader(zeros{}, 64<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%s is not full: %v", dir, err)
	}
	check(t, f.Close())
	return func() { check(t, os.Remove(path)) }
}

// zeros are bytes without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestFullHome: a server whose disk is full refuses what it would have to store, says so, and
// answers everything else. It needs no restart when there is room again.
func TestFullHome(t *testing.T) {
	p := small(t, "32m", "--listen", "127.0.0.1:0")
	p.begin("--listen")
	p.home = fmt.Sprintf("/proc/%d/root%s", p.cmd.Process.Pid, p.home) // as the server sees it
	p.await("node registered")
	secret, url := token(t, p), "http://"+p.address()
	operator := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=" + p.socket()}}
	file := filepath.Join(t.TempDir(), "a.md")
	check(t, os.WriteFile(file, []byte(document), 0o600))
	id := regexp.MustCompile(`(?m)^(tk_\S+) +ci `).FindStringSubmatch(operator.must("token", "ls"))
	if id == nil {
		t.Fatal("the token is not listed")
	}

	for range 2 {
		empty := fill(t, p.home)
		for _, args := range [][]string{{"token", "create", "--name", "late", "--ttl", "1h"},
			{"token", "revoke", id[1]}, {"sandbox", "create"}, {"run", file}} {
			_, errs, err := operator.turn(args...)
			if err == nil || !strings.Contains(err.Error(), "status 3") ||
				!strings.Contains(errs, "is full") || !strings.Contains(errs, "hint: free some space") {
				t.Errorf("turn %q on a full disk: %v\n%s", args, err, errs)
			}
		}
		works(t, url, secret)
		if list := operator.must("token", "ls"); strings.Contains(list, "late") {
			t.Errorf("a token that was not created is listed:\n%s", list)
		}
		operator.must("sandbox", "ls")
		empty()
		operator.must("token", "create", "--name", "again", "--ttl", "1h")
		works(t, url, secret)
	}
	operator.must("token", "revoke", id[1])
	fill(t, p.home)
	p.end()
	if strings.Contains(p.text(), secret) {
		t.Error("the log has the token")
	}
}

// works reports a server that does not answer a caller's call, or is not well.
func works(t *testing.T, url, secret string) {
	t.Helper()
	if status, got := call(t, http.DefaultClient, url, secret, "ServerService/ListNodes",
		"{}"); status != http.StatusOK || !strings.Contains(got, `"ssh-ed25519 `) {
		t.Errorf("%d %s", status, got)
	}
	r, err := http.Get(url + "/readyz")
	check(t, err)
	if _ = r.Body.Close(); r.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %d", r.StatusCode)
	}
}

// TestNoRoomToStart: a server that cannot store its keys and its database does not start, and says
// why.
func TestNoRoomToStart(t *testing.T) {
	p := small(t, "16k", "--listen", "127.0.0.1:0")
	err := p.cmd.Run()
	if got := p.text(); err == nil || !strings.Contains(got, "is full") ||
		!strings.Contains(got, "hint: free some space") {
		t.Errorf("%v: %s", err, got)
	}
}
