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

// A Dispatcher knows who answers which command. It is filled before it is used,
// and then shared by any number of connections.
type Dispatcher struct {
	entries map[string]entry

	// Gate, if set, may refuse a command before it is carried out.
	Gate func(method string) error
	// Observe, if set, is told of each command that was carried out. params are
	// the command's own, and not to be kept.
	Observe func(method string, params any, began time.Time, err error)
}

// NewDispatcher returns an empty Dispatcher.
func NewDispatcher() *Dispatcher { return &Dispatcher{entries: make(map[string]entry)} }

type entry struct {
	new  func() any
	call func(ctx context.Context, c *Conn, params any) (any, error)
}

func (d *Dispatcher) handle(method string, e entry) { d.entries[method] = e }

// streamUser is implemented by the parameters that name streams, as the answering
// side sees their direction.
type streamUser interface {
	streams() (receive, send []StreamID)
}

// maxCalls bounds the commands of one connection that are carried out at one time.
const maxCalls = 256

// command answers one command. What it may do at once it does in the reading
// goroutine: so the streams that the command names exist before their frames come.
func (c *Conn) command(m *Message) {
	fail := func(err error, code int) {
		re := encodeError(err)
		if code != 0 {
			re.Code = code
		}
		c.reply(m.ID, nil, re)
	}
	d := c.opt.Dispatcher
	if m.SessionID != "" {
		fail(turnstone.NewError(turnstone.Op(m.Method), turnstone.KindNotFound, "session "+m.SessionID, nil).
			WithHint("attach with Target.attachToTarget, on a server that has targets"), codeServer)
		return
	}
	var e entry
	known := false
	if d != nil {
		e, known = d.entries[m.Method]
	}
	if !known {
		fail(turnstone.Errorf(turnstone.Op(m.Method), turnstone.KindInvalid, m.Method, "no such command").
			WithHint("docs/wire.md lists the commands"), codeMethodNotFound)
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
			WithHint("docs/wire.md lists the parameters"), codeInvalidParams)
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
		fail(turnstone.NewError(turnstone.Op(m.Method), turnstone.KindExhausted, "commands of this connection",
			nil).WithHint("wait for answers before you send more"), codeServer)
		return
	}
	wait, leave := c.enter(params)
	c.Go(func() {
		defer func() { <-c.slots }()
		began := time.Now()
		var after afterReply
		defer after.run() // last, when the answer is on its way
		wait(c.ctx)       // if it ended, the call sees that too
		result, err := e.call(context.WithValue(c.ctx, afterKey{}, &after), c, params)
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

type afterKey struct{}

// afterReply are what a handler wants done when its answer has been sent.
type afterReply struct{ funcs []func() }

func (a *afterReply) run() {
	for _, f := range a.funcs {
		f()
	}
}

// AfterReply makes f run when the command whose handler was given ctx has been
// answered: events that must not come before the answer are sent from then on.
// Only the handler's own goroutine may call it. f must not block.
func AfterReply(ctx context.Context, f func()) {
	if a, ok := ctx.Value(afterKey{}).(*afterReply); ok {
		a.funcs = append(a.funcs, f)
		return
	}
	f()
}

// decodeStrict refuses what the parameters do not have, so that a misspelled one
// is told and not ignored.
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

// reserve makes the streams that a command names. release gives up those that
// its handler did not take.
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
