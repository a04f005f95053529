package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type echoParams struct {
	Text string   `json:"text"`
	In   StreamID `json:"in,omitempty"`
	Out  StreamID `json:"out,omitempty"`
}

func (p *echoParams) streams() (receive, send []StreamID) {
	if p.In != 0 {
		receive = append(receive, p.In)
	}
	if p.Out != 0 {
		send = append(send, p.Out)
	}
	return receive, send
}

// pair returns both ends of a connection whose server has a few commands.
func pair(t *testing.T, add map[string]entry, onEvent func(Event)) (client, server *Conn) {
	t.Helper()
	d := NewDispatcher()
	newEcho := func() any { return new(echoParams) }
	d.handle("Test.echo", entry{newEcho, func(_ context.Context, _ *Conn, p any) (any, error) {
		return map[string]string{"text": p.(*echoParams).Text}, nil
	}})
	d.handle("Test.fail", entry{newEcho, func(context.Context, *Conn, any) (any, error) {
		return nil, turnstone.Errorf("test.fail", turnstone.KindNotFound, "it", "gone").
			WithHint("look elsewhere")
	}})
	d.handle("Test.copy", entry{newEcho, func(_ context.Context, c *Conn, p any) (any, error) {
		r, err := c.Receiver(p.(*echoParams).In)
		if err != nil {
			return nil, err
		}
		s, err := c.Sender(p.(*echoParams).Out)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(s, r)
		if err != nil {
			s.Abort(err)
			return nil, err
		}
		return nil, s.Close()
	}})
	for m, e := range add {
		d.handle(m, e)
	}
	a, b := net.Pipe()
	client = NewConn(a, Options{OnEvent: onEvent})
	server = NewConn(b, Options{Dispatcher: d})
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
		client.Wait()
		server.Wait()
	})
	return client, server
}

func ctxFor(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCall(t *testing.T) {
	c, _ := pair(t, nil, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			var res struct{ Text string }
			err := c.Call(ctxFor(t), "Test.echo", &echoParams{Text: "hällo"}, &res)
			if err != nil || res.Text != "hällo" {
				t.Error(res, err)
			}
		})
	}
	wg.Wait()
}

func TestErrorsCross(t *testing.T) {
	c, _ := pair(t, nil, nil)
	err := c.Call(ctxFor(t), "Test.fail", nil, nil)
	var te *turnstone.Error
	if !errors.As(err, &te) || te.Kind != turnstone.KindNotFound || te.Op != "test.fail" ||
		te.Subject != "it" || te.Hint != "look elsewhere" || te.Error() != "it: gone" {
		t.Errorf("%#v", err)
	}
	for _, tt := range []struct {
		method string
		params any
		kind   turnstone.Kind
		want   string
	}{
		{"Test.nothing", nil, turnstone.KindInvalid, "no such command"},
		{"Test.echo", map[string]any{"txet": "x"}, turnstone.KindInvalid, `unknown field "txet"`},
		{"Test.echo", map[string]any{"text": 5}, turnstone.KindInvalid, "cannot unmarshal number"},
		{"Test.echo", []int{1}, turnstone.KindInvalid, "cannot unmarshal array"},
	} {
		err := c.Call(ctxFor(t), tt.method, tt.params, nil)
		if turnstone.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %v: %v", tt.method, tt.params, err)
		}
	}
}

func TestStreams(t *testing.T) {
	c, _ := pair(t, nil, nil)
	in, out := c.NewStream(), c.NewStream()
	s, _ := c.Sender(in)
	r, _ := c.Receiver(out)
	want := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16+1)
	go func() {
		_, _ = s.Write(want)
		_ = s.Close()
	}()
	answered := make(chan error, 1)
	go func() { answered <- c.Call(ctxFor(t), "Test.copy", &echoParams{In: in, Out: out}, nil) }()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recv)+len(c.send) != 0 {
		t.Errorf("%d and %d streams are left", len(c.recv), len(c.send))
	}
}

