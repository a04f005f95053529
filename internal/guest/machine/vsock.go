package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/process"
)

// VsockPort is the port on which the agent listens if the machine's channel to the host is a vsock;
// the word turnstone.vsock=PORT on the kernel's command line requests it.
const VsockPort = 1024

// Hello is the host's first text on a connection to a listener's port, followed by HelloSize random
// bytes. The agent echoes these bytes, and then the stream begins. The guest's kernel may reset a
// connection that was made during a restore a moment later (virtio,
// VIRTIO_VSOCK_EVENT_TRANSPORT_RESET): the echo proves to the host that its connection was not
// reset.
const (
	Hello     = "turnstone "
	HelloSize = 16
)

// helloWait bounds the time until a connection sends the hello.
const helloWait = 10 * time.Second

// An Accepter is a listener of which only the connections matter.
type Accepter interface {
	Accept() (io.ReadWriteCloser, error)
	Close() error
}

// NewListenerPort returns the agent's port for a host that connects to l, one connection at a time.
// After a lost connection the port waits for another: a snapshot of a running machine drops it on
// both sides. Read waits for the first connection; a Write before it, or without a connection, is
// an error. Closing the port closes l.
func NewListenerPort(l Accepter) io.ReadWriteCloser { return &listenerPort{l: l} }

type listenerPort struct {
	l Accepter

	mu     sync.Mutex
	conn   io.ReadWriteCloser // nil: none
	closed bool
}

func (p *listenerPort) Read(b []byte) (int, error) {
	for {
		conn, err := p.connected()
		if err != nil {
			return 0, err
		}
		n, err := conn.Read(b)
		if n > 0 || err == nil {
			return n, nil
		}
		p.drop(conn)
	}
}

func (p *listenerPort) Write(b []byte) (int, error) {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return 0, unix.EPIPE
	}
	return conn.Write(b)
}

func (p *listenerPort) Close() error {
	p.mu.Lock()
	conn := p.conn
	p.conn, p.closed = nil, true
	p.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	return p.l.Close()
}

// connected returns the current connection. Only Read calls it.
func (p *listenerPort) connected() (io.ReadWriteCloser, error) {
	for {
		p.mu.Lock()
		conn, closed := p.conn, p.closed
		p.mu.Unlock()
		switch {
		case closed:
			return nil, os.ErrClosed
		case conn != nil:
			return conn, nil
		}
		conn, err := p.l.Accept()
		if err != nil {
			return nil, err
		}
		if greet(conn) != nil {
			_ = conn.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			_ = conn.Close()
		} else {
			p.conn = conn
		}
		p.mu.Unlock()
	}
}

func (p *listenerPort) drop(conn io.ReadWriteCloser) {
	p.mu.Lock()
	if p.conn == conn {
		p.conn = nil
	}
	p.mu.Unlock()
	_ = conn.Close()
}

// greet answers the host's hello.
func greet(conn io.ReadWriteCloser) error {
	late := time.AfterFunc(helloWait, func() { _ = conn.Close() })
	defer late.Stop()
	var b [len(Hello) + HelloSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return err
	}
	if !bytes.HasPrefix(b[:], []byte(Hello)) {
		return errors.New("a connection that is not the host's")
	}
	_, err := conn.Write(b[len(Hello):])
	return err
}

// listenVsock listens for the host on a port of the machine's vsock, whose driver may still be
// probing. Go's net package does not support the address family.
func listenVsock(port uint32) (Accepter, error) {
	var fd int
	_, err := poll(deviceWait, "a vsock", func() string {
		var err error
		if fd, err = unix.Socket(unix.AF_VSOCK,
			unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return ""
		}
		return "vsock"
	})
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err == nil {
		err = unix.Listen(fd, 4)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("vsock: %w", err)
	}
	return &vsockListener{os.NewFile(uintptr(fd), "vsock")}, nil
}

// A vsockListener is a listening socket in the runtime's poller.
type vsockListener struct{ f *os.File }

func (l *vsockListener) Close() error { return l.f.Close() }

// Accept returns the host's next connection. It closes others, such as those of the guest's own
// processes.
func (l *vsockListener) Accept() (io.ReadWriteCloser, error) {
	raw, err := l.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	for {
		var conn int
		var peer unix.Sockaddr
		var acceptErr error
		err := raw.Read(func(fd uintptr) bool {
			conn, peer, acceptErr = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return acceptErr != unix.EAGAIN
		})
		if err != nil { // the poller reports a closed listener with its own error
			return nil, os.ErrClosed
		}
		switch err = acceptErr; {
		case err == unix.EINTR || err == unix.ECONNABORTED || err == unix.ECONNRESET:
			continue
		case err != nil:
			return nil, err
		}
		if vm, ok := peer.(*unix.SockaddrVM); !ok || vm.CID != unix.VMADDR_CID_HOST {
			_ = unix.Close(conn)
			continue
		}
		return os.NewFile(uintptr(conn), "vsock connection"), nil
	}
}

// openChannel opens the machine's channel to its host: a vsock if the command line requests it,
// otherwise a virtio-serial port.
func openChannel(cmdline string) (io.ReadWriteCloser, error) {
	v, ok := word(cmdline, "turnstone.vsock=")
	if !ok {
		return openPort(portName)
	}
	port, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("turnstone.vsock: %w", err)
	}
	l, err := listenVsock(uint32(port))
	if err != nil {
		return nil, err
	}
	return NewListenerPort(l), nil
}

// word returns the rest of the first word of the kernel's command line that begins with prefix.
func word(cmdline, prefix string) (rest string, ok bool) {
	for w := range strings.FieldsSeq(cmdline) {
		if rest, ok = strings.CutPrefix(w, prefix); ok {
			return rest, true
		}
	}
	return "", false
}

// diskNames returns the names of the disks vda, vdb and so on, on a machine whose disks cannot have
// serial numbers: the word turnstone.disks=NAME,NAME… of the kernel's command line; nil without it.
func diskNames(cmdline string) map[string]string {
	v, ok := word(cmdline, "turnstone.disks=")
	if !ok {
		return nil
	}
	names := make(map[string]string)
	for i, name := range strings.Split(v, ",") {
		if i < 26 { // vda to vdz
			names["vd"+string(rune('a'+i))] = name
		}
	}
	return names
}

// isDisk reports whether a block device is one of the machine's disks.
func isDisk(name string) bool {
	return strings.HasPrefix(name, "vd") || strings.HasPrefix(name, memoryDisk)
}

// diskSerial returns the serial number of a disk such as "vda": its entry in names, otherwise its
// own number.
func diskSerial(disk string, names map[string]string) string {
	if names != nil {
		return names[disk]
	}
	var buf [64]byte
	n, err := process.ReadSmall("/sys/block/"+disk+"/serial", buf[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(buf[:n]))
}
