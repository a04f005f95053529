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

	"turnstone.dev/turnstone"
)

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

// TestHostileAgent checks that a sandbox that sends malformed answers is reported as such, not as
// dead.
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

// FuzzConn checks that, for any input from one side, the other side's connection ends without a
// panic and leaves no goroutine.
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

// TestOtherSideReadsNothing checks that an agent that no longer reads blocks neither a call whose
// context ends nor the connection's end.
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
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) //wait: it is meant to expire
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

// TestManyValues checks that a small message does not use much memory.
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