// An unread stream must not block the messages or other streams, and must not make its side hold
// more than the window.
func TestSlowReaderStarvesNobody(t *testing.T) {
	stuck := make(chan uint64, 1)
	c, server := pair(t,
		map[string]entry{"Test.flood": {func() any { return new(echoParams) },
			func(ctx context.Context, c *Conn, p any) (any, error) {
				s, err := c.Sender(p.(*echoParams).Out)
				if err != nil {
					return nil, err
				}
				c.Go(func() {
					buf := make([]byte, 100_000)
					for {
						if _, err := s.Write(buf); err != nil {
							stuck <- s.sent
							s.Abort(nil)
							return
						}
					}
				})
				return nil, nil
			}}}, nil)
	out := c.NewStream()
	flood, _ := c.Receiver(out)
	if err := c.Call(ctxFor(t), "Test.flood", &echoParams{Out: out}, nil); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		in, back := c.NewStream(), c.NewStream()
		s, _ := c.Sender(in)
		r, _ := c.Receiver(back)
		go func() {
			_, _ = s.Write(make([]byte, 3<<20))
			_ = s.Close()
		}()
		go func() { _ = c.Call(ctxFor(t), "Test.copy", &echoParams{In: in, Out: back}, nil) }()
		if n, err := io.Copy(io.Discard, r); err != nil || n != 3<<20 {
			t.Fatal(n, err)
		}
		if err := c.Call(ctxFor(t), "Test.echo", &echoParams{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	_ = flood.Close()
	if sent := <-stuck; sent > streamWindow {
		t.Errorf("%d bytes were sent to a reader that took none", sent)
	}
	if err := c.Call(ctxFor(t), "Test.echo", nil, nil); err != nil {
		t.Fatal(err)
	}
	_ = server
}

// A command that fails aborts the streams that it names.
func TestFailedCommandsStreams(t *testing.T) {
	c, server := pair(t, nil, nil)
	in, out := c.NewStream(), c.NewStream()
	s, _ := c.Sender(in)
	r, _ := c.Receiver(out)
	if err := c.Call(ctxFor(t), "Test.fail", &echoParams{In: in, Out: out}, nil); err == nil {
		t.Fatal("no error")
	}
	if _, err := io.ReadAll(r); !errors.Is(err, ErrReset) {
		t.Errorf("reading: %v", err)
	}
	var err error
	for err == nil { // until the reset has come
		_, err = s.Write([]byte("x"))
	}
	if !errors.Is(err, ErrReset) {
		t.Errorf("writing: %v", err)
	}
	_ = s.Close()
	for { // the answer to the reset is in transit
		server.mu.Lock()
		left := len(server.recv) + len(server.send)
		server.mu.Unlock()
		if left == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

func TestEventsFollowTheirAnswer(t *testing.T) {
	events := make(chan string, 10)
	c, _ := pair(t, map[string]entry{"Test.start": {func() any { return new(echoParams) },
		func(ctx context.Context, c *Conn, _ any) (any, error) {
			AfterReply(ctx, func() { _ = c.Emit(ctx, "Test.happened", map[string]int{"n": 1}) })
			return nil, nil
		}}}, func(e Event) { events <- e.Method + string(e.Params) })
	if err := c.Call(ctxFor(t), "Test.start", nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := <-events; got != `Test.happened{"n":1}` {
		t.Error(got)
	}
}

// raw returns a connection's server and a stream for a client's raw bytes.
func raw(t *testing.T) (net.Conn, *Conn) {
	t.Helper()
	d := NewDispatcher()
	d.handle("Test.copy", entry{func() any { return new(echoParams) },
		func(ctx context.Context, c *Conn, p any) (any, error) {
			<-ctx.Done()
			return nil, nil
		}})
	a, b := net.Pipe()
	server := NewConn(b, Options{Dispatcher: d})
	t.Cleanup(func() {
		_ = a.Close()
		_ = server.Close()
		server.Wait()
	})
	return a, server
}

func frameBytes(op ws.OpCode, fin bool, payload []byte) []byte {
	var b bytes.Buffer
	_ = ws.WriteHeader(&b, ws.Header{Fin: fin, OpCode: op, Length: int64(len(payload))})
	b.Write(payload)
	return b.Bytes()
}

func chunk(kind byte, stream StreamID, offset uint64, data string) []byte {
	return frameBytes(ws.OpBinary, true,
		append(Frame{Kind: kind, Stream: stream, Offset: offset}.Head(), data...))
}

func TestGarbageIsCutOffWithAReason(t *testing.T) {
	open := string(frameBytes(ws.OpText, true,
		[]byte(`{"id":1,"method":"Test.copy","params":{"in":7}}`)))
	huge := binary.BigEndian.AppendUint64([]byte{0x81, 127}, 1<<40)
	for name, tt := range map[string]struct{ send, want string }{
		"no JSON": {string(frameBytes(ws.OpText, true, []byte("hello"))),
			"not a JSON object"},
		"not an object": {string(frameBytes(ws.OpText, true, []byte("[1]"))),
			"not a JSON object"},
		"neither id nor name": {string(frameBytes(ws.OpText, true, []byte("{}"))),
			"neither id nor method"},
		"fractional id": {string(frameBytes(ws.OpText, true,
			[]byte(`{"id":1.5,"method":"x"}`))), "not a JSON object"},
		"deep": {string(frameBytes(ws.OpText, true,
			[]byte(`{"id":1,"method":"x","params":`+strings.Repeat("[", 1000)+
				strings.Repeat("]", 1000)+"}"))), "nested deeper"},
		"huge": {string(huge), "longer than"},
		"huge in parts": {string(frameBytes(ws.OpBinary, false, make([]byte, 60_000))) +
			string(frameBytes(ws.OpContinuation, true, make([]byte, 60_000))), "longer than"},
		"extension":          {"\xc1\x00", "extension"},
		"opcode":             {"\x83\x00", "opcode"},
		"stray continuation": {"\x80\x00", "continuation frame without a message"},
		"message in message": {string(frameBytes(ws.OpText, false, []byte("{"))) +
			string(frameBytes(ws.OpText, true, []byte("{"))), "inside another"},
		"long ping": {string(frameBytes(ws.OpPing, true, make([]byte, 126))),
			"control frame"},
		"short chunk":  {string(frameBytes(ws.OpBinary, true, make([]byte, 5))), "shorter"},
		"unknown kind": {string(chunk(9, 9, 0, "")), "unknown kind"},
		"stream zero":  {string(chunk(frameData, 0, 0, "")), "no stream"},
		"out of order": {open + string(chunk(frameData, 7, 5, "x")),
			"continues at byte 5, not 0"},
		"repeated": {open + string(chunk(frameData, 7, 0, "xy")) +
			string(chunk(frameData, 7, 1, "y")), "continues at byte 1, not 2"},
		"early end":        {open + string(chunk(frameEnd, 7, 5, "")), "ends at byte 5, not 0"},
		"credit with data": {open + string(chunk(frameCredit, 7, 5, "x")), "carries data"},
		"another session": {string(frameBytes(ws.OpBinary, true,
			Frame{Channel: 3, Stream: 1}.Head())), "session 3"},
		"answer to nothing": {string(frameBytes(ws.OpText, true, []byte(`{"id":5}`))),
			"exactly one"},
	} {
		t.Run(name, func(t *testing.T) {
			a, server := raw(t)
			go func() { _, _ = io.WriteString(a, tt.send) }()
			f := NewFrames(a, true)
			var closed *ClosedError
			for {
				_, _, err := f.Next(nil)
				if err == nil {
					continue
				}
				if !errors.As(err, &closed) || closed.Code < 1002 ||
					!strings.Contains(closed.Reason, tt.want) {
					t.Errorf("%v", err)
				}
				break
			}
			<-server.Done()
			if server.Err() == nil {
				t.Error("the server sees nothing wrong")
			}
		})
	}
}

func TestMoreThanGranted(t *testing.T) {
	a, server := raw(t)
	go func() {
		_, _ = a.Write(frameBytes(ws.OpText, true,
			[]byte(`{"id":1,"method":"Test.copy","params":{"in":7}}`)))
		for off := uint64(0); ; off += MaxChunk {
			_, err := a.Write(chunk(frameData, 7, off, strings.Repeat("x", MaxChunk)))
			if err != nil {
				return
			}
		}
	}()
	_, _, err := NewFrames(a, true).Next(nil)
	var closed *ClosedError
	if !errors.As(err, &closed) || !strings.Contains(closed.Reason, "exceeds its credit") {
		t.Error(err)
	}
	<-server.Done()
}

// A sandbox that sends malformed answers is reported as such, not as dead.
func TestHostileAgent(t *testing.T) {
	for name, answer := range map[string]string{
		"no JSON":      "hello",
		"wrong result": `{"id":1,"result":[1]}`,
		"wrong error":  `{"id":1,"error":[1]}`,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			c := NewConn(a, Options{})
			defer c.Wait()
			defer func() { _ = c.Close() }()
			defer func() { _ = b.Close() }()
			f := NewFrames(b, false)
			go func() {
				_, _, _ = f.Next(nil)
				_ = f.WriteText([]byte(answer))
				_, _, _ = f.Next(nil)
			}()
			var res struct{ Text string }
			err := c.Call(ctxFor(t), "Test.echo", nil, &res)
			if turnstone.KindOf(err) != turnstone.KindIntegrity ||
				!strings.Contains(turnstone.HintOf(err), "do not trust") {
				t.Errorf("%v (%s)", err, turnstone.HintOf(err))
			}
		})
	}
}

func TestEndOfConnection(t *testing.T) {
	c, server := pair(t,
		map[string]entry{"Test.hang": {func() any { return new(echoParams) },
			func(ctx context.Context, _ *Conn, _ any) (any, error) {
				<-ctx.Done()
				return nil, nil
			}}}, nil)
	r, _ := c.Receiver(c.NewStream())
	failed := make(chan error, 2)
	go func() { failed <- c.Call(ctxFor(t), "Test.hang", nil, nil) }()
	go func() {
		_, err := r.Read(make([]byte, 1))
		failed <- err
	}()
	time.Sleep(10 * time.Millisecond)
	_ = server.Close()
	for range 2 {
		if err := <-failed; turnstone.KindOf(err) != turnstone.KindDead {
			t.Error(err)
		}
	}
	if err := c.Call(ctxFor(t), "Test.echo", nil, nil); turnstone.KindOf(
		err) != turnstone.KindDead {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c2, _ := pair(t, nil, nil)
	if err := c2.Call(ctx, "Test.echo", nil, nil); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Error(err)
	}
}

func TestTooManyCalls(t *testing.T) {
	c, _ := pair(t, map[string]entry{"Test.hang": {func() any { return new(echoParams) },
		func(ctx context.Context, _ *Conn, _ any) (any, error) {
			<-ctx.Done()
			return nil, nil
		}}}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range maxCalls {
		wg.Go(func() { _ = c.Call(ctx, "Test.hang", nil, nil) })
	}
	for {
		err := c.Call(ctxFor(t), "Test.echo", nil, nil)
		if turnstone.KindOf(err) == turnstone.KindExhausted {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(frameBytes(ws.OpText, true, []byte(`{"id":1,"method":"Test.copy","params":{"in":7}}`)))
	f.Add(chunk(frameData, 7, 0, "abc"))
	f.Add(append(frameBytes(ws.OpText, false, []byte(`{"id":1,`)),
		frameBytes(ws.OpContinuation, true, []byte(`"method":"x"}`))...))
	f.Add(frameBytes(ws.OpClose, true, []byte("\x03\xe8bye")))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr := NewFrames(nopStream{bytes.NewReader(b)}, false)
		for {
			text, p, err := fr.Next(nil)
			if err != nil {
				return
			}
			if len(p) > MaxMessage {
				t.Fatal("too long")
			}
			if text {
				if m, err := ParseMessage(p); err == nil && m.ID == nil && m.Method == "" {
					t.Fatal("an empty message")
				}
			} else if fm, err := ParseFrame(p); err == nil &&
				!bytes.Equal(append(fm.Head(), fm.Data...), p) {
				t.Fatal("a frame does not round trip")
			}
		}
	})
}

// A gate reports io.EOF after it is opened.
type gate struct{ open chan struct{} }

func (g *gate) Read([]byte) (int, error) { <-g.open; return 0, io.EOF }

type nopStream struct{ io.Reader }

func (nopStream) Write(p []byte) (int, error) { return len(p), nil }
func (nopStream) Close() error                { return nil }

// For any input from one side, the other side's connection ends without a panic and leaves no
// goroutine.
func FuzzConn(f *testing.F) {
	f.Add(append(frameBytes(ws.OpText, true,
		[]byte(`{"id":1,"method":"Test.echo","params":{"in":7,"out":8}}`)),
		chunk(frameData, 7, 0, "abc")...), true)
	f.Add(append(chunk(frameData, 1, 0, "abc"),
		frameBytes(ws.OpText, true, []byte(`{"id":1,"result":{}}`))...), false)
	f.Fuzz(func(t *testing.T, b []byte, server bool) {
		d := NewDispatcher()
		d.handle("Test.echo", entry{func() any { return new(echoParams) },
			func(_ context.Context, c *Conn, p any) (any, error) {
				if r, err := c.Receiver(p.(*echoParams).In); err == nil {
					_ = r.Close()
				}
				return nil, nil
			}})
		opt := Options{Dispatcher: d}
		if !server {
			opt = Options{OnEvent: func(e Event) { _ = json.Valid(e.Params) }}
		}
		held := make(chan struct{}) // an answer without a command would arrive too early
		c := newConn(nopStream{io.MultiReader(&gate{held}, bytes.NewReader(b))}, opt)
		c.wg.Go(c.readLoop)
		if server {
			close(held)
			c.Wait()
			return
		}
		r, err := c.Receiver(1)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Sender(2)
		if err != nil {
			t.Fatal(err)
		}
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				_ = c.Call(context.Background(), "Test.echo", &echoParams{In: 2, Out: 1},
					&struct{ Text string }{})
			})
		}
		calls.Go(func() { _, _ = s.Write(make([]byte, 3*streamWindow)); _ = s.Close() })
		close(held)
		<-c.Done()
		r.mu.Lock()
		kept := 0
		for _, q := range r.queue {
			kept += cap(q)
		}
		r.mu.Unlock()
		if kept > 2*streamWindow {
			t.Errorf("%d bytes are kept", kept)
		}
		calls.Wait() // each call ends with the connection
		if s.sent > s.limit {
			t.Errorf("%d bytes were sent with a credit of %d", s.sent, s.limit)
		}
		_, _ = io.Copy(io.Discard, r)
		c.Wait()
	})
}

// An agent that no longer reads blocks neither a call whose context ends nor the connection's end.
func TestOtherSideReadsNothing(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _ = b.Close() }()
	go func() { _, _ = io.ReadFull(b, make([]byte, 12)) }() // only the stream's beginning
	link, err := NewLink(a, true)
	if err != nil {
		t.Fatal(err)
	}
	s, err := link.Open()
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(s)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	for range 3 {
		_, err := c.SandboxConfigure(ctx,
			&SandboxConfigureParams{Entropy: make([]byte, 3*linkWindow)})
		if turnstone.KindOf(
			err) != turnstone.KindTimeout {
			t.Errorf("%v", err)
		}
	}
	_ = c.Close() // without a reader
	<-c.Done()
	if _, err := c.SandboxGetVersion(context.Background()); turnstone.KindOf(
		err) != turnstone.KindDead {
		t.Errorf("%v", err)
	}
	_ = link.Close()
}

