package wire

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
)

// A Message is a JSON message: a command, an answer or an event.
type Message struct {
	ID        *int64          `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
}

// ParseMessage decodes a JSON message after checking its depth and the number of its values. The
// check is necessary because an empty object of three bytes can take some hundred bytes in memory.
func ParseMessage(p []byte) (*Message, error) {
	deep, values := measure(p)
	switch {
	case deep > MaxDepth:
		return nil, protocolError("a message is nested deeper than %d", MaxDepth)
	case values > MaxValues:
		return nil, protocolError("a message has more than %d values", MaxValues)
	}
	var m Message
	if err := json.Unmarshal(p, &m); err != nil {
		return nil, protocolError("a message is not a JSON object of the protocol: %s", err)
	}
	if m.ID == nil && m.Method == "" {
		return nil, protocolError("a message has neither id nor method")
	}
	return &m, nil
}

// measure returns the nesting depth of p and an upper bound of its number of values, without
// decoding p.
func measure(p []byte) (deep, values int) {
	now, quoted := 0, false
	for i := 0; i < len(p); i++ {
		switch b := p[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			now++
			values++
			deep = max(deep, now)
		case b == '}' || b == ']':
			now--
		case b == ',':
			values++
		}
	}
	return deep, values
}

// Options configure an end of a connection.
type Options struct {
	// Dispatcher answers the other side's commands; nil: the other side may send none.
	Dispatcher *Dispatcher
	// OnEvent is called for each event, in order, by the reading goroutine. It must return quickly
	// and must not wait for anything that arrives over the connection.
	OnEvent func(Event)
	// Errors, if set, rewrites each error before the other side gets it, such as to hide paths.
	Errors func(error) error
	// Masked is set by a WebSocket client.
	Masked bool
}

// brokenHint is the hint for messages that no agent sends.
const brokenHint = "another program in the sandbox acts as its agent; do not trust this sandbox"

// farewellTime is the time limit for sending the reason to a side that is disconnected.
const farewellTime = time.Second

// An Event is an event in its wire form; DecodeEvent returns the typed form.
type Event struct {
	Method string
	Params json.RawMessage
}

// A Conn is an end of a connection of the wire. Its methods are safe for concurrent use.
type Conn struct {
	opt    Options
	frames *Frames
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	slots  chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	err     error // why it ended; set before done is closed
	lastID  int64
	lastStr StreamID
	calls   map[int64]chan *Message
	recv    map[StreamID]*recvEntry
	send    map[StreamID]*sendEntry
	lanes   map[string]chan struct{} // closed when the last command of a lane is done
	refused map[StreamID]bool        // closed streams that data has arrived for
}

type recvEntry struct {
	*Receiver
	claimed bool
	ended   bool
}

type sendEntry struct {
	*Sender
	claimed bool
}

// NewConn starts the protocol over stream. The Conn then owns stream.
func NewConn(stream io.ReadWriteCloser, opt Options) *Conn {
	c := newConn(stream, opt)
	c.wg.Go(c.readLoop)
	return c
}

// newConn is NewConn without the reading goroutine.
func newConn(stream io.ReadWriteCloser, opt Options) *Conn {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Conn{opt: opt, frames: NewFrames(stream, opt.Masked), ctx: ctx, cancel: cancel,
		slots: make(chan struct{}, maxCalls), done: make(chan struct{}),
		calls: make(map[int64]chan *Message),
		recv:  make(map[StreamID]*recvEntry), send: make(map[StreamID]*sendEntry),
		lanes: make(map[string]chan struct{}), refused: make(map[StreamID]bool)}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Context ends with the connection.
func (c *Conn) Context() context.Context { return c.ctx }

// Err returns why the connection ended. It is nil before the end, and after either side closed the
// connection in good order.
func (c *Conn) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	var closed *ClosedError
	switch {
	case errors.As(c.err, &closed) && closed.Code <= 1001:
		return nil
	case hungUp(c.err):
		return nil
	}
	return c.err
}

// hungUp reports whether the other side closed the connection. The error depends on the kind of
// connection and on whether a write was in progress.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed,
		syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// Close ends the connection at once. The contexts of commands in progress for the other side are
// canceled; Wait waits for these commands.
func (c *Conn) Close() error {
	c.end(net.ErrClosed)
	return nil
}

// Wait waits until everything that Go started has returned.
func (c *Conn) Wait() {
	<-c.done
	c.wg.Wait()
}

// Go runs f in a goroutine that Wait waits for.
func (c *Conn) Go(f func()) { c.wg.Go(f) }

// end ends the connection; the first reason counts.
func (c *Conn) end(why error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = why
	dead := c.dead("wire.stream")
	recv, send := c.recv, c.send
	c.recv, c.send = nil, nil
	c.mu.Unlock()
	for _, r := range recv {
		r.fail(dead)
	}
	for _, s := range send {
		s.fail(dead)
	}
	c.cancel(why)
	close(c.done)
	_ = c.frames.Close()
}

// ended reports whether the connection has ended; its frames may still be open.
func (c *Conn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// dead returns the error that callers get from an ended connection.
func (c *Conn) dead(op turnstone.Op) error {
	te := turnstone.NewError(op, turnstone.KindDead, "connection to the sandbox", c.err).
		WithHint("run the turn again in a new sandbox")
	var broken *ProtocolError
	var closed *ClosedError
	switch {
	case errors.As(c.err, &broken):
		te.Kind, te.Subject, te.Hint = turnstone.KindIntegrity,
			"the sandbox broke its channel", brokenHint
	case errors.As(c.err, &closed) && closed.Code > 1001:
		te.Kind, te.Subject, te.Hint = turnstone.KindInvalid, "connection", ""
	case turnstone.KindOf(c.err) == turnstone.KindIntegrity: // of an encrypted stream below
		te.Kind, te.Subject, te.Hint = turnstone.KindIntegrity, "connection",
			turnstone.HintOf(c.err)
	}
	return te
}

func (c *Conn) readLoop() {
	var buf []byte
	for {
		text, p, err := c.frames.Next(buf)
		select {
		case <-c.done: // commands that arrived before the end are dropped
			return
		default:
		}
		if err == nil && text {
			err = c.message(p)
		} else if err == nil {
			err = c.frame(p)
		}
		if err != nil {
			var broken *ProtocolError
			if errors.As(err, &broken) {
				c.farewell(err)
			}
			c.end(err)
			return
		}
		if buf = p; cap(buf) > 4*MaxChunk {
			buf = nil
		}
	}
}

// farewell sends the other side the reason for the end, if the other side still reads.
func (c *Conn) farewell(err error) {
	told := make(chan struct{})
	go func() {
		_ = c.frames.Farewell(err)
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(farewellTime):
	}
}

func (c *Conn) message(p []byte) error {
	m, err := ParseMessage(p)
	if err != nil {
		return err
	}
	switch {
	case m.ID != nil && m.Method != "":
		c.command(m)
	case m.ID != nil:
		return c.answer(m)
	case c.opt.OnEvent != nil:
		c.opt.OnEvent(Event{Method: m.Method, Params: m.Params})
	}
	return nil
}

func (c *Conn) answer(m *Message) error {
	if (m.Result == nil) == (m.Error == nil) {
		return protocolError("an answer does not have exactly one of result and error")
	}
	c.mu.Lock()
	ch, known := c.calls[*m.ID]
	delete(c.calls, *m.ID)
	c.mu.Unlock()
	if !known {
		return protocolError("an answer to command %d, which does not wait for an answer", *m.ID)
	}
	if ch != nil { // otherwise the caller gave up
		ch <- m
	}
	return nil
}

// Call sends a command and waits for its answer. When ctx ends, Call returns at once; the other
// side may still execute the command. If the connection ends, Call returns an error of kind
// KindDead. An error from the other side is returned as the *turnstone.Error that the other side
// sent.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	if params == nil {
		params = struct{}{}
	}
	raw, err := json.Marshal(params)
	if err != nil {
		return turnstone.NewError(turnstone.Op(method), turnstone.KindInternal, "", err)
	}
	ch := make(chan *Message, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.dead(turnstone.Op(method))
	}
	c.lastID++
	id := c.lastID
	c.calls[id] = ch
	c.mu.Unlock()
	sent := false
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, waits := c.calls[id]; waits && sent {
			c.calls[id] = nil // the answer may still arrive and is then dropped
		} else {
			delete(c.calls, id)
		}
	}()
	if err := ctx.Err(); err != nil {
		return ctxError(ctx, method)
	}
	sent = true
	// The other side may read nothing. ctx ends the wait; the end of the connection ends the write.
	wrote := make(chan error, 1)
	go func() {
		err := c.writeMessage(&Message{ID: &id, Method: method, Params: raw})
		if err == nil {
			c.begin(params)
		}
		wrote <- err
	}()
	select {
	case err := <-wrote:
		if err != nil && len(ch) == 0 {
			return c.writeFailed(method, err)
		}
	case <-ctx.Done():
		return ctxError(ctx, method)
	case <-c.done: // a write may report later than the other side answers
	}
	select {
	case m := <-ch:
		return c.decodeAnswer(m, method, result)
	case <-ctx.Done():
		return ctxError(ctx, method)
	case <-c.done:
		select {
		case m := <-ch: // the answer arrived first
			return c.decodeAnswer(m, method, result)
		default:
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.dead(turnstone.Op(method))
	}
}

// writeFailed prefers the reason why the connection ended over the resulting write error.
func (c *Conn) writeFailed(method string, err error) error {
	var broken *ProtocolError
	if hungUp(err) || errors.Is(err, io.ErrShortWrite) || errors.As(err, &broken) {
		c.end(err)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.dead(turnstone.Op(method))
	}
	select {
	case <-c.done:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.dead(turnstone.Op(method))
	default:
		// the stream may be a channel, which names what a relay did
		return turnstone.NewError(turnstone.Op(method), turnstone.KindOf(err), "", err)
	}
}

// decodeAnswer decodes an answer. A malformed answer ends the connection.
func (c *Conn) decodeAnswer(m *Message, method string, result any) error {
	var err error
	var re replyError
	switch {
	case m.Error != nil:
		if err = json.Unmarshal(m.Error, &re); err == nil {
			return re.decode(method)
		}
	case result != nil:
		err = json.Unmarshal(m.Result, result)
	}
	if err == nil {
		return nil
	}
	c.end(protocolError("a malformed answer to %s: %s", method, clip(err.Error(), 200)))
	return malformed(method, err)
}

// malformed returns the error for an answer or event that no agent sends.
func malformed(method string, err error) error {
	return turnstone.Errorf(turnstone.Op(method), turnstone.KindIntegrity,
		"the sandbox broke its channel",
		"malformed: %s", clip(err.Error(), 200)).WithHint(brokenHint)
}

func ctxError(ctx context.Context, method string) error {
	kind := turnstone.KindCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError(turnstone.Op(method), kind, "", context.Cause(ctx))
}

// Emit sends an event. It blocks while the other side does not read and fails when the connection
// has ended.
func (c *Conn) Emit(ctx context.Context, method string, params any) error {
	if err := ctx.Err(); err != nil {
		return ctxError(ctx, method)
	}
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return c.writeMessage(&Message{Method: method, Params: raw})
}

// shown returns err as the other side may see it.
func (c *Conn) shown(err error) error {
	if c.opt.Errors != nil && err != nil {
		return c.opt.Errors(err)
	}
	return err
}

func (c *Conn) reply(id *int64, result any, re *replyError) {
	if c.ended() { // the command was canceled, so its result means nothing
		return
	}
	m := &Message{ID: id}
	var err error
	switch {
	case re != nil:
		m.Error, err = json.Marshal(re)
	case result == nil:
		m.Result = json.RawMessage("{}")
	default:
		m.Result, err = json.Marshal(result)
	}
	if err != nil {
		m.Result = nil
		m.Error, _ = json.Marshal(encodeError(c.shown(err)))
	}
	if err := c.writeMessage(m); err != nil && !hungUp(err) {
		m.Result = nil
		m.Error, _ = json.Marshal(encodeError(c.shown(err)))
		_ = c.writeMessage(m)
	}
}

func (c *Conn) writeMessage(m *Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, values := measure(b); values > MaxValues {
		return turnstone.Errorf("wire.write", turnstone.KindExhausted, "message",
			"it has more than %d values", MaxValues).WithHint("request less data at a time")
	}
	return c.frames.WriteText(b)
}

func (c *Conn) writeFrame(f Frame) error {
	err := c.frames.WriteBinary(f.Head(), f.Data)
	if err != nil {
		return c.writeFailed("wire.stream", err)
	}
	return nil
}
