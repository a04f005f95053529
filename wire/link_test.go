package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

func linkPair(t *testing.T) (host, agent *Link) {
	t.Helper()
	a, b := net.Pipe()
	host, err := NewLink(a, true)
	if err != nil {
		t.Fatal(err)
	}
	agent, err = NewLink(b, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = host.Close()
		_ = agent.Close()
	})
	return host, agent
}

func TestLink(t *testing.T) {
	host, agent := linkPair(t)
	go func() {
		for {
			s, err := agent.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(s, s)
				_ = s.CloseWrite()
			}()
		}
	}()
	want := bytes.Repeat([]byte("x"), 3<<20)
	for range 3 {
		s, err := host.Open()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = s.Write(want)
			_ = s.CloseWrite()
		}()
		got, err := io.ReadAll(s)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatal(len(got), err)
		}
	}
}

func muxHeader(kind byte, flags uint16, stream, length uint32) []byte {
	h := []byte{0, kind}
	h = binary.BigEndian.AppendUint16(h, flags)
	h = binary.BigEndian.AppendUint32(h, stream)
	return binary.BigEndian.AppendUint32(h, length)
}

// A ping, and a stream that the agent opens, cost the host memory that yamux does
// not bound: they end the link.
func TestLinkEndsAtWhatHasNoPlace(t *testing.T) {
	for name, frame := range map[string][]byte{
		"ping":        muxHeader(muxPing, muxFlagSYN, 0, 1),
		"pong":        muxHeader(muxPing, 2, 0, 1),
		"new stream":  muxHeader(1, muxFlagSYN, 2, 0),
		"data stream": muxHeader(muxData, muxFlagSYN, 2, 0),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			host, err := NewLink(a, true)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = host.Close() }()
			go func() { _, _ = b.Write(bytes.Repeat(frame, 100)) }()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			<-host.Done()
			_ = b.Close()
		})
	}
}

// However the bytes are cut into reads, the guard sees each header and no body.
func TestGuardFindsHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		bad := -1
		for i := range rapid.IntRange(1, 20).Draw(t, "frames") {
			if bad < 0 && rapid.IntRange(0, 9).Draw(t, "bad") == 0 {
				bad = b.Len() + 12
				b.Write(muxHeader(muxPing, muxFlagSYN, 0, uint32(i)))
				continue
			}
			body := rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 40).Draw(t, "body")
			b.Write(muxHeader(muxData, 0, 1, uint32(len(body))))
			b.Write(body)
		}
		total := b.Len()
		size := rapid.IntRange(1, 64).Draw(t, "size")
		g := &linkGuard{ReadWriteCloser: nopStream{&b}, host: true}
		p := make([]byte, size)
		read := 0
		for {
			n, err := g.Read(p)
			read += n
			if errors.Is(err, errLink) {
				if bad < 0 {
					t.Fatal("a good link was ended")
				}
				if read > bad {
					t.Fatalf("%d bytes were passed on, the bad header ends at %d", read, bad)
				}
				return
			}
			if err != nil {
				break
			}
		}
		if bad >= 0 || read != total {
			t.Fatalf("read %d of %d, bad at %d", read, total, bad)
		}
	})
}

// A stream that ended is told as such, whichever way yamux puts it.
func TestLinkEnds(t *testing.T) {
	cases := map[string]func(host *Link, s LinkStream){
		"half closed": func(_ *Link, s LinkStream) { _ = s.CloseWrite() },
		"link closed": func(host *Link, _ LinkStream) { _ = host.Close() },
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			host, agent := linkPair(t)
			go func() { _, _ = agent.Accept() }()
			s, err := host.Open()
			if err != nil {
				t.Fatal(err)
			}
			end(host, s)
			if _, err := s.Write([]byte("x")); !errors.Is(err, net.ErrClosed) || !hungUp(err) {
				t.Errorf("writing: %v", err)
			}
			c := NewClient(s)
			if _, err := c.SandboxGetStats(t.Context()); turnstone.KindOf(err) != turnstone.Dead {
				t.Errorf("a call: %v", err)
			}
			_ = c.Close()
		})
	}
}
