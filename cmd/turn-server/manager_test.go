package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A manager is a service manager: it holds the sockets of a service, and hears what its process says.
type manager struct {
	t       *testing.T
	callers *net.TCPListener
	socket  *net.UnixListener // of the operator
	hears   *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir := t.TempDir()
	m := &manager{t: t}
	var err error
	m.callers, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(t, err)
	m.socket, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix",
		Name: filepath.Join(dir, "operator.sock")})
	check(t, err)
	m.hears, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram",
		Name: filepath.Join(dir, "notify.sock")})
	check(t, err)
	t.Cleanup(func() { _, _, _ = m.callers.Close(), m.socket.Close(), m.hears.Close() })
	return m
}

// start starts the service as systemd does: the sockets are open descriptors from 3 on, and the
// variables name the process.
func (m *manager) start(home string, watchdog bool) *process {
	t := m.t
	t.Helper()
	if _, err := os.Stat(filepath.Join(bin(t), "turn-server")); err != nil {
		t.Skip("make build has not built turn-server")
	}
	p := &process{t: t, home: home, done: make(chan struct{})}
	script := "export LISTEN_PID=$$ "
	env := []string{"LISTEN_FDS=2", "LISTEN_FDNAMES=callers:operator",
		"NOTIFY_SOCKET=" + m.hears.LocalAddr().String()}
	if watchdog {
		script += "WATCHDOG_PID=$$ "
		env = append(env, "WATCHDOG_USEC=300000")
	}
	p.cmd = exec.Command("bash", "-c", script+`; exec "$0" "$@"`,
		filepath.Join(bin(t), "turn"), "serve")
	p.cmd.Env = environ(t, home, append(env, "TURN_SERVER_LISTEN_ADDRESS=127.0.0.1:1",
		"TURN_SERVER_PEERS_LISTEN=unix:"+filepath.Join(t.TempDir(), "peers.sock"))...)
	for _, l := range []interface{ File() (*os.File, error) }{m.callers, m.socket} {
		f, err := l.File()
		check(t, err)
		defer func() { check(t, f.Close()) }()
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, f)
	}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.begin("serve")
	return p
}

// next returns what the process says next, except that it lives.
func (m *manager) next(alive bool) string {
	m.t.Helper()
	b := make([]byte, 4096)
	check(m.t, m.hears.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		n, err := m.hears.Read(b)
		check(m.t, err)
		if (string(b[:n]) == "WATCHDOG=1") == alive {
			return string(b[:n])
		}
	}
}

// get asks the socket for callers how the server is, on a connection of its own.
func (m *manager) get() (int, error) {
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr}).Get("http://" + m.callers.Addr().String() + "/healthz")
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	return r.StatusCode, err
}

// TestServiceManager: turn serve takes the sockets of a service manager, in place of its settings.
// Callers who come before it serves, or between two of its processes, wait and are answered. It
// tells the manager that it is ready, that it lives, that it reads files again, and that it ends.
func TestServiceManager(t *testing.T) {
	m, home := newManager(t), filepath.Join(t.TempDir(), "home")
	type answer struct {
		status int
		err    error
	}
	early := make(chan answer, 1)
	ask := func() {
		status, err := m.get()
		early <- answer{status, err}
	}
	for range 2 {
		go ask()
		p := m.start(home, true)
		if a := <-early; a.status != http.StatusOK || a.err != nil {
			t.Errorf("a caller who waited: %d, %v", a.status, a.err)
		}
		ready := m.next(false)
		for _, want := range []string{"READY=1\n", m.callers.Addr().String(),
			m.socket.Addr().String()} {
			if !strings.Contains(ready, want) {
				t.Errorf("%q does not have %q", ready, want)
			}
		}
		operator := &client{t, filepath.Join(t.TempDir(), "home"),
			[]string{"TURN_HOST=unix:" + m.socket.Addr().String()}}
		operator.must("token", "ls")
		m.next(true)
		// a child has its own descriptors from 3 on, before it looks up the program that it becomes
		for fd := 3; fd < 16; fd++ {
			file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.cmd.Process.Pid, fd))
			if err == nil && filepath.Base(file) == "turn" {
				t.Errorf("the holder's program is at descriptor %d, which a child replaces", fd)
			}
		}
		p.kill(syscall.SIGHUP)
		if got := m.next(false); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
			t.Errorf("%q", got)
		}
		if got := m.next(false); !strings.HasPrefix(got, "READY=1\n") {
			t.Errorf("%q", got)
		}
		p.end()
		if got := m.next(false); !strings.HasPrefix(got, "STOPPING=1\n") {
			t.Errorf("%q", got)
		}
		// the manager's sockets are not the server's to remove
		if _, err := os.Stat(m.socket.Addr().String()); err != nil {
			t.Error(err)
		}
	}
}

// TestUnitSockets: sockets that cannot be what they are said to be end the start, with the reason.
func TestUnitSockets(t *testing.T) {
	m := newManager(t)
	for _, c := range []struct {
		names, want string
		sockets     []interface{ File() (*os.File, error) }
	}{
		{"callers:callers", "is the second one with its purpose",
			[]interface{ File() (*os.File, error) }{m.callers, m.callers}},
		{"callers", "is a unix socket, and callers need TCP",
			[]interface{ File() (*os.File, error) }{m.socket}},
		{"peers", "is TCP, which needs mutual TLS",
			[]interface{ File() (*os.File, error) }{m.callers}},
	} {
		cmd := exec.Command("bash", "-c", `export LISTEN_PID=$$; exec "$0" "$@"`,
			filepath.Join(bin(t), "turn"), "serve", "--role", "gateway,controller")
		cmd.Env = environ(t, filepath.Join(t.TempDir(), "home"), "LISTEN_FDNAMES="+c.names,
			"LISTEN_FDS="+string(rune('0'+len(c.sockets))), "TURN_SERVER_LISTEN_ADDRESS=127.0.0.1:0",
			"TURN_SERVER_PEERS_LISTEN=unix:"+filepath.Join(t.TempDir(), "peers.sock"))
		for _, l := range c.sockets {
			f, err := l.File()
			check(t, err)
			defer func() { check(t, f.Close()) }()
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v\n%s", c.names, err, out)
		}
	}
}
