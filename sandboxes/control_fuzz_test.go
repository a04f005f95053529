package sandboxes

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FuzzRequest: a line is a request or an error, and a decoded request encodes to the same request.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"op":"pause"}`))
	f.Add([]byte(`{"op":"snapshot","dir":"/x","secrets":true} `))
	f.Add([]byte(`{"op":"x","more":[[[]]]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		q, err := parseRequest(line)
		if err != nil {
			return
		}
		b, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseRequest(b); err != nil || again != q {
			t.Fatalf("%+v, %+v, %v", q, again, err)
		}
	})
}

// FuzzAnswer: for any bytes from a holder, in any pieces, reading ends and leaves no descriptor
// open.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("{\"paused\":true}\n"), uint8(3), true)
	f.Add([]byte("no newline"), uint8(1), true)
	f.Fuzz(func(t *testing.T, data []byte, cut uint8, rights bool) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		near, far := conn(t, fds[0]), conn(t, fds[1])
		_ = near.SetDeadline(time.Now().Add(2 * time.Minute))
		go func() {
			at := min(int(cut), len(data))
			if rights && at > 0 {
				_, _, _ = far.WriteMsgUnix(data[:at], unix.UnixRights(0, 1), nil)
			} else {
				_, _ = far.Write(data[:at])
			}
			_, _ = far.Write(data[at:])
			_ = far.Close()
		}()
		line, file, err := readAnswer(near)
		_ = near.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("reading waits on after the holder has closed the connection")
		}
		if err != nil && file != nil {
			t.Fatal("an error and a descriptor")
		}
		if err == nil && len(line) > maxControl+4096 {
			t.Fatalf("a line of %d bytes", len(line))
		}
		closeFile(file)
	})
}

func conn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "pair")
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}
