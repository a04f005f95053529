package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func marker(b byte) []byte { return bytes.Repeat([]byte{b}, MarkerSize) }

// portPair returns two ports over a stream, and a function that ends the link of both.
func portPair(t *testing.T) (host, agent *Port, end func()) {
	t.Helper()
	a, b := net.Pipe()
	host, agent = NewPort(a, true), NewPort(b, false)
	t.Cleanup(func() { _ = host.Close(); _ = agent.Close() })
	return host, agent, func() {
		t.Helper()
		var wg sync.WaitGroup
		// the agent's port expects the marker before the host may send it
		for _, p := range []*Port{agent, host} {
			if err := p.Expect(marker(7)); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []*Port{host, agent} {
			wg.Go(func() {
				if err := p.End(ctxFor(t)); err != nil {
					t.Errorf("end: %v", err)
				}
			})
		}
		wg.Wait()
	}
}

// TestPortLinksFollow: links follow one another, with any data in transit when a link ended.
func TestPortLinksFollow(t *testing.T) {
	host, agent, end := portPair(t)
	for round := range 5 {
		hl, err := host.Link()
		if err != nil {
			t.Fatal(err)
		}
		al, err := agent.Link()
		if err != nil {
			t.Fatal(err)
		}
		s, err := hl.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		r, err := al.Accept()
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(r, buf); err != nil || string(buf) != "hello" {
			t.Fatalf("round %d: %q, %v", round, buf, err)
		}
		var wg sync.WaitGroup
		for _, w := range []io.Writer{s, r} { // without a reader
			wg.Go(func() { _, _ = w.Write(make([]byte, 4*linkWindow)) })
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		end()
		wg.Wait()
		// Data that had arrived is still readable; the end follows.
		if _, err := io.Copy(io.Discard, s); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("a stream of a link that has ended: %v", err)
		}
		if _, err := s.Write(buf); !errors.Is(err, net.ErrClosed) {
			t.Errorf("writing to it: %v", err)
		}
		select {
		case <-hl.Done():
		default:
			t.Error("the link has not ended")
		}
	}
}

// TestPortRefused: if the other side rejects the end, the link continues.
func TestPortRefused(t *testing.T) {
	host, agent, _ := portPair(t)
	hl, err := host.Link()
	if err != nil {
		t.Fatal(err)
	}
	al, err := agent.Link()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Expect(marker(1)[1:]); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a short marker: %v", err)
	}
	if err := host.End(ctxFor(t)); err == nil {
		t.Error("a link was ended that nobody expects to end")
	}
	if err := host.Expect(marker(1)); err != nil {
		t.Fatal(err)
	}
	host.Forget()
	s, err := hl.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(marker(1)); err != nil {
		t.Fatal(err)
	}
	r, err := al.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, MarkerSize)); err != nil {
		t.Error(err)
	}
	if _, err := host.Link(); err == nil {
		t.Error("two links at a time")
	}
}

// TestPortHostile: an agent that does not end its link, or sends more data after it, blocks
// nothing.
func TestPortHostile(t *testing.T) {
	start := func(t *testing.T) (*Port, net.Conn) {
		a, b := net.Pipe()
		p := NewPort(a, true)
		t.Cleanup(func() { _ = p.Close(); _ = b.Close() })
		if _, err := p.Link(); err != nil {
			t.Fatal(err)
		}
		if err := p.Expect(marker(9)); err != nil {
			t.Fatal(err)
		}
		return p, b
	}
	t.Run("says nothing", func(t *testing.T) {
		p, _ := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) //wait: it is meant to expire
		defer cancel()
		if err := p.End(ctx); turnstone.KindOf(err) != turnstone.KindDead ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
	t.Run("says anything", func(t *testing.T) {
		p, b := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) //wait: it is meant to expire
		defer cancel()
		go func() { _, _ = io.Copy(io.Discard, b) }()
		go func() {
			junk := append(marker(9)[1:], 8)
			for {
				if _, err := b.Write(junk); err != nil {
					return
				}
			}
		}()
		if err := p.End(ctx); turnstone.KindOf(err) != turnstone.KindDead {
			t.Errorf("%v", err)
		}
	})
	for name, early := range map[string]bool{"goes on": false,
		"goes on, and the link reads it": true} {
		t.Run(name, func(t *testing.T) {
			p, b := start(t)
			go func() { _, _ = io.Copy(io.Discard, b) }()
			written := make(chan struct{})
			go func() {
				defer close(written)
				_, _ = b.Write(append(marker(9), 1))
			}()
			if early {
				<-written
			}
			if err := p.End(ctxFor(t)); !errors.Is(err, errBehindMarker) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("is gone", func(t *testing.T) {
		p, b := start(t)
		_ = b.Close()
		if err := p.End(ctxFor(t)); turnstone.KindOf(err) != turnstone.KindDead {
			t.Errorf("%v", err)
		}
	})
}

// FuzzPortMarker: the marker is found for any division into reads.
func FuzzPortMarker(f *testing.F) {
	f.Add([]byte("before"), uint8(5))
	f.Add(marker(7)[1:], uint8(1))
	f.Add(append(marker(7)[2:], 6), uint8(40))
	f.Fuzz(func(t *testing.T, before []byte, size uint8) {
		mark := append(marker(7)[1:], 6)
		if bytes.Contains(append(bytes.Clone(before), mark[:MarkerSize-1]...), mark) {
			return
		}
		all := append(bytes.Clone(before), mark...)
		p := NewPort(struct {
			io.Reader
			io.Writer
			io.Closer
		}{&chunks{all, int(size%64) + 1}, io.Discard, nil}, true)
		if err := p.Expect(mark); err != nil {
			t.Fatal(err)
		}
		// A chunk may hold bytes of the link and the marker, but nothing after the marker.
		if err := p.drain(); err != nil {
			t.Fatalf("%d bytes, in pieces of %d: %v", len(all), size%64+1, err)
		}
		if !p.Ended() {
			t.Fatal("not found")
		}
	})
}

// chunks divides b into pieces.
type chunks struct {
	b    []byte
	size int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.b[:min(len(c.b), c.size)])
	c.b = c.b[n:]
	return n, nil
}

// A told is a stream that notes what its port tells it, and whether it was written to meanwhile.
type told struct {
	net.Conn
	mu   sync.Mutex
	said []string
}

func (s *told) Linked(on bool) { s.note(map[bool]string{true: "begins", false: "ends"}[on]) }

func (s *told) Write(p []byte) (int, error) {
	if bytes.Equal(p, marker(7)) {
		s.note("marker")
	}
	return s.Conn.Write(p)
}

func (s *told) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, what)
}

// TestPortTellsItsStream: the stream hears of a link's end before the other side may save the
// machine, which it does after the marker.
func TestPortTellsItsStream(t *testing.T) {
	a, b := net.Pipe()
	stream := &told{Conn: b}
	host, agent := NewPort(a, true), NewPort(stream, false)
	defer func() { _, _ = host.Close(), agent.Close() }()
	ports := []*Port{agent, host}
	for range 2 {
		for _, p := range ports {
			if _, err := p.Link(); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range ports {
			if err := p.Expect(marker(7)); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for _, p := range ports {
			wg.Go(func() {
				if err := p.End(ctxFor(t)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	const want = "begins ends marker begins ends marker"
	if got := strings.Join(stream.said, " "); got != want {
		t.Errorf("the stream was told: %s", got)
	}
}
