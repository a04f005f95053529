package machine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/wire"
)

// fakeTAP is a device: a write to either end is read as one frame at the other end.
func fakeTAP(t *testing.T) (device, cable *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	device, cable = os.NewFile(uintptr(fds[0]), "tap"), os.NewFile(uintptr(fds[1]), "cable")
	t.Cleanup(func() { _, _ = device.Close(), cable.Close() })
	return device, cable
}

// A sender is a frameSender over a pipe.
type sender struct{ *io.PipeWriter }

func (s sender) Abort(error) { _ = s.Close() }

func framed(frames ...string) []byte {
	var b []byte
	for _, f := range frames {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return b
}

func readFrame(t *testing.T, r io.Reader) string {
	t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readPacket(t *testing.T, f *os.File) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	_ = f.SetReadDeadline(time.Now().Add(2 * time.Minute))
	n, err := f.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestCarry(t *testing.T) {
	device, cable := fakeTAP(t)
	for range 3 { // the device stays, and is taken over
		in, host := io.Pipe()
		fromGuest, out := io.Pipe()
		stop := carry(device, 1500, in, sender{out})
		for _, f := range []string{"one", "two", string(make([]byte, 1500+etherHead))} {
			if _, err := cable.Write([]byte(f)); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []string{"one", "two", string(make([]byte, 1500+etherHead))} {
			if got := readFrame(t, fromGuest); got != want {
				t.Fatalf("%.20q, want %.20q", got, want)
			}
		}
		go func() {
			_, _ = host.Write(framed("three", "",
				string(bytes.Repeat([]byte("4"), 1500))))
		}()
		if got := readPacket(t, cable); got != "three" {
			t.Fatalf("%q", got)
		}
		if got := readPacket(t, cable); len(got) != 1500 {
			t.Fatalf("%d bytes", len(got))
		}
		stop()
		if _, err := fromGuest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the stream has not ended: %v", err)
		}
	}
}

// TestCarrySlowHost checks that a host that reads nothing does not block the sandbox's frames, and
// vice versa.
func TestCarrySlowHost(t *testing.T) {
	device, cable := fakeTAP(t)
	in, host := io.Pipe()
	_, out := io.Pipe() // nobody reads
	stop := carry(device, 1500, in, sender{out})
	for range 10 {
		_, _ = cable.Write(make([]byte, 1000))
	}
	for range 10 {
		if _, err := host.Write(framed("in")); err != nil {
			t.Fatal(err)
		}
		if got := readPacket(t, cable); got != "in" {
			t.Fatalf("%q", got)
		}
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not end")
	}
}

// TestCarryNonsense checks that an invalid frame from the host ends both directions.
func TestCarryNonsense(t *testing.T) {
	for _, bad := range [][]byte{{0xff, 0xff, 0xff, 0xff},
		framed(string(make([]byte, 1500+etherHead+1)))[:8]} {
		device, _ := fakeTAP(t)
		in, host := io.Pipe()
		fromGuest, out := io.Pipe()
		stop := carry(device, 1500, in, sender{out})
		go func() { _, _ = host.Write(bad) }()
		if _, err := fromGuest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
		stop()
	}
}

func TestNetworkIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		card agent.Card
		p    wire.SandboxNetworkParams
	}{
		"no machine": {nil, wire.SandboxNetworkParams{MAC: "52:54:00:12:34:56"}},
		"no MAC":     {new(card), wire.SandboxNetworkParams{}},
		"group MAC":  {new(card), wire.SandboxNetworkParams{MAC: "01:00:5e:00:00:01"}},
		"long MAC":   {new(card), wire.SandboxNetworkParams{MAC: "52:54:00:12:34:56:78:90"}},
		"MTU": {new(card), wire.SandboxNetworkParams{MAC: "52:54:00:12:34:56",
			MTU: 1 << 20}},
	} {
		a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir(), Card: tc.card})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		a.ServeConn(far)
		c := wire.NewClient(near)
		if _, err := c.NetworkStream(t.Context(),
			tc.p); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
		mustDo(t, errors.Join(c.Close(), a.Close()))
	}
}

// TestNetworkStream checks that the stream of the wire carries both sides' data, and ends with
// either.
func TestNetworkStream(t *testing.T) {
	near, far := net.Pipe()
	d := wire.NewDispatcher()
	wire.RegisterSandbox(d, echoFrames{})
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	c := wire.NewClient(near)
	s, err := c.NetworkStream(t.Context(), wire.SandboxNetworkParams{MAC: "52:54:00:12:34:56"})
	mustDo(t, err)
	data := bytes.Repeat([]byte("frames"), 500_000) // more than a window
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Write(data) })
	got := make([]byte, len(data))
	_, err = io.ReadFull(s, got)
	mustDo(t, err)
	wg.Wait()
	if !bytes.Equal(got, data) {
		t.Error("other bytes came back")
	}
	mustDo(t, errors.Join(s.Close(), s.Close()))
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a write after Close")
	}
	mustDo(t, errors.Join(c.Close(), server.Close()))
}

type echoFrames struct{ wire.SandboxServer }

func (echoFrames) Network(_ context.Context, c *wire.Conn,
	p *wire.SandboxNetworkParams) (*wire.SandboxNetworkResult, error) {
	in, err := c.Receiver(p.In)
	if err != nil {
		return nil, err
	}
	out, err := c.Sender(p.Out)
	if err != nil {
		return nil, err
	}
	c.Go(func() { _, _ = io.Copy(struct{ io.Writer }{out}, in) })
	return &wire.SandboxNetworkResult{Interface: "eth0"}, nil
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
