package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

func muxHeader(kind byte, flags uint16, stream, length uint32) []byte {
	h := []byte{0, kind}
	h = binary.BigEndian.AppendUint16(h, flags)
	h = binary.BigEndian.AppendUint32(h, stream)
	return binary.BigEndian.AppendUint32(h, length)
}

// TestLinkEndsAtWhatHasNoPlace checks that a frame that an agent never sends ends the link at once,
// and that every call on the link returns the reason.
func TestLinkEndsAtWhatHasNoPlace(t *testing.T) {
	ack := muxHeader(muxWindow, muxFlagACK, 1, linkWindow-muxInitial)
	// the beginning of a message of 1 MiB, too short to extend the window
	half := make([]byte, linkWindow/2-1)
	copy(half, "\x81\x7f\x00\x00\x00\x00\x00\x10\x00\x00")
	for name, tt := range map[string]struct {
		sends [][]byte
		want  string
	}{
		"what a shell wrote": {[][]byte{[]byte("\x00\x00\x00\x00garbage garbage")},
			"was never opened"},
		"text":                  {[][]byte{[]byte("hello, host, how are you?")}, "version"},
		"the beginning of text": {[][]byte{[]byte("x")}, "version is 120"},
		"of an unknown type":    {[][]byte{{0, 9}}, "type is 9"},
		"ping":                  {[][]byte{muxHeader(2, muxFlagSYN, 0, 1)}, "type is 2"},
		"pong":                  {[][]byte{muxHeader(2, muxFlagACK, 0, 1)}, "type is 2"},
		"goes away":             {[][]byte{muxHeader(3, 0, 0, 0)}, "type is 3"},
		"unknown type":          {[][]byte{muxHeader(4, 0, 1, 0)}, "type is 4"},
		"new stream": {[][]byte{muxHeader(muxWindow, muxFlagSYN, 2, 0)},
			"opens a stream"},
		"data of a new stream": {[][]byte{muxHeader(muxData, muxFlagSYN, 2, 0)},
			"opens a stream"},
		"no stream":        {[][]byte{muxHeader(muxWindow, 0, 0, 0)}, "was never opened"},
		"a stream to come": {[][]byte{muxHeader(muxWindow, 0, 3, 0)}, "was never opened"},
		"longer than the window": {[][]byte{ack, muxHeader(muxData, 0, 1, linkWindow+1)},
			"were granted"},
		"more than the window": {[][]byte{ack, muxHeader(muxData, 0, 1, linkWindow/2-1), half,
			muxHeader(muxData, 0, 1, linkWindow/2+2)}, "were granted"},
		"an end with data": {[][]byte{ack, muxHeader(muxData, muxFlagFIN, 1, 1)}, "flags"},
		"unknown flags":    {[][]byte{ack, muxHeader(muxWindow, 16, 1, 1)}, "flags"},
		"a window too large": {[][]byte{ack, muxHeader(muxWindow, 0, 1, 1<<31)},
			"more than a window"},
		"acknowledged twice": {[][]byte{ack, muxHeader(muxWindow, muxFlagACK, 1, 0)},
			"acknowledges"},
		"ended twice": {[][]byte{ack, muxHeader(muxWindow, muxFlagFIN, 1, 0),
			muxHeader(muxWindow, muxFlagFIN, 1, 0)}, "ends stream 1 again"},
		"behind a good frame": {[][]byte{append(bytes.Clone(ack), "garbage, garbage"...)},
			"version"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			defer func() { _ = b.Close() }()
			host, err := NewLink(a, true)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = host.Close() }()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			s, err := host.Open()
			if err != nil {
				t.Fatal(err)
			}
			c := NewClient(s)
			defer func() { _ = c.Close() }()
			failed := make(chan error)
			go func() {
				_, err := c.SandboxGetVersion(ctxFor(t))
				failed <- err
			}()
			for _, p := range tt.sends {
				_, _ = b.Write(p)
			}
			err = <-failed
			if name == "ended twice" { // the first end is allowed
				err = nil
			} else if turnstone.KindOf(err) != turnstone.KindIntegrity ||
				!strings.Contains(err.Error(), "broke its channel") ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("a call ended with %v", err)
			}
			<-host.Done()
			if err := host.Err(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the link ended with %v", err)
			}
			if _, err := host.Open(); !errors.As(err, new(*ProtocolError)) {
				t.Errorf("a new stream: %v", err)
			}
		})
	}
}

