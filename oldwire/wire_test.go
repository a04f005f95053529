package oldwire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair serves h at the far end of a pipe and returns a client of it.
func pair(t *testing.T, h Handler) *Client {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(context.Background(), far, h) }()
	c, err := NewClient(near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return c
}

// raw answers every stream of a yamux session with what answer writes.
func raw(t *testing.T, answer func(io.ReadWriter)) *Client {
	t.Helper()
	near, far := net.Pipe()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput, cfg.EnableKeepAlive = io.Discard, false
	s, err := yamux.Server(far, cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			st, err := s.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				_, _ = bufio.NewReader(st).ReadSlice('\n')
				answer(st)
				_ = st.Close()
			}()
		}
	}()
	c, err := NewClient(near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = s.Close(); <-done })
	return c
}

func TestErrorsCrossTheWire(t *testing.T) {
	cause := errors.New("no such thing")
	c := pair(t, func(_ context.Context, c *Call) error {
		return &turnstone.Error{Op: "x.y", Kind: turnstone.NotFound, Subject: "/a", Hint: "look elsewhere", Err: cause}
	})
	_, err := c.Stats(t.Context())
	var te *turnstone.Error
	if !errors.As(err, &te) || te.Op != "x.y" || te.Kind != turnstone.NotFound || te.Subject != "/a" ||
		te.Hint != "look elsewhere" || te.Err.Error() != cause.Error() {
		t.Errorf("got %#v", err)
	}
	c = pair(t, func(context.Context, *Call) error { return cause })
	if err := c.Kill(t.Context(), "a"); turnstone.KindOf(err) != turnstone.Internal || err.Error() != cause.Error() {
		t.Errorf("got %v", err)
	}
}

// TestHostileAnswers: whatever an agent answers, the call ends with a typed error
// that cannot drive a terminal.
func TestHostileAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer string
		kind   turnstone.Kind
	}{
		"nothing":        {"", turnstone.Dead},
		"half a line":    {`{"result":`, turnstone.Dead},
		"garbage":        {"\x00\xff\xfe\n", turnstone.Internal},
		"neither":        {"{}\n", turnstone.Internal},
		"wrong type":     {`{"result":"x"}` + "\n", turnstone.Internal},
		"too long":       {strings.Repeat("x", MaxLine+2) + "\n", turnstone.Internal},
		"deep":           {strings.Repeat("[", 1<<20) + "\n", turnstone.Internal},
		"unknown kind":   {`{"error":{"kind":"root"}}` + "\n", turnstone.Internal},
		"escapes":        {`{"error":{"kind":"invalid","message":"\u001b[2J\u009b31m"}}` + "\n", turnstone.Invalid},
		"error and null": {`{"result":null,"error":{"kind":"dead"}}` + "\n", turnstone.Dead},
	} {
		t.Run(name, func(t *testing.T) {
			c := raw(t, func(w io.ReadWriter) { _, _ = io.WriteString(w, tt.answer) })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.Stats(ctx)
			var te *turnstone.Error
			if !errors.As(err, &te) || te.Kind != tt.kind {
				t.Fatalf("error %v of kind %s, want %s", err, turnstone.KindOf(err), tt.kind)
			}
			if strings.ContainsAny(te.Error(), "\x1b\u009b") {
				t.Errorf("error %q carries terminal escapes", te.Error())
			}
		})
	}
}

// TestDeadConnection: every method says that the sandbox is gone.
func TestDeadConnection(t *testing.T) {
	near, far := net.Pipe()
	c, err := NewClient(near)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = far.Close() })
	go func() { _, _ = io.Copy(io.Discard, far) }()
	_, execErr := c.Execute(t.Context(), ExecuteParams{ID: "a"}, nil, nil)
	_, statErr := c.Stats(t.Context())
	for name, err := range map[string]error{
		"execute": execErr, "stats": statErr,
		"put": c.Put(t.Context(), "/x", strings.NewReader("x")), "get": c.Get(t.Context(), "/x", io.Discard),
	} {
		if turnstone.KindOf(err) != turnstone.Dead || turnstone.HintOf(err) == "" {
			t.Errorf("%s: error %v of kind %s", name, err, turnstone.KindOf(err))
		}
	}
	_ = c.Close()
}

// TestSilentAgent: a call ends with its context though no answer comes.
func TestSilentAgent(t *testing.T) {
	stop := make(chan struct{})
	c := raw(t, func(io.ReadWriter) { <-stop })
	defer close(stop)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Stats(ctx); turnstone.KindOf(err) != turnstone.Timeout {
		t.Errorf("stats: %v", err)
	}
	if err := c.Get(ctx, "/x", io.Discard); turnstone.KindOf(err) != turnstone.Timeout {
		t.Errorf("get: %v", err)
	}
	if err := c.Put(ctx, "/x", strings.NewReader("x")); turnstone.KindOf(err) != turnstone.Timeout {
		t.Errorf("put: %v", err)
	}
}

