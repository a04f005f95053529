package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"turnstone.dev/turnstone"
)

// A Dispatcher maps commands to their handlers. Fill it before use; afterwards any number of
// connections may share it.
type Dispatcher struct {
	entries map[string]entry

	// Gate, if set, may reject a command before its execution.
	Gate func(method string) error
	// Around, if set, answers a command, for which it may call next.
	Around func(ctx context.Context, c *Conn, method string, params any,
		next func() (any, error)) (any, error)

	// Observe, if set, is called after each command. params belong to the command and must not be
	// kept.
	Observe func(method string, params any, began time.Time, err error)
}

// NewDispatcher returns an empty Dispatcher.
func NewDispatcher() *Dispatcher { return &Dispatcher{entries: make(map[string]entry)} }

type entry struct {
	new  func() any
	call func(ctx context.Context, c *Conn, params any) (any, error)
}

func (d *Dispatcher) handle(method string, e entry) { d.entries[method] = e }

// streamUser is implemented by parameters that name streams. The directions are those of the
// answering side.
type streamUser interface {
	streams() (receive, send []StreamID)
}

// maxCalls bounds the concurrent commands of a connection.
const maxCalls = 256

// command answers a command. It executes immediate work in the reading goroutine, so that the
// streams that the command names exist before their frames arrive.
func (c *Conn) command(m *Message) {
	fail := func(err error, code int) {
		re := encodeError(c.shown(err))
		if code != 0 {
			re.Code = code
		}
		c.reply(m.ID, nil, re)
	}
	d := c.opt.Dispatcher
	if m.SessionID != "" {
		fail(turnstone.NewError(turnstone.Op(m.Method), turnstone.KindNotFound,
			"session "+m.SessionID, nil).
			WithHint("attach with Target.attachToTarget on a server that has targets"), codeServer)
		return
	}
	var e entry
	known := false
	if d != nil {
		e, known = d.entries[m.Method]
	}
	if !known {
		fail(turnstone.Errorf(turnstone.Op(m.Method), turnstone.KindInvalid, m.Method,
			"no such command").
			WithHint("use a command that docs/wire.md lists"), codeMethodNotFound)
		return
	}
	if d.Gate != nil {
		if err := d.Gate(m.Method); err != nil {
			fail(err, codeServer)
			return
		}
	}
	params := e.new()
	if err := decodeStrict(m.Params, params); err != nil {
		fail(turnstone.NewError(turnstone.Op(m.Method), turnstone.KindInvalid, "parameters", err).
			WithHint("write the parameters as docs/wire.md lists them"), codeInvalidParams)
		return
	}
	release, err := c.reserve(m.Method, params)
	if err != nil {
		fail(err, codeInvalidParams)
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		release()
		fail(turnstone.NewError(turnstone.Op(m.Method), turnstone.KindExhausted,
			"commands of this connection",
			nil).WithHint("wait for answers before sending more commands"), codeServer)
		return
	}
	wait, leave := c.enter(params)
	c.Go(func() {
		defer func() { <-c.slots }()
		began := time.Now()
		var after afterReply
		defer after.run() // runs after the answer is sent
		wait(c.ctx)       // the call sees an ended context too
		result, err := d.answer(context.WithValue(c.ctx, afterKey{}, &after), c, m.Method, e,
			params)
		leave()
		if d.Observe != nil {
			d.Observe(m.Method, params, began, err)
		}
		release()
		if err != nil {
			fail(err, 0)
			return
		}
		c.reply(m.ID, result, nil)
	})
}

// answer performs a command.
func (d *Dispatcher) answer(ctx context.Context, c *Conn, method string, e entry, params any) (any,
	error) {
	if d.Around == nil {
		return e.call(ctx, c, params)
	}
	return d.Around(ctx, c, method, params, func() (any, error) { return e.call(ctx, c, params) })
}

type afterKey struct{}

// afterReply are functions that a handler defers until its answer is sent.
type afterReply struct{ funcs []func() }

func (a *afterReply) run() {
	for _, f := range a.funcs {
		f()
	}
}

// AfterReply makes f run after the answer to the command whose handler got ctx: events that must
// not precede the answer are sent from f. Only the handler's own goroutine may call AfterReply. f
// must not block.
func AfterReply(ctx context.Context, f func()) {
	if a, ok := ctx.Value(afterKey{}).(*afterReply); ok {
		a.funcs = append(a.funcs, f)
		return
	}
	f()
}

// decodeStrict rejects unknown parameters, so that a misspelled parameter is reported instead of
// ignored.
func decodeStrict(raw json.RawMessage, v any) error {
	if len(raw) == 0 || string(raw) == "null" {
		raw = []byte("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// reserve creates the streams that a command names. release gives up the streams that the command's
// handler did not claim.
func (c *Conn) reserve(method string, params any) (release func(), err error) {
	u, ok := params.(streamUser)
	if !ok {
		return func() {}, nil
	}
	receive, send := u.streams()
	var undo []func()
	release = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, id := range receive {
		r, err := c.addReceiver(id, false)
		if err != nil {
			release()
			return nil, inCall(method, err)
		}
		undo = append(undo, func() {
			if c.unclaimed(id, true) {
				_ = r.Close()
			}
		})
	}
	for _, id := range send {
		s, err := c.addSender(id, false)
		if err != nil {
			release()
			return nil, inCall(method, err)
		}
		undo = append(undo, func() {
			if c.unclaimed(id, false) {
				s.Abort(nil)
			}
		})
	}
	return release, nil
}

func inCall(method string, err error) error {
	var te *turnstone.Error
	if errors.As(err, &te) {
		te.Op = turnstone.Op(method)
	}
	return err
}
