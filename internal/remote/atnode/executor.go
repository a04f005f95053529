// Package atnode is the client of the sessions, the templates and the store of a node.
package atnode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// An Executor has the operations of executor.Executor on sessions, templates and the store, at a
// node: methods of the same name have the same results. References are resolved at the node, which
// lets this client use its own sessions and those that it was admitted to. An operation whose
// connection is lost has an error of kind KindDead and may have been done.
//
// Its methods are safe for concurrent use. They share one connection to each node.
type Executor struct {
	// Dial connects to the node.
	Dial func(ctx context.Context) (*wire.Client, error)
	// Last is the path of a file that notes the session that was used last, for Expand and
	// CurrentSession; empty: the node's list of sessions says which.
	Last string
	// Dir is the state directory of this machine, whose list of keys VerifyReceipt trusts; empty: the
	// user's.
	Dir string
	// Nodes are for operations on what Dial's node does not know; nil: it is the only one.
	Nodes Nodes
	// Hint changes the hints of the node's errors, which may be for its operator; nil: they stay.
	Hint func(hint string) string

	mu     sync.Mutex
	client *wire.Client
	named  map[string]*wire.Client // connections to nodes of Nodes
	closed bool
}

// maxReport bounds the JSON of a report, in bytes.
const maxReport = 1 << 30

// Close ends the connection, and the operations on it.
func (x *Executor) Close() error {
	x.mu.Lock()
	all := slices.Collect(maps.Values(x.named))
	if x.client != nil {
		all = append(all, x.client)
	}
	x.client, x.named, x.closed = nil, nil, true
	x.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
		c.Wait()
	}
	return nil
}

func errClosed() error {
	return turnstone.Errorf("remote.connect", turnstone.KindUnavailable, "the executor", "is closed")
}

// ended reports whether the connection of c is gone.
func ended(c *wire.Client) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// connect returns the connection, which it makes if there is none.
func (x *Executor) connect(ctx context.Context) (*wire.Client, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, errClosed()
	}
	if x.client != nil && !ended(x.client) {
		return x.client, nil
	}
	x.client = nil
	c, err := x.Dial(ctx)
	if err == nil {
		x.client = c
	}
	return c, err
}

// do runs an operation on the connection, and at other nodes if this one does not know what the
// operation is about: f runs again then, and has had no effect before.
func (x *Executor) do(ctx context.Context, f func(c *wire.Client) error) error {
	if err := ctx.Err(); err != nil {
		return canceled(ctx)
	}
	c, err := x.connect(ctx)
	if err != nil {
		return err
	}
	err = x.ofNode(f(c))
	if x.Nodes != nil && turnstone.KindOf(err) == turnstone.KindNotFound {
		return x.elsewhere(ctx, err, f)
	}
	return err
}

func canceled(ctx context.Context) error {
	return turnstone.NewError("remote.command", turnstone.KindCanceled, "the command",
		context.Cause(ctx))
}

// ofNode names the node in the error of a lost connection, which package wire has of a sandbox, and
// changes its hint.
func (x *Executor) ofNode(err error) error {
	var te *turnstone.Error
	if errors.As(err, &te) && te.Subject == "connection to the sandbox" {
		return turnstone.NewError(te.Op, te.Kind, "the connection to the node", te.Err).
			WithHint("try again")
	}
	if hint := turnstone.HintOf(err); te != nil && x.Hint != nil && hint != "" {
		_ = te.WithHint(x.Hint(hint))
	}
	return err
}

// receive runs command, which names a stream, and f with the stream. The command's error takes
// precedence over that of the stream, which is a consequence, but not over an error of f itself.
func receive(ctx context.Context, c *wire.Client, f func(r io.Reader) error,
	command func(id wire.StreamID) error) error {
	id := c.NewStream()
	in, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	defer context.AfterFunc(ctx, func() { _ = in.Close() })()
	answer := make(chan error, 1)
	go func() {
		err := command(id)
		if err != nil {
			_ = in.Close() // a rejected command has no stream
		}
		answer <- err
	}()
	s := &source{r: in}
	err = f(s)
	if err != nil && s.err == nil {
		_ = in.Close() // f does not want the rest
		<-answer
		return err
	}
	if err == nil && s.err == nil {
		_, s.err = io.Copy(io.Discard, s)
	}
	if failed := <-answer; failed != nil {
		if ctx.Err() != nil {
			return canceled(ctx)
		}
		return failed
	}
	if err == nil && !errors.Is(s.err, io.EOF) {
		err = s.err
	}
	return err
}