// A small message must not use much memory.
func TestManyValues(t *testing.T) {
	for _, list := range []string{strings.Repeat("{},", 1<<20), strings.Repeat("0,", 1<<20),
		strings.Repeat("[],", 1<<20)} {
		_, err := ParseMessage(
			[]byte(`{"method":"Shell.commands","params":{"processId":"p","records":[` +
				list + `{}]}}`))
		var broken *ProtocolError
		if !errors.As(err, &broken) || !strings.Contains(broken.Reason, "values") {
			t.Errorf("%.20s: %v", list, err)
		}
	}
	if _, err := ParseMessage([]byte(`{"method":"a","params":"` + strings.Repeat("{,[", 1<<20) +
		`"}`)); err != nil {
		t.Error("what is quoted was counted:", err)
	}
}

// A rejected command must not break the connection that carries the command's data.
func TestRefusedCommandsStream(t *testing.T) {
	c, _ := pair(t, nil, nil)
	for range 3 {
		id := c.NewStream()
		s, _ := c.Sender(id)
		wrote := make(chan error, 1)
		go func() {
			_, err := s.Write(make([]byte, 3*streamWindow))
			wrote <- err
		}()
		err := c.Call(ctxFor(t), "Test.nothing", &echoParams{In: id}, nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Fatal(err)
		}
		if err := <-wrote; !errors.Is(err, ErrReset) {
			t.Fatal(err)
		}
		_ = s.Close()
	}
	if err := c.Call(ctxFor(t), "Test.echo", nil, nil); err != nil {
		t.Fatal(err)
	}
}