// TestGuardFindsHeaders checks that, for any division into reads, the guard finds each header and
// no body, and passes on everything before a bad header.
func TestGuardFindsHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		bad := -1
		for range rapid.IntRange(1, 20).Draw(t, "frames") {
			if bad < 0 && rapid.IntRange(0, 9).Draw(t, "bad") == 0 {
				bad = b.Len()
				b.Write(muxHeader(2, muxFlagSYN, 0, 7))
				continue
			}
			body := rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 40).Draw(t, "body")
			b.Write(muxHeader(muxData, 0, 1, uint32(len(body))))
			b.Write(body)
		}
		total := b.Len()
		size := rapid.IntRange(1, 64).Draw(t, "size")
		g := &linkGuard{ReadWriteCloser: nopStream{&b}, host: true}
		g.begin(1)
		p := make([]byte, size)
		read := 0
		for {
			n, err := g.Read(p)
			read += n
			if errors.As(err, new(*ProtocolError)) {
				if bad < 0 {
					t.Fatal("a good link was ended:", err)
				}
				if read < bad || read >= bad+2 {
					t.Fatalf("%d bytes were passed on, the bad header begins at %d", read, bad)
				}
				if again, err := g.Read(p); again != 0 || err == nil {
					t.Fatal("it reads on")
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

// A choppy stream divides data into reads of any size.
type choppy struct {
	net.Conn
	mu  sync.Mutex
	rnd *rand.Rand
}

func (c *choppy) Read(p []byte) (int, error) {
	c.mu.Lock()
	n := 1 + c.rnd.IntN(min(len(p), 1<<c.rnd.IntN(13)))
	c.mu.Unlock()
	return c.Conn.Read(p[:n])
}

// TestHonestLink checks that the guard accepts everything that two honest sides send: streams that
// are closed, half closed and aborted at any time, with data of any size in transit in both
// directions.
func TestHonestLink(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		a, b := net.Pipe()
		host, err := NewLink(&choppy{Conn: a, rnd: rand.New(rand.NewPCG(seed, 1))}, true)
		if err != nil {
			t.Fatal(err)
		}
		agent, err := NewLink(&choppy{Conn: b, rnd: rand.New(rand.NewPCG(seed, 2))}, false)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		use := func(s LinkStream, seed uint64) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, 3))
				var both sync.WaitGroup
				both.Go(func() { // sometimes aborts during a write
					n := rnd.IntN(600 << 10)
					if rnd.IntN(4) == 0 {
						go s.Abort()
					}
					_, _ = s.Write(make([]byte, n))
					_ = s.CloseWrite()
				})
				if seed%3 == 0 {
					_, _ = io.CopyN(io.Discard, s, int64(seed%(300<<10)))
					_ = s.Close()
				} else {
					_, _ = io.Copy(io.Discard, s)
				}
				both.Wait()
				_ = s.Close()
			})
		}
		streams := rapid.SliceOfN(rapid.Uint64(), 1, 8).Draw(t, "streams")
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			for i := range streams {
				s, err := agent.Accept()
				if err != nil {
					return
				}
				use(s, streams[i]^0x5555)
			}
		}()
		for _, seed := range streams {
			s, err := host.Open()
			if err != nil {
				t.Fatal(err)
			}
			use(s, seed)
		}
		<-accepted
		wg.Wait()
		if host.Err() != nil || agent.Err() != nil {
			t.Fatal(host.Err(), agent.Err())
		}
		_, _ = host.Close(), agent.Close()
	})
}

// TestGuardForgets checks that the guard forgets a guest's stream that ended long ago.
func TestGuardForgets(t *testing.T) {
	g := &linkGuard{host: true}
	for i := range uint32(10 * maxEnded) {
		g.begin(2*i + 1)
		why := g.judge(&linkFrame{kind: muxWindow, flags: muxFlagACK | muxFlagFIN, stream: 2*i + 1})
		if why != "" {
			t.Fatal(why)
		}
	}
	if len(g.streams) > maxEnded || len(g.ended) > maxEnded {
		t.Errorf("%d streams, %d that ended", len(g.streams), len(g.ended))
	}
	if why := g.judge(&linkFrame{kind: muxData, stream: 1, length: 1}); !strings.Contains(why,
		"has ended") {
		t.Error(why)
	}
}

