package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// A Dialer opens a channel to a node. The stream is the caller's to close.
type Dialer func(ctx context.Context) (io.ReadWriteCloser, error)

// A TurnRequest is one turn to run at a node.
type TurnRequest struct {
	Ticket   string // reserved for this client's key
	Document *document.Document
	Settings wire.TurnSettings
	// Add are files of this machine for the sandbox. Those that the document names are among them:
	// their paths begin in the document's folder, which only the caller knows.
	Add []document.Transfer
}

// Turns runs turns at a node. It is safe for concurrent use; each turn has a connection of its own.
type Turns struct {
	Dial Dialer
	// Greet runs on each connection before the first command; nil: nothing does.
	Greet func(ctx context.Context, c *wire.Client) error
	// Patience is how long a lost connection is dialled again. The time of connections that carry
	// nothing, because the turn is silent, does not count. Default: one hour.
	Patience time.Duration
	// Pause is the time before a lost connection is dialled again. It is doubled, up to five
	// seconds, until bytes of the journal arrive. Default: 100 ms.
	Pause time.Duration
	// Node returns the name of the node of the latest connection; nil: all are to one node. A turn that
	// starts again at another node has another journal there.
	Node func() string
	// Tell gets a line when a connection is lost; nil: nobody.
	Tell func(what string)
}

// Defaults of Turns, and the longest pause.
const (
	patience   = time.Hour
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Run runs a turn and follows its progress, over as many connections as it takes: the turn runs
// once. The result is that of executor.Executor.Run. When ctx ends, the turn is canceled, and Run
// waits for its result; a second loss of the connection then ends Run. obs may be nil.
func (t *Turns) Run(ctx context.Context, r TurnRequest, obs turnlog.Observer) (
	*turnstone.TurnReport, error) {
	return t.follow(ctx, &following{turns: t, req: r, obs: obs,
		journal: turnlog.NewReader(r.Document, obs)})
}

// Follow is Run for a turn that was started earlier: it starts none. The error is of kind NotFound
// if the node has no turn of the ticket.
func (t *Turns) Follow(ctx context.Context, ticket string, doc *document.Document,
	obs turnlog.Observer) (*turnstone.TurnReport, error) {
	return t.follow(ctx, &following{turns: t, req: TurnRequest{Ticket: ticket, Document: doc},
		journal: turnlog.NewReader(doc, obs), obs: obs, started: true})
}

// follow runs a turn over as many connections as it takes.
func (t *Turns) follow(ctx context.Context, f *following) (*turnstone.TurnReport, error) {
	first, last := cmp.Or(t.Pause, firstPause), cmp.Or(t.Patience, patience)
	pause, since := first, time.Now()
	for {
		before := f.journal.Offset()
		f.held = 0
		err := f.connected(ctx)
		if report, failed, ok := f.journal.Result(); ok {
			return report, failed
		}
		if err == nil {
			err = turnstone.Errorf("turn.attach", turnstone.KindDead, "the journal",
				"ended without the turn's result")
		}
		if (f.started || f.open) && turnstone.KindOf(err) == turnstone.KindDenied {
			return nil, locked(err)
		}
		if !lost(err) || ctx.Err() != nil {
			return nil, f.outcome(err) // a manipulated connection is not tried again
		}
		if f.journal.Offset() > before {
			pause, since, f.told = first, time.Now(), false
		} else {
			since = since.Add(f.held) // a turn may be silent for longer than a client is patient
		}
		if time.Since(since)+pause > last {
			return nil, f.outcome(err)
		}
		if t.Tell != nil && !f.told {
			f.told = true
			t.Tell("the connection to the node is lost, and the turn goes on there: connecting again")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		pause = min(2*pause, lastPause)
	}
}

// locked returns the error of a client whose token ended while its turn runs.
func locked(err error) error {
	return turnstone.NewError("turn.attach", turnstone.KindDenied,
		"the turn runs at the node and cannot be followed", err).
		WithHint("use a new token; turn log of the session then shows the turn")
}

// outcome returns the error of a turn whose end is not known. After the start was sent, only the node
// can say that nothing ran: kinds that mean so are replaced.
func (f *following) outcome(err error) error {
	if !f.open {
		return err
	}
	switch turnstone.KindOf(err) {
	case turnstone.KindNotFound, turnstone.KindInvalid, turnstone.KindExhausted,
		turnstone.KindUnavailable:
		return turnstone.NewError("turn.attach", turnstone.KindDead,
			"the turn may have run at the node, and its end is not known", err).
			WithHint("turn log of the session shows the turn if it ran")
	}
	return err
}

// lost reports whether another connection may help.
func lost(err error) bool {
	if channel.FaultOf(err) != "" && channel.FaultOf(err) != channel.FaultTruncated {
		return false
	}
	return api.Retryable(err)
}

// following is one turn that a client follows.
type following struct {
	turns   *Turns
	req     TurnRequest
	journal *turnlog.Reader
	obs     turnlog.Observer
	node    string        // whose journal it is
	tried   bool          // to start the turn
	started bool          // the node said so
	open    bool          // a start was sent that the node has not refused
	told    bool          // that the connection is lost
	held    time.Duration // of the last connection, from its channel's handshake to its end
}

// connected follows the turn over one connection.
func (f *following) connected(ctx context.Context) error {
	stream, err := f.turns.Dial(ctx)
	if err != nil {
		return err
	}
	f.at()
	opened := time.Now()
	defer func() { f.held = time.Since(opened) }()
	c := wire.NewClient(stream)
	defer func() { _ = c.Close(); c.Wait() }()
	if f.turns.Greet != nil {
		if err := f.turns.Greet(ctx, c); err != nil {
			return err
		}
	}
	// a turn whose start had no answer may run; its ticket starts no second one
	if f.tried && !f.started {
		err := f.follow(ctx, c)
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			return err
		}
	}
	if !f.started {
		again := f.tried
		f.tried = true
		if err := f.start(ctx, c); err != nil {
			f.open = f.open || ctx.Err() != nil || channel.FaultOf(err) != "" ||
				turnstone.KindOf(err) == turnstone.KindDead // without an answer
			if again && turnstone.KindOf(err) == turnstone.KindInvalid {
				// the start of the lost connection may have come between
				if other := f.follow(ctx, c); turnstone.KindOf(other) != turnstone.KindNotFound {
					return other
				}
			}
			return err
		}
		f.started, f.open = true, true
	}
	return f.follow(ctx, c)
}

// at begins the journal of another node at its beginning.
func (f *following) at() {
	if f.turns.Node == nil {
		return
	}
	node := f.turns.Node()
	if f.node != "" && node != f.node && (f.started || f.open) {
		f.journal = turnlog.NewReader(f.req.Document, f.obs)
		f.started = true // there
		if f.turns.Tell != nil {
			f.turns.Tell("node " + f.node + " is lost, and node " + node + " has the turn")
		}
	}
	f.node = node
}

// start starts the turn, and sends its document and its files.
func (f *following) start(ctx context.Context, c *wire.Client) error {
	settings := f.req.Settings
	settings.FilesSent = true
	var items []tarfiles.Item
	for i, t := range f.req.Add {
		// their own names may be the same, and count where the destination is a folder
		name := strconv.Itoa(i) + "/" + filepath.Base(t.Path)
		items = append(items, tarfiles.Item{HostPath: t.Path, Name: name})
		settings.Add = append(settings.Add, wire.TurnTransfer{Name: name, Dest: t.Dest})
	}
	p := &wire.TurnStartParams{Ticket: f.req.Ticket, Name: f.req.Document.Name, Settings: &settings}
	return c.Feed(bytes.NewReader(f.req.Document.Source), func(id wire.StreamID) error {
		if p.Document = id; len(items) == 0 {
			return c.TurnStart(ctx, p)
		}
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(tarfiles.PackAll(ctx, w, items)) }()
		defer func() { _ = r.Close() }() // ends the packing
		return c.Feed(r, func(id wire.StreamID) error {
			p.Files = id
			return c.TurnStart(ctx, p)
		})
	})
}