// A stream in small frames uses no more memory than a stream in large frames.
func TestSmallFrames(t *testing.T) {
	r := newReceiver(nil, 1)
	for i := range uint64(100_000) {
		_, err := r.frame(Frame{Kind: frameData, Stream: 1, Offset: i, Data: []byte{byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for _, b := range r.queue {
		total += cap(b)
	}
	if len(r.queue) > 100 || total > 200_000 {
		t.Errorf("%d buffers of %d bytes", len(r.queue), total)
	}
	for i := range 100_000 {
		var b [1]byte
		if n, err := r.Read(b[:]); n != 1 || err != nil || b[0] != byte(i) {
			t.Fatal(i, n, err, b)
		}
	}
}

// A message that the other side would reject is not sent.
func TestTooManyValuesAreNotSent(t *testing.T) {
	c, _ := pair(t, map[string]entry{"Test.many": {func() any { return new(echoParams) },
		func(context.Context, *Conn, any) (any, error) {
			return make([]int, 2*MaxValues), nil
		}}}, nil)
	if err := c.Call(ctxFor(t), "Test.many", nil, nil); err == nil ||
		turnstone.KindOf(err) == turnstone.KindDead {
		t.Error(err)
	}
	if err := c.Call(ctxFor(t), "Test.echo", nil, nil); err != nil {
		t.Error(err)
	}
}