// TestPlainEndsOfLinks checks that the end of a machine and the marker at the end of a link are not
// the guest's faults.
func TestPlainEndsOfLinks(t *testing.T) {
	host, agent := linkPair(t)
	_ = agent.Close()
	<-host.Done()
	if host.Err() != nil {
		t.Error(host.Err())
	}
	marker := bytes.Repeat([]byte("m"), MarkerSize)
	a, b := net.Pipe()
	p := NewPort(a, true)
	link, err := p.Link()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Expect(marker); err != nil {
		t.Fatal(err)
	}
	_, _ = b.Write(marker[:MarkerSize-1])
	<-link.Done()
	if link.Err() != nil {
		t.Error(link.Err())
	}
	go func() { _, _ = b.Write(marker[MarkerSize-1:]) }()
	go func() { _, _ = io.ReadFull(b, make([]byte, MarkerSize)) }()
	if err := p.End(ctxFor(t)); err != nil {
		t.Error(err)
	}
	_, _ = p.Close(), b.Close()
}

// A hostileAgent sends the given bytes in the given pieces and reads everything.
type hostileAgent struct {
	mu     sync.Mutex
	sends  []byte
	cut    int
	closed chan struct{}
	once   sync.Once
}

func (h *hostileAgent) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := copy(p[:min(len(p), h.cut)], h.sends)
	if h.sends = h.sends[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (h *hostileAgent) Write(p []byte) (int, error) {
	select {
	case <-h.closed:
		return 0, io.ErrClosedPipe
	default:
		return len(p), nil
	}
}

func (h *hostileAgent) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// FuzzLinkHost checks that, for any bytes from a guest instead of its agent, in any pieces, the
// host does not panic, each call and each stream ends, the link holds no more than the streams'
// windows, and no goroutine is left (TestMain).
func FuzzLinkHost(f *testing.F) {
	hello := append(muxHeader(muxWindow, muxFlagACK, 1, linkWindow-muxInitial),
		muxHeader(muxData, 0, 1, 5)...)
	f.Add(append(bytes.Clone(hello), "\x81\x03{}x"...), byte(7))
	f.Add([]byte("\x00\x00\x00\x00garbage garbage"), byte(255))
	f.Add(append(bytes.Clone(hello),
		append([]byte("\x81\x03{}x"), muxHeader(muxWindow, muxFlagFIN, 1, 0)...)...), byte(1))
	f.Add(append(muxHeader(muxWindow, muxFlagRST, 3, 0), muxHeader(muxData, 0, 3, 1<<20)...),
		byte(12))
	f.Fuzz(func(t *testing.T, sends []byte, cut byte) {
		far := &hostileAgent{sends: sends, cut: 1 + int(cut), closed: make(chan struct{})}
		host, err := NewLink(far, true)
		if err != nil {
			t.Fatal(err)
		}
		var clients []*Client
		var wg sync.WaitGroup
		for range 2 {
			s, err := host.Open()
			if err != nil {
				continue
			}
			c := NewClient(s)
			clients = append(clients, c)
			wg.Go(func() {
				if _, err := c.SandboxGetVersion(ctxFor(t)); err == nil {
					return
				}
				_, err := c.Execute(ctxFor(t), ShellExecuteParams{ProcessID: "p"}, "true",
					Stdio{}, nil)
				if err == nil {
					t.Error("a step passed that never ran")
				}
			})
		}
		ended := make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("a call hangs")
		}
		held := 0
		host.guard.mu.Lock()
		for _, s := range host.guard.streams {
			held += int(max(0, linkWindow-s.receive))
		}
		if held > 2*linkWindow || len(host.guard.streams) > 2 {
			t.Errorf("%d bytes of %d streams", held, len(host.guard.streams))
		}
		host.guard.mu.Unlock()
		_ = host.Close()
		for _, c := range clients {
			_ = c.Close()
			c.Wait()
		}
	})
}
