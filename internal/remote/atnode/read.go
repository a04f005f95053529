package atnode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// Session is executor.Executor.Session.
func (x *Executor) Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error) {
	return fetch[*turnstone.Graph](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionGet(ctx, &wire.SessionGetParams{Session: nameOrID, Report: id})
	})
}

// Log is executor.Executor.Log.
func (x *Executor) Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error) {
	return fetch[*turnstone.Graph](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionLog(ctx, &wire.SessionLogParams{Ref: ref, Limit: int64(limit), Report: id})
	})
}

// Expand is executor.Executor.Expand: the session that was used last is that of this client.
func (x *Executor) Expand(ctx context.Context, ref, named string) (string, error) {
	if !strings.HasPrefix(ref, "-") && !strings.HasPrefix(ref, "@") &&
		!strings.HasPrefix(ref, turnstone.TurnWord) {
		return ref, nil // no short form
	}
	err := x.do(ctx, func(c *wire.Client) error {
		r, err := c.SessionExpand(ctx, &wire.SessionExpandParams{Ref: ref,
			Session: x.current(named)})
		if err == nil {
			ref = r.Ref
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return ref, nil
}

// CurrentSession is executor.Executor.CurrentSession: the session that was used last is that of this
// client.
func (x *Executor) CurrentSession(ctx context.Context, named string) (turnstone.Session, error) {
	return object[turnstone.Session](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionCurrent(ctx, &wire.SessionCurrentParams{Session: x.current(named)})
		if err != nil {
			return nil, err
		}
		return r.Session, nil
	})
}

// maxLast bounds the file that notes a session.
const maxLast = 200

// current returns named, or the session that was noted last.
func (x *Executor) current(named string) string {
	if named != "" || x.Last == "" {
		return named
	}
	f, err := os.Open(x.Last)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxLast+1))
	if err != nil || len(b) > maxLast {
		return ""
	}
	return string(b)
}

// NoteUse notes that the session of ref was used last, for Expand and CurrentSession. Nothing
// depends on the note, so a failure is ignored.
func (x *Executor) NoteUse(_ context.Context, ref string) {
	name, _, _ := strings.Cut(ref, "@")
	name, _, _ = strings.Cut(name, "~")
	if x.Last == "" || name == "" || len(name) > maxLast || strings.HasPrefix(name, "t_") ||
		strings.HasPrefix(name, "-") || turnstone.ReadsAsTurn(name) || x.current("") == name {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(x.Last), ".last-session-*")
	if err != nil {
		return
	}
	_, err = f.WriteString(name)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), x.Last)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

// Show is executor.Executor.Show.
func (x *Executor) Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error) {
	return fetch[*turnstone.TurnInfo](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionShow(ctx, &wire.SessionShowParams{Ref: ref, Report: id})
	})
}

// maxReceipt bounds a receipt in bytes.
const maxReceipt = 1 << 30

// Receipt is executor.Executor.Receipt.
func (x *Executor) Receipt(ctx context.Context, ref string) (text []byte, err error) {
	err = x.do(ctx, func(c *wire.Client) error {
		return receive(ctx, c, func(r io.Reader) (err error) {
			text, err = io.ReadAll(io.LimitReader(r, maxReceipt))
			return err
		}, func(id wire.StreamID) error {
			return c.SessionReceipt(ctx, &wire.SessionReceiptParams{Ref: ref, Receipt: id})
		})
	})
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Trace is executor.Executor.Trace.
func (x *Executor) Trace(ctx context.Context, ref string,
	each func(turnstone.TraceLine) error) error {
	return lines(ctx, x, each, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionTrace(ctx, &wire.SessionTraceParams{Ref: ref, Lines: id})
	})
}

// ListFiles is executor.Executor.ListFiles.
func (x *Executor) ListFiles(ctx context.Context, ref, name string, recursive bool,
	each func(turnstone.FileInfo) error) error {
	return lines(ctx, x, each, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionListFiles(ctx, &wire.SessionListFilesParams{Ref: ref, Path: name,
			Recursive: recursive, Lines: id})
	})
}

