package machine

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A netAccepter is a net.Listener as an Accepter.
type netAccepter struct{ net.Listener }

func (l netAccepter) Accept() (io.ReadWriteCloser, error) { return l.Listener.Accept() }

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

// greeted connects like a host.
func greeted(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	nonce := []byte("0123456789abcdef")
	if _, err := conn.Write(append([]byte(Hello), nonce...)); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, HelloSize)
	if _, err := io.ReadFull(conn, back); err != nil || !bytes.Equal(back, nonce) {
		t.Fatalf("the agent answers %q, %v", back, err)
	}
	return conn
}

func TestListenerPort(t *testing.T) {
	l, path := listen(t)
	p := NewListenerPort(netAccepter{l})
	if _, err := p.Write([]byte("x")); err == nil {
		t.Error("a write without a connection is no error")
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		buf := make([]byte, 64)
		for {
			n, err := p.Read(buf)
			if err != nil {
				return
			}
			lines <- string(buf[:n])
		}
	}()
	// A connection that does not say hello is not served, and does no harm.
	bad, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Write([]byte(strings.Repeat("GET / ", 10))); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Read(make([]byte, 1)); err == nil {
		t.Error("it was answered")
	}
	_ = bad.Close()
	for _, word := range []string{"one", "two", "three"} { // each over a separate connection
		conn := greeted(t, path)
		if _, err := conn.Write([]byte(word)); err != nil {
			t.Fatal(err)
		}
		if got := <-lines; got != word {
			t.Errorf("got %q, want %q", got, word)
		}
		if _, err := p.Write([]byte("back")); err != nil {
			t.Fatal(err)
		}
		back := make([]byte, 4)
		if _, err := io.ReadFull(conn, back); err != nil || string(back) != "back" {
			t.Fatalf("%q, %v", back, err)
		}
		_ = conn.Close()
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := <-lines; ok {
		t.Error("a closed port reads on")
	}
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) &&
		!errors.Is(err, net.ErrClosed) {
		t.Errorf("reading a closed port: %v", err)
	}
}

// TestListenVsock checks that a vsock listener works where vsocks exist, and that closing it ends
// the wait.
func TestListenVsock(t *testing.T) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no vsock here: %v", err)
	}
	_ = unix.Close(fd)
	l, err := listenVsock(unix.VMADDR_PORT_ANY)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("nobody connects, and it ends: %v", err)
	case <-time.After(20 * time.Millisecond): //wait: longer only makes the check stricter
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("a closed listener waits on")
	}
}

func TestDiskNames(t *testing.T) {
	names := diskNames("quiet turnstone.disks=root,scratch,layer0 panic=-1")
	for disk, want := range map[string]string{"vda": "root", "vdb": "scratch", "vdc": "layer0",
		"vdd": ""} {
		if got := diskSerial(disk, names); got != want {
			t.Errorf("%s is %q, want %q", disk, got, want)
		}
	}
	if got := diskNames("quiet"); got != nil {
		t.Errorf("got %v", got)
	}
	if got := diskNames("turnstone.disks=" + strings.Repeat("a,", 40)); len(got) != 26 {
		t.Errorf("%d names", len(got))
	}
}

func TestOpenChannelRefusesNonsense(t *testing.T) {
	if _, err := openChannel("turnstone.vsock=door"); err == nil ||
		!strings.Contains(err.Error(), "turnstone.vsock") {
		t.Errorf("got %v", err)
	}
}