// TestAgentOpensStream: only callers open streams; an agent that does is cut off.
func TestAgentOpensStream(t *testing.T) {
	near, far := net.Pipe()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput, cfg.EnableKeepAlive = io.Discard, false
	s, err := yamux.Server(far, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	c, err := NewClient(near)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := s.OpenStream(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Error("the connection lives on")
	}
}

func TestCutOffArchive(t *testing.T) {
	c := pair(t, func(_ context.Context, c *Call) error {
		_ = c.Reply(nil)
		_, _ = c.Write(bytes.Repeat([]byte("x"), 5000))
		return nil
	})
	if err := c.Get(t.Context(), "/x", io.Discard); turnstone.KindOf(err) != turnstone.Internal || turnstone.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
}

func TestTailWriter(t *testing.T) {
	for _, tt := range []struct {
		sizes []int // of writes: positive zeros, negative others
		want  bool
	}{
		{[]int{1024}, true}, {[]int{-5, 1000, 24}, true}, {[]int{-5, 1023}, false},
		{[]int{2000, -1}, false}, {[]int{1, 1, 2000}, true}, {nil, false},
	} {
		w := &tailWriter{w: io.Discard}
		for _, n := range tt.sizes {
			if n < 0 {
				_, _ = w.Write(bytes.Repeat([]byte{1}, -n))
			} else {
				_, _ = w.Write(make([]byte, n))
			}
		}
		if w.complete() != tt.want {
			t.Errorf("%v: complete is %v", tt.sizes, w.complete())
		}
	}
}

// TestGarbage: neither side panics or hangs when the other speaks no yamux.
func TestGarbage(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		noise := make([]byte, rnd.IntN(4000))
		for i := range noise {
			noise[i] = byte(rnd.Uint32())
		}
		feed(t, noise, true)
		feed(t, noise, false)
	}
}

// feed gives one end of the protocol these bytes, and then the connection's end.
func feed(t *testing.T, noise []byte, client bool) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !client {
			_ = Serve(context.Background(), near, func(_ context.Context, c *Call) error {
				var p ExecuteParams
				return c.Decode(&p)
			})
			return
		}
		c, err := NewClient(near)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = c.Execute(context.Background(), ExecuteParams{ID: "a", Script: "x"}, nil, nil)
		_ = c.Close()
	}()
	_ = far.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, _ = far.Write(noise)
	_ = far.Close()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("hangs on %q", noise)
	}
}

// FuzzConnection gives each end arbitrary bytes for the other's.
func FuzzConnection(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}, true)
	f.Add([]byte("\x00\x01\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x12{\"method\":\"a.b\"}\n\n"), false)
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x0e{\"result\":{}}\n\n"), true)
	f.Fuzz(func(t *testing.T, b []byte, client bool) { feed(t, b, client) })
}

// FuzzRequest and FuzzResponse: what decodes can be encoded and decodes again.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"method":"Shell.execute","params":{"id":"a"}}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		req, err := decodeRequest(bufio.NewReaderSize(bytes.NewReader(b), 16))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := writeLine(&again, req); err != nil {
			t.Fatal(err)
		}
		got, err := decodeRequest(bufio.NewReader(&again))
		if err != nil || got.Method != req.Method {
			t.Fatalf("%q became %q: %v", req.Method, got.Method, err)
		}
	})
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte(`{"result":{"exitCode":1,"durationNs":5,"env":["A=1"]}}` + "\n"))
	f.Add([]byte(`{"error":{"kind":"dead","message":"x"}}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var res ExitResult
		err := decodeResponse(bufio.NewReaderSize(bytes.NewReader(b), 16), &res)
		var te *turnstone.Error
		if errors.As(err, &te) {
			for _, r := range te.Error() {
				if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == 0x9b {
					t.Fatalf("control character %q in an error", r)
				}
			}
		}
	})
}

func TestReadLine(t *testing.T) {
	r := bufio.NewReaderSize(strings.NewReader("abc\n"+strings.Repeat("x", 100)+"\nrest"), 16)
	if l, err := readLine(r, 100); err != nil || string(l) != "abc" {
		t.Errorf("%q %v", l, err)
	}
	if _, err := readLine(r, 100); !errors.Is(err, errLineTooLong) {
		t.Errorf("a line of 101 bytes with its end: %v", err)
	}
	r = bufio.NewReaderSize(strings.NewReader("rest"), 16)
	if _, err := readLine(r, 100); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a line: %v", err)
	}
	if _, err := readLine(r, 100); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: %v", err)
	}
	if err := writeLine(io.Discard, json.RawMessage(`"`+strings.Repeat("x", MaxLine)+`"`)); !errors.Is(err, errLineTooLong) {
		t.Errorf("a line that is too long was written: %v", err)
	}
}