// OpenFile is executor.Executor.OpenFile.
func (x *Executor) OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	f := &file{Reader: bufio.NewReaderSize(r, 64<<10), pipe: r, cancel: cancel}
	f.done.Go(func() {
		err := x.do(ctx, func(c *wire.Client) error {
			return receive(ctx, c, func(in io.Reader) error { _, err := io.Copy(w, in); return err },
				func(id wire.StreamID) error {
					return c.SessionReadFile(ctx, &wire.SessionReadFileParams{Ref: ref, Path: name,
						Data: id})
				})
		})
		_ = w.CloseWithError(err)
	})
	// an error of the node is that of OpenFile, as it is beside the store
	if _, err := f.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// A file is a file of a state that is read.
type file struct {
	*bufio.Reader
	pipe   *io.PipeReader
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Close ends the reading.
func (f *file) Close() error {
	_ = f.pipe.Close()
	f.cancel()
	f.done.Wait()
	return nil
}

// CopyOut is executor.Executor.CopyOut. dest is on this machine, on whose disk no space is kept free.
// What the node sends is not trusted: nothing is written outside of dest, or beside what name names.
func (x *Executor) CopyOut(ctx context.Context, ref, name, dest string,
	skipped func(name, why string)) error {
	var mu sync.Mutex // packing and unpacking run concurrently
	skip := func(name, why string) {
		mu.Lock()
		defer mu.Unlock()
		if skipped != nil {
			skipped(name, why)
		}
	}
	limits := tarfiles.Limits{Entries: 1 << 30, Bytes: 1 << 50, Skipped: skip}
	return x.do(ctx, func(c *wire.Client) error {
		return receive(ctx, c, func(r io.Reader) error {
			return tarfiles.Unpack(ctx, r, dest, tarfiles.TopInState(name), limits)
		}, func(data wire.StreamID) error {
			type line struct{ Name, Why string }
			return receive(ctx, c, func(r io.Reader) error {
				return eachLine(r, func(l line) error { skip(l.Name, l.Why); return nil })
			}, func(skips wire.StreamID) error {
				return c.SessionPackFiles(ctx, &wire.SessionPackFilesParams{Ref: ref, Path: name,
					Data: data, Skipped: skips})
			})
		})
	})
}

// Diff is executor.Executor.Diff.
func (x *Executor) Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff,
	error) {
	return fetch[*turnstone.StateDiff](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionDiff(ctx, &wire.SessionDiffParams{From: req.From, To: req.To,
			Stat: req.Stat, Text: req.Text, Results: req.Results, Report: id})
	})
}

// Compare is executor.Executor.Compare.
func (x *Executor) Compare(ctx context.Context, refs []string) (*turnstone.CompareReport, error) {
	return fetch[*turnstone.CompareReport](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionCompare(ctx, &wire.SessionCompareParams{Refs: refs, Report: id})
	})
}

// Prepare is executor.Executor.Prepare.
func (x *Executor) Prepare(ctx context.Context, ref string) error {
	return x.do(ctx, func(c *wire.Client) error {
		return c.SessionPrepare(ctx, &wire.SessionPrepareParams{Ref: ref})
	})
}

// Heads is executor.Executor.Heads.
func (x *Executor) Heads(ctx context.Context, nameOrID string) ([]turnstone.LoggedHead, error) {
	return fetch[[]turnstone.LoggedHead](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionHeads(ctx, &wire.SessionHeadsParams{Session: nameOrID, Report: id})
	})
}

// Usage is executor.Executor.Usage. Only the operator may ask.
func (x *Executor) Usage(ctx context.Context) (*turnstone.Usage, error) {
	return fetch[*turnstone.Usage](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionUsage(ctx, &wire.SessionUsageParams{Report: id})
	})
}

// Fsck is executor.Executor.Fsck. Only the operator may ask.
func (x *Executor) Fsck(ctx context.Context) (*turnstone.FsckReport, error) {
	return fetch[*turnstone.FsckReport](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionFsck(ctx, &wire.SessionFsckParams{Report: id})
	})
}
