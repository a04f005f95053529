package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

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

// TestLinkEnds checks that an ended stream is reported as ended, whichever error yamux returns.
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
			if _, err := c.SandboxGetStats(t.Context()); turnstone.KindOf(
				err) != turnstone.KindDead {
				t.Errorf("a call: %v", err)
			}
			_ = c.Close()
		})
	}
}

// TestWritesBehindFarewell checks that a write after a closing frame fails with the closing frame's
// reason. Otherwise a call between the two would report a broken channel as a lost channel.
func TestWritesBehindFarewell(t *testing.T) {
	broken := protocolError("a frame that has no place")
	f := NewFrames(nopStream{new(bytes.Buffer)}, false)
	if err := f.Farewell(fmt.Errorf("reading: %w", broken)); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteText([]byte("{}")); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	f = NewFrames(nopStream{new(bytes.Buffer)}, false)
	if err := f.Farewell(nil); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteText([]byte("{}")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
}

// TestOpenAtOnce checks that streams that are opened concurrently are not a fault of a side of the
// link.
func TestOpenAtOnce(t *testing.T) {
	host, agent := linkPair(t)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 20 {
				s, err := host.Open()
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Write([]byte{7}); err != nil {
					t.Error(err)
				}
				var p [1]byte
				if _, err := io.ReadFull(s, p[:]); err != nil || p[0] != 7 {
					t.Errorf("%v, %v", p, err)
				}
				_ = s.Close()
			}
		})
	}
	go func() {
		for {
			s, err := agent.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(s, s)
				_ = s.Close()
			}()
		}
	}()
	all.Wait()
	if err := agent.Err(); err != nil {
		t.Error(err)
	}
}
