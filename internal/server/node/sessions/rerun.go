package sessions

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// A job is a command with progress.
type job struct {
	c             *wire.Conn
	journal, hold wire.StreamID
	need          owners.Need
}

// run runs f, whose progress and result go into the journal. f's context ends when the client ends
// the stream hold, and with the connection.
func run[T any](ctx context.Context, v *served, j job,
	f func(ctx context.Context, w *turnlog.JobWriter) (T, error)) error {
	return v.do(ctx, j.need, heavy, func(ctx context.Context) error {
		held, err := j.c.Receiver(j.hold)
		if err != nil {
			return err
		}
		out, err := j.c.Sender(j.journal)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, held)
			cancel(context.Canceled)
		}()
		defer func() {
			_ = held.Close() // ends the copy
			<-ended
		}()
		w := turnlog.NewJobWriter(out)
		w.Hide(v.o.Paths)
		report, err := f(ctx, w)
		if err := w.End(report, err); err != nil {
			out.Abort(err)
			return err
		}
		return out.Close()
	})
}

// replayOptions returns the options of a client. A remote caller grants nothing, except the
// operator.
func (v *served) replayOptions(p *wire.SessionReplayOptions) (o executor.ReplayOptions, err error) {
	if p == nil {
		return o, nil
	}
	if !v.caller.Operator && len(p.Grant) > 0 {
		return o, forbidden("granting what a document requests")
	}
	if !v.caller.Operator && p.Substrate != "" {
		return o, forbidden("choosing a substrate")
	}
	return executor.ReplayOptions{Secrets: p.Secrets, Substrate: p.Substrate,
		Tier: turnstone.Tier(p.Tier), Grant: p.Grant}, nil
}

func (v *served) Replay(ctx context.Context, c *wire.Conn, p *wire.SessionReplayParams) error {
	o, err := v.replayOptions(p.Options)
	if err != nil {
		return err
	}
	return run(ctx, v, job{c, p.Journal, p.Hold, owners.Read},
		func(ctx context.Context, w *turnlog.JobWriter) (*turnstone.ReplayReport, error) {
			return v.x.Replay(ctx, p.Ref, o, w)
		})
}

func (v *served) ReplayRange(ctx context.Context, c *wire.Conn,
	p *wire.SessionReplayRangeParams) error {
	o, err := v.replayOptions(p.Options)
	if err != nil {
		return err
	}
	need := owners.Read
	if p.OnHead {
		need = owners.Write
	}
	return run(ctx, v, job{c, p.Journal, p.Hold, need},
		func(ctx context.Context, w *turnlog.JobWriter) (*turnstone.RangeReport, error) {
			return v.x.ReplayRange(ctx, executor.RangeRequest{Ref: p.Ref, Options: o,
				OnHead: p.OnHead, Branch: p.Branch,
				Each: func(r *turnstone.ReplayReport) { w.Item(r) }}, w)
		})
}

func (v *served) Bisect(ctx context.Context, c *wire.Conn, p *wire.SessionBisectParams) error {
	o, err := v.replayOptions(p.Options)
	if err != nil {
		return err
	}
	if p.Timeout < 0 {
		return invalid("the timeout", "is below zero")
	}
	req := executor.BisectRequest{Ref: p.Ref, Options: o,
		Command: executor.CommandRequest{Argv: p.Argv, Env: p.Env, HostNetwork: true,
			Timeout: time.Duration(p.Timeout), Substrate: o.Substrate}}
	return run(ctx, v, job{c, p.Journal, p.Hold, owners.Read},
		func(ctx context.Context, w *turnlog.JobWriter) (*turnstone.BisectReport, error) {
			req.Tell = func(line string) { w.Item(line) }
			return v.x.Bisect(ctx, req, w)
		})
}

// Frozen runs a receipt's document again. The document's own files are in the folder "document" of
// the tar stream.
func (v *served) Frozen(ctx context.Context, c *wire.Conn, p *wire.SessionFrozenParams) error {
	req, err := frozenRequest(p.Settings)
	if err != nil {
		return err
	}
	receipt, err := readAll(c, p.Receipt, document.MaxFile)
	if err != nil {
		return err
	}
	if err := v.grantedImage(p.Name, receipt); err != nil {
		return err
	}
	return run(ctx, v, job{c, p.Journal, p.Hold, owners.Read},
		func(ctx context.Context, w *turnlog.JobWriter) (*turnstone.FrozenReport, error) {
			dir, err := v.folder("frozen-")
			if err != nil {
				return nil, err
			}
			defer func() { _ = os.RemoveAll(dir) }()
			if req.Dir = filepath.Join(dir, "document"); p.Files != 0 {
				if req.Add, err = turns.ReceiveFiles(ctx, c, p.Files, dir, p.Settings); err != nil {
					return nil, err
				}
			}
			if err := os.MkdirAll(req.Dir, 0o700); err != nil {
				return nil, failed(err)
			}
			return v.x.Frozen(ctx, p.Name, receipt, req, w)
		})
}

// grantedImage returns nil if the connection's tokens grant the image of a receipt. What is wrong with
// the receipt is the executor's to say.
func (v *served) grantedImage(name string, receipt []byte) error {
	doc, claims, err := document.ReadReceipt(name, receipt)
	if err != nil || v.caller.Tokens == nil {
		return nil
	}
	return v.caller.Tokens.AllowTemplate(
		cmp.Or(claims.Info.Image, doc.Front.Image, executor.DefaultImage))
}

// frozenRequest returns the request of a client's settings. Its document is the receipt's, so what
// would need the caller's grant cannot become a request of the document.
func frozenRequest(s *wire.TurnSettings) (executor.Request, error) {
	if s == nil {
		return executor.Request{}, nil
	}
	if s.Image != "" || s.Network != nil || s.Rules != nil || s.Lifetime != "" || s.Home != "" ||
		s.Snapshot != "" || s.Branch != "" || s.Times != 0 || s.Checkpoint != "" || s.Resume != "" {
		return executor.Request{}, turnstone.Errorf("executor.frozen", turnstone.KindInvalid,
			"the settings", "request what a receipt that is run again at a node cannot have").
			WithHint("leave out the image, network, lifetime, home, snapshot, checkpoint, branch and " +
				"times")
	}
	req, err := turns.Request(new(document.Document), s)
	req.Document, req.Piped = nil, false
	return req, err
}

// folder makes a folder for what a client sends.
func (v *served) folder(prefix string) (string, error) {
	if err := os.MkdirAll(v.o.Dir, 0o700); err != nil {
		return "", failed(err)
	}
	dir, err := os.MkdirTemp(v.o.Dir, prefix)
	return dir, failed(err)
}

// readAll reads a stream of at most most bytes.
func readAll(c *wire.Conn, id wire.StreamID, most int64) ([]byte, error) {
	in, err := c.Receiver(id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(b)) > most {
		err = invalid("the stream", "has more than %d bytes", most)
	}
	return b, err
}

func failed(err error) error {
	if err == nil {
		return nil
	}
	return turnstone.Classify("session.request", turnstone.KindInternal, "", err,
		"free space in the node's state directory")
}
