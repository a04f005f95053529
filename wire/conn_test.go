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

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

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
	var sending sync.WaitGroup
	sending.Go(func() {
		_, _ = s.Write(want)
		_ = s.Close()
	})
	answered := make(chan error, 1)
	go func() { answered <- c.Call(ctxFor(t), "Test.copy", &echoParams{In: in, Out: out}, nil) }()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	sending.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recv)+len(c.send) != 0 {
		t.Errorf("%d and %d streams are left", len(c.recv), len(c.send))
	}
}

// TestSlowReaderStarvesNobody checks that an unread stream does not block the messages or other
// streams, and does not make its side hold more than the window.
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

// TestFailedCommandsStreams checks that a command that fails aborts the streams that it names.
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

// A slowCloser is a pipe's end that closes when it may.
type slowCloser struct {
	net.Conn
	may chan struct{}
}

func (s slowCloser) Close() error {
	<-s.may
	return s.Conn.Close()
}

// TestNoAnswerAfterClose checks that a command that Close cancels is not answered, however long the
// stream takes to close.
func TestNoAnswerAfterClose(t *testing.T) {
	d, began, answered := NewDispatcher(), make(chan struct{}), make(chan struct{})
	d.handle("Test.hang", entry{func() any { return new(echoParams) },
		func(ctx context.Context, _ *Conn, _ any) (any, error) {
			AfterReply(ctx, func() { close(answered) })
			close(began)
			<-ctx.Done()
			return nil, nil
		}})
	a, b := net.Pipe()
	may := make(chan struct{})
	client, server := NewConn(a, Options{}), NewConn(slowCloser{b, may}, Options{Dispatcher: d})
	failed := make(chan error, 1)
	go func() { failed <- client.Call(ctxFor(t), "Test.hang", nil, nil) }()
	<-began
	closed := make(chan struct{})
	go func() { defer close(closed); _ = server.Close() }()
	<-answered
	close(may)
	if err := <-failed; turnstone.KindOf(err) != turnstone.KindDead {
		t.Error(err)
	}
	<-closed
	_ = client.Close()
	client.Wait()
}

// A lateWriter is a pipe's end whose writes return when it is closed.
type lateWriter struct {
	net.Conn
	once   *sync.Once
	closed chan struct{}
}

func (l lateWriter) Write(p []byte) (int, error) {
	n, err := l.Conn.Write(p)
	<-l.closed
	return n, err
}

func (l lateWriter) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// TestAnswerBeforeTheEnd: an answer counts that arrived before the end of the connection, even if
// the write of its command has not returned by then.
func TestAnswerBeforeTheEnd(t *testing.T) {
	d := NewDispatcher()
	d.handle("Test.last", entry{func() any { return new(echoParams) },
		func(ctx context.Context, c *Conn, p any) (any, error) {
			AfterReply(ctx, func() { _ = c.Close() })
			return map[string]string{"text": p.(*echoParams).Text}, nil
		}})
	for range 20 {
		a, b := net.Pipe()
		server := NewConn(b, Options{Dispatcher: d})
		client := NewConn(lateWriter{a, new(sync.Once), make(chan struct{})}, Options{})
		var got struct{ Text string }
		err := client.Call(ctxFor(t), "Test.last", echoParams{Text: "hello"}, &got)
		if err != nil || got.Text != "hello" {
			t.Errorf("%q, %v", got.Text, err)
		}
		client.Wait()
		server.Wait()
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
	time.Sleep(10 * time.Millisecond) //wait: any moment is right
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

// TestRefusedCommandsStream checks that a rejected command does not break the connection that
// carries the command's data.
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

// TestSmallFrames checks that a stream in small frames uses no more memory than a stream in large
// frames.
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

// TestTooManyValuesAreNotSent checks that a message that the other side would reject is not sent.
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

// TestErrorsAreRewritten: what an end's Options say of errors holds for each way on which it sends
// one.
func TestErrorsAreRewritten(t *testing.T) {
	secret := errors.New("open /srv/alice/x: gone")
	d := NewDispatcher()
	newEcho := func() any { return new(echoParams) }
	d.handle("Test.fail", entry{newEcho, func(_ context.Context, c *Conn, p any) (any, error) {
		s, err := c.Sender(p.(*echoParams).Out)
		if err != nil {
			return nil, err
		}
		s.Abort(secret)
		return nil, turnstone.NewError("test.fail", turnstone.KindInternal, "", secret)
	}})
	d.Gate = func(method string) error {
		if method == "Test.gated" {
			return secret
		}
		return nil
	}
	d.handle("Test.gated", d.entries["Test.fail"])
	a, b := net.Pipe()
	c := NewConn(a, Options{})
	server := NewConn(b, Options{Dispatcher: d, Errors: func(err error) error {
		return errors.New(strings.ReplaceAll(err.Error(), "/srv/alice/", ""))
	}})
	t.Cleanup(func() {
		_, _ = c.Close(), server.Close()
		c.Wait()
		server.Wait()
	})
	out := c.NewStream()
	r, err := c.Receiver(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Call(ctxFor(t), "Test.fail", &echoParams{Out: out}, nil); err == nil ||
		err.Error() != "open x: gone" {
		t.Errorf("the answer is %v", err)
	}
	if _, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), "open x: gone") {
		t.Errorf("the stream ended with %v", err)
	}
	if err := c.Call(ctxFor(t), "Test.gated", nil, nil); err == nil ||
		err.Error() != "open x: gone" {
		t.Errorf("the gate says %v", err)
	}
}