// errOther says that the node has another journal of the turn than the one that was read so far.
var errOther = errors.New("the node has another journal of the turn")

// follow reads the journal from where it was left. When ctx ends, the turn is canceled, and its end
// is read too. A turn that was lost twice may be back at its first node, with a journal of its own, before
// its client has reached the node between: that journal is read from its beginning.
func (f *following) follow(ctx context.Context, c *wire.Client) error {
	defer context.AfterFunc(ctx, func() {
		_ = c.TurnCancel(context.WithoutCancel(ctx), &wire.TurnCancelParams{Ticket: f.req.Ticket})
	})()
	err := f.read(ctx, c)
	if errors.Is(err, errOther) {
		f.journal = turnlog.NewReader(f.req.Document, f.obs)
		if f.turns.Tell != nil {
			f.turns.Tell("the turn was lost, and has started again at the node")
		}
		err = f.read(ctx, c)
	}
	return err
}

// read reads the journal over one stream. The error is errOther if what follows the part that was read
// before does not continue it.
func (f *following) read(ctx context.Context, c *wire.Client) error {
	id, from := c.NewStream(), f.journal.Offset()
	in, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	type answer struct {
		size int64 // of the journal
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		a, err := c.TurnAttach(context.WithoutCancel(ctx), &wire.TurnAttachParams{
			Ticket: f.req.Ticket, Offset: from, Journal: id})
		if err != nil {
			_ = in.Close() // a rejected command has no stream
			answered <- answer{err: err}
			return
		}
		answered <- answer{size: a.Size}
	}()
	err = f.journal.Read(in)
	if _, _, ok := f.journal.Result(); ok {
		return nil
	}
	if turnstone.KindOf(err) == turnstone.KindIntegrity { // the answer would come at the turn's end
		if from > 0 && channel.FaultOf(err) == "" {
			return fmt.Errorf("%w: %w", errOther, err)
		}
		return err
	}
	a := <-answered
	if a.err == nil && err == nil && a.size < from {
		return errOther
	}
	return cmp.Or(a.err, err)
}
