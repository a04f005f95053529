package wire

import (
	"fmt"

	"turnstone.dev/turnstone"
)

// NewStream returns an unused stream number of c.
func (c *Conn) NewStream() StreamID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastStr++
	return c.lastStr
}

// Receiver returns the reading end of a stream: on the calling side before the command that names
// the stream is sent, on the answering side in the command's handler.
func (c *Conn) Receiver(id StreamID) (*Receiver, error) { return c.addReceiver(id, true) }

// Sender returns the writing end of a stream, as Receiver does for the reading end. On the calling
// side the Sender waits until Call has sent the command.
func (c *Conn) Sender(id StreamID) (*Sender, error) { return c.addSender(id, true) }

func (c *Conn) addReceiver(id StreamID, claim bool) (*Receiver, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.dead("wire.stream")
	}
	if e := c.recv[id]; e != nil && claim && !e.claimed {
		c.claim(id, e)
		return e.Receiver, nil
	}
	limit := maxSend // numbers of this side's own choice
	if !claim {
		limit = maxReceive
	}
	if err := c.checkStream(id, len(c.recv), limit); err != nil {
		return nil, err
	}
	c.chosen(id, claim)
	r := newReceiver(c, id)
	c.recv[id] = &recvEntry{Receiver: r, claimed: claim}
	return r, nil
}

// chosen records a number that this side has chosen. c.mu is held.
func (c *Conn) chosen(id StreamID, own bool) {
	if own {
		c.lastStr = max(c.lastStr, id)
	}
}

// claim hands over a reserved stream. A stream that ended before its command's handler claimed it
// was kept for the handler; its number is then free. c.mu is held.
func (c *Conn) claim(id StreamID, e *recvEntry) {
	e.claimed = true
	if e.ended {
		delete(c.recv, id)
	}
}

func (c *Conn) addSender(id StreamID, claim bool) (*Sender, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.dead("wire.stream")
	}
	if e := c.send[id]; e != nil && claim && !e.claimed {
		e.claimed = true
		return e.Sender, nil
	}
	if err := c.checkStream(id, len(c.send), maxSend); err != nil {
		return nil, err
	}
	c.chosen(id, claim)
	s := newSender(c, id)
	s.held = claim // a caller's stream: its command follows
	c.send[id] = &sendEntry{s, claim}
	return s, nil
}

func (c *Conn) checkStream(id StreamID, open, limit int) error {
	te := turnstone.NewError("wire.stream", turnstone.KindInvalid, fmt.Sprintf("stream %d", id),
		nil)
	switch {
	case id == 0:
		te.Err = fmt.Errorf("stream numbers begin with 1")
	case c.recv[id] != nil || c.send[id] != nil:
		te.Err = fmt.Errorf("the number is in use")
	case open >= limit:
		te.Kind, te.Err = turnstone.KindExhausted,
			fmt.Errorf("a connection has at most %d streams in this direction", limit)
	default:
		return nil
	}
	return te
}

// begin starts the streams that a command names.
func (c *Conn) begin(params any) {
	u, ok := params.(streamUser)
	if !ok {
		return
	}
	ids, _ := u.streams()
	for _, id := range ids {
		c.mu.Lock()
		e := c.send[id]
		c.mu.Unlock()
		if e != nil {
			e.release()
		}
	}
}

// unclaimed records that the command's handler did not take a reserved stream. A later claim fails.
func (c *Conn) unclaimed(id StreamID, receive bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if receive {
		e := c.recv[id]
		if e == nil || e.claimed {
			return false
		}
		c.claim(id, e) // no handler claims it: remove it at its end
		return true
	}
	e := c.send[id]
	return e != nil && !e.claimed
}

func (c *Conn) dropSender(id StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.send, id)
}

// frame passes a binary frame to its stream. A reader's frame for an ended stream is late, not an
// error.
func (c *Conn) frame(p []byte) error {
	f, err := ParseFrame(p)
	if err != nil {
		return err
	}
	if f.Channel != 0 {
		return protocolError("a binary frame names the session %d, which does not exist", f.Channel)
	}
	c.mu.Lock()
	r, s := c.recv[f.Stream], c.send[f.Stream]
	over := r != nil && r.ended
	never := c.opt.Dispatcher == nil && f.Stream > c.lastStr // this side chooses the numbers
	c.mu.Unlock()
	switch {
	case never:
		return protocolError("a binary frame names stream %d, which was never opened", f.Stream)
	case s != nil && (f.Kind == frameData || f.Kind == frameEnd):
		return protocolError(
			"a binary frame has data for stream %d, which has the opposite direction", f.Stream)
	case r != nil && f.Kind != frameCredit && !over:
		ended, err := r.frame(f)
		if ended {
			c.mu.Lock()
			if r.ended = true; r.claimed {
				delete(c.recv, f.Stream)
			}
			c.mu.Unlock()
		}
		return err
	case s != nil && (f.Kind == frameCredit || f.Kind == frameReset):
		return s.frame(f)
	case f.Kind == frameData || f.Kind == frameEnd || f.Kind == frameReset:
		return c.refuse(f)
	}
	return nil
}

// refuse answers data that no stream accepts: its command was rejected, and its sender, which did
// not wait for the answer, is told to stop.
func (c *Conn) refuse(f Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.Kind != frameData:
		delete(c.refused, f.Stream)
	case c.refused[f.Stream]:
	case len(c.refused) >= maxSend:
		return protocolError("a binary frame names stream %d, which is not open", f.Stream)
	case c.err == nil:
		c.refused[f.Stream] = true
		c.wg.Go(func() { _ = c.writeFrame(Frame{Kind: frameReset, Stream: f.Stream}) })
	}
	return nil
}