// A source notes how a stream ended.
type source struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// fetch runs a command that sends a report.
func fetch[T any](ctx context.Context, x *Executor,
	command func(c *wire.Client, report wire.StreamID) error) (report T, err error) {
	err = x.do(ctx, func(c *wire.Client) (err error) {
		report, err = answer[T](ctx, c, command)
		return err
	})
	return report, err
}

// answer runs a command that sends a report on a connection.
func answer[T any](ctx context.Context, c *wire.Client,
	command func(c *wire.Client, report wire.StreamID) error) (report T, err error) {
	err = receive(ctx, c, func(r io.Reader) error {
		in := io.LimitReader(r, maxReport)
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		return decode(text, &report)
	}, func(id wire.StreamID) error { return command(c, id) })
	if err != nil {
		var none T
		return none, err
	}
	return report, nil
}

// decode decodes JSON of a node, which may be another than it says.
func decode(text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return turnstone.NewError("remote.report", turnstone.KindIntegrity, "the node's answer",
			err).WithHint("use a client and a server of the same version")
	}
	return nil
}

// object runs a command whose answer has a small report.
func object[T any](ctx context.Context, x *Executor,
	command func(c *wire.Client) (json.RawMessage, error)) (report T, err error) {
	err = x.do(ctx, func(c *wire.Client) error {
		raw, err := command(c)
		if err != nil {
			return err
		}
		return decode(raw, &report)
	})
	if err != nil {
		var none T
		return none, err
	}
	return report, nil
}

// maxLine bounds a line of a listing in bytes.
const maxLine = 64 << 20

// lines runs a command that sends lines of JSON, and calls each with them.
func lines[T any](ctx context.Context, x *Executor, each func(T) error,
	command func(c *wire.Client, lines wire.StreamID) error) error {
	return x.do(ctx, func(c *wire.Client) error {
		return receive(ctx, c, func(r io.Reader) error { return eachLine(r, each) },
			func(id wire.StreamID) error { return command(c, id) })
	})
}

func eachLine[T any](r io.Reader, each func(T) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	for s.Scan() {
		var one T
		if err := decode(s.Bytes(), &one); err != nil {
			return err
		}
		if err := each(one); err != nil {
			return err
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return turnstone.NewError("remote.report", turnstone.KindIntegrity, "the node's answer",
			fmt.Errorf("a line has more than %d bytes", maxLine))
	}
	return s.Err()
}

// A job is a command with progress.
type job struct {
	obs  turnlog.Observer // may be nil
	item func(decode func(into any) error) error
	// start sends the command, with the streams of its journal and of its cancellation.
	start func(c *wire.Client, journal, hold wire.StreamID) error
}

// run runs the command, and returns its report, which is nil if nothing was started. When ctx ends,
// the command is canceled, and its end is read too.
func run[T any](ctx context.Context, x *Executor, j job) (report *T, err error) {
	err = x.do(ctx, func(c *wire.Client) error {
		hold := c.NewStream()
		held, err := c.Sender(hold)
		if err != nil {
			return err
		}
		defer held.Abort(nil)
		defer context.AfterFunc(ctx, func() { held.Abort(context.Cause(ctx)) })()
		r := turnlog.NewJobReader(j.obs)
		r.Item = j.item
		// the stream outlives ctx, because it brings the result of what was canceled
		err = receive(context.WithoutCancel(ctx), c, func(in io.Reader) error {
			err := r.Read(in)
			if err != nil {
				held.Abort(err) // nobody follows what goes on
			}
			return err
		}, func(id wire.StreamID) error { return j.start(c, id, hold) })
		if err != nil {
			return err
		}
		one := new(T)
		has, err := r.Result(one)
		if has {
			report = one
		}
		return err
	})
	return report, err
}
