package mcpdoor

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"turnstone.dev/turnstone"
)

// A Party makes calls where the protocol has no connections: with one credential, for a caller who may
// have several. Parties of a caller use the same sandboxes, each with its own credential, and see no
// outputs of each other.
type Party struct{ Caller, ID string }

// Bounds of parties.
const (
	// maxOfCaller bounds the sandboxes of a caller's sessions, as many as its connections have.
	maxOfCaller = 32
	maxParties  = 500
)

// A caller is who has parties.
type caller struct {
	boxes   *boxes
	parties map[string]*connection
}

// party returns the connection of the party that a token is of. The door is locked.
func (d *Door) party(ctx context.Context, token *auth.TokenInfo) (*connection, error) {
	p := d.o.Party(token)
	of := d.callers[p.Caller]
	if of != nil {
		if c := of.parties[p.ID]; c != nil {
			return c, nil
		}
	}
	if !d.room(of) {
		return nil, turnstone.Errorf("mcp.open", turnstone.KindExhausted, "the caller",
			"has too many tokens in use").WithHint("wait for the answers of other calls")
	}
	place, err := d.o.Open(ctx, token)
	if err != nil {
		return nil, err
	}
	if of = d.callers[p.Caller]; of == nil { // room may have forgotten it
		of = &caller{boxes: newBoxes(maxOfCaller), parties: map[string]*connection{}}
		d.callers[p.Caller] = of
	}
	c := d.newConnection(place, of.boxes)
	c.handles = true
	of.parties[p.ID] = c
	return c, nil
}

// room makes room for a party of a caller, who may be new: the party that was silent for longest, and
// whose sandboxes other ones use, has to go.
func (d *Door) room(of *caller) bool {
	all := 0
	for _, other := range d.callers {
		all += len(other.parties)
	}
	own := of != nil && len(of.parties) >= maxOfCaller
	if !own && all < maxParties {
		return true
	}
	var name, id string
	var oldest *connection
	for n, other := range d.callers {
		if own && other != of {
			continue
		}
		for i, c := range other.parties {
			if c.busy == 0 && !other.boxes.usedBy(c) && (oldest == nil || c.last.Before(oldest.last)) {
				name, id, oldest = n, i, c
			}
		}
	}
	if oldest == nil {
		return false
	}
	d.leave(name, id)
	return true
}

// leave ends a party. The door is locked.
func (d *Door) leave(name, id string) {
	of := d.callers[name]
	c := of.parties[id]
	delete(of.parties, id)
	if len(of.parties) == 0 && !of.boxes.working() {
		delete(d.callers, name)
	}
	c.cancel()
	d.ending.Go(c.free)
}

// EndParty ends a party that is no longer admitted, and its calls. It does not wait for them. What the
// party used last ends by itself, with a turn.
func (d *Door) EndParty(p Party) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.callers[p.Caller]
	if d.closed || of == nil || of.parties[p.ID] == nil {
		return
	}
	of.boxes.abandon(of.parties[p.ID])
	d.leave(p.Caller, p.ID)
}

// tend extends the sandboxes of callers, and ends what is silent, until the door closes.
func (d *Door) tend() {
	every := time.NewTicker(leaseEvery)
	defer every.Stop()
	for {
		select {
		case <-d.calls.Done():
			return
		case <-every.C:
			d.sweep(time.Now().Add(-d.o.Idle))
		}
	}
}

// sweep ends the sandboxes and the parties that no call used since a time, and extends the others.
func (d *Door) sweep(since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	for name, of := range d.callers {
		d.ending.Go(func() {
			of.boxes.endSilent(since, d.o.Log)
			of.boxes.extend(d.calls, d.o.Log)
		})
		for id, c := range of.parties {
			if c.busy == 0 && c.last.Before(since) && !of.boxes.usedBy(c) {
				d.leave(name, id)
			}
		}
		if len(of.parties) == 0 && !of.boxes.working() {
			delete(d.callers, name)
		}
	}
}

// closeParties ends the sandboxes and the places of all callers, after their calls.
func (d *Door) closeParties() {
	d.mu.Lock()
	all := d.callers
	d.callers = nil
	d.mu.Unlock()
	for _, of := range all {
		d.ending.Go(func() {
			of.boxes.close(d.o.Log)
			for _, c := range of.parties {
				c.free()
			}
		})
	}
}
