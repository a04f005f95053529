package atnode

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/wire"
)

// Fork is executor.Executor.Fork.
func (x *Executor) Fork(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return object[turnstone.Branch](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionFork(ctx, &wire.SessionForkParams{Ref: ref, Name: name})
		if err != nil {
			return nil, err
		}
		return r.Branch, nil
	})
}

// ForkLive is executor.Executor.ForkLive.
func (x *Executor) ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	return object[turnstone.Branch](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionForkLive(ctx, &wire.SessionForkLiveParams{Ref: ref, Name: name})
		if err != nil {
			return nil, err
		}
		return r.Branch, nil
	})
}

// Tag is executor.Executor.Tag.
func (x *Executor) Tag(ctx context.Context, ref, name string) (turnstone.Tag, error) {
	return object[turnstone.Tag](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionTag(ctx, &wire.SessionTagParams{Ref: ref, Name: name})
		if err != nil {
			return nil, err
		}
		return r.Tag, nil
	})
}

// Untag is executor.Executor.Untag.
func (x *Executor) Untag(ctx context.Context, nameOrID, tag string) error {
	return x.do(ctx, func(c *wire.Client) error {
		return c.SessionUntag(ctx, &wire.SessionUntagParams{Session: nameOrID, Tag: tag})
	})
}

// Rename is executor.Executor.Rename. Only an owner of the session may rename it.
func (x *Executor) Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error) {
	return object[turnstone.Session](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionRename(ctx, &wire.SessionRenameParams{Session: nameOrID, Name: name})
		if err != nil {
			return nil, err
		}
		return r.Session, nil
	})
}

// RemoveSession is executor.Executor.RemoveSession. Only an owner of the session may remove it.
func (x *Executor) RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	return x.removeSession(ctx, wire.SessionRemoveParams{Session: nameOrID})
}

// ShredSession is executor.Executor.ShredSession. Only an owner of the session may shred it.
func (x *Executor) ShredSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	return x.removeSession(ctx, wire.SessionRemoveParams{Session: nameOrID, Shred: true})
}

func (x *Executor) removeSession(ctx context.Context, p wire.SessionRemoveParams) (
	turnstone.Session, error) {
	return object[turnstone.Session](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionRemove(ctx, &p)
		if err != nil {
			return nil, err
		}
		return r.Session, nil
	})
}

// SealSessions is executor.Executor.SealSessions, without a report if there is an error. Only an owner
// of a session may seal it.
func (x *Executor) SealSessions(ctx context.Context, namesOrIDs []string) (*turnstone.SealReport,
	error) {
	return fetch[*turnstone.SealReport](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionSeal(ctx, &wire.SessionSealParams{Sessions: namesOrIDs, Report: id})
	})
}

// RemoveBranch is executor.Executor.RemoveBranch.
func (x *Executor) RemoveBranch(ctx context.Context, nameOrID, branch string) error {
	return x.do(ctx, func(c *wire.Client) error {
		return c.SessionRemoveBranch(ctx, &wire.SessionRemoveBranchParams{Session: nameOrID,
			Branch: branch})
	})
}

// Merge is executor.Executor.Merge.
func (x *Executor) Merge(ctx context.Context, req executor.MergeRequest) (*turnstone.MergeReport,
	error) {
	p := wire.SessionMergeParams{From: req.From, Into: req.Into, Session: req.Session,
		Side: wire.SessionMergeSide(req.Default.String()), Markers: req.Markers, NoFF: req.NoFF,
		DryRun: req.DryRun, Message: req.Message}
	for _, path := range slices.Sorted(maps.Keys(req.Paths)) {
		p.Paths = append(p.Paths, wire.SessionResolution{Path: path,
			Side: wire.SessionResolutionSide(req.Paths[path].String())})
	}
	return fetch[*turnstone.MergeReport](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		p := p
		p.Report = id
		return c.SessionMerge(ctx, &p)
	})
}

// Export is executor.Executor.Export.
func (x *Executor) Export(ctx context.Context, req executor.ExportRequest, w io.Writer) (
	*turnstone.ExportReport, error) {
	return object[*turnstone.ExportReport](ctx, x,
		func(c *wire.Client) (raw json.RawMessage, err error) {
			return raw, receive(ctx, c, func(r io.Reader) error {
				_, err := io.Copy(w, r)
				return err
			}, func(id wire.StreamID) error {
				r, err := c.SessionExport(ctx, &wire.SessionExportParams{Session: req.Session,
					Full: req.Full, Data: id})
				if err == nil {
					raw = r.Result
				}
				return err
			})
		})
}

// Import is executor.Executor.Import. The session becomes this client's.
func (x *Executor) Import(ctx context.Context, req executor.ImportRequest, r io.Reader) (
	*turnstone.ImportReport, error) {
	return run[turnstone.ImportReport](ctx, x, job{obs: telling(req.Progress),
		start: func(c *wire.Client, journal, hold wire.StreamID) error {
			return c.Feed(r, func(id wire.StreamID) error {
				return c.SessionImport(context.WithoutCancel(ctx), &wire.SessionImportParams{As: req.As,
					Build: wire.SessionImportBuild(req.Build), AcceptHistory: req.AcceptHistory,
					Data: id, Journal: journal, Hold: hold})
			})
		}})
}

// Verify is executor.Executor.Verify. Files that req trusts are of this machine; without any, the
// list of the node counts.
func (x *Executor) Verify(ctx context.Context, req turnstone.VerifyRequest) (
	*turnstone.VerifyReport, error) {
	trust, err := trusted(req.Trust)
	if err != nil {
		return nil, err
	}
	return fetch[*turnstone.VerifyReport](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionVerify(ctx, &wire.SessionVerifyParams{Ref: req.Ref, All: req.All,
			Trust: trust, Report: id})
	})
}

// maxTrustFile bounds a list of keys in bytes.
const maxTrustFile = 1 << 20

// trusted returns keys, and the lines of the files that named names.
func trusted(named []string) (all []string, err error) {
	for _, n := range named {
		n = strings.TrimSpace(n)
		role, text, has := strings.Cut(n, "=")
		if r := key.Role(role); !has || r != key.Node && r != key.Caller {
			text = n
		}
		if _, err := key.ParseEntries(n); err == nil ||
			key.IsPublic(text) && strings.Contains(text, " ") {
			all = append(all, n)
			continue
		}
		info, err := os.Stat(n)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxTrustFile {
			return nil, turnstone.NewError("verify", turnstone.KindInvalid, n,
				cmp.Or(err, os.ErrInvalid)).
				WithHint("name a file in the format allowed_signers, a line of one, or a key")
		}
		b, err := os.ReadFile(n)
		if err != nil {
			return nil, turnstone.NewError("verify", turnstone.KindInvalid, n, err)
		}
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
	}
	return all, nil
}

// VerifyReceipt is executor.Executor.VerifyReceipt: the receipt does not leave this machine, whose
// list of keys counts.
func (x *Executor) VerifyReceipt(ctx context.Context, name string, file []byte,
	trust []string) (*turnstone.VerifyReport, error) {
	dir, err := statedir.Locate(x.Dir)
	if err != nil {
		return nil, err
	}
	t, err := proof.Trusted(&statedir.Dir{Root: dir}, trust)
	if err != nil {
		return nil, err
	}
	return proof.VerifyReceipt(ctx, name, file, t), nil
}

// SignTurn is executor.Executor.SignTurn, with the key of the node's user. Only the operator may
// ask.
func (x *Executor) SignTurn(ctx context.Context, ref string) (*turnstone.VerifiedTurn, error) {
	return object[*turnstone.VerifiedTurn](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.SessionSignTurn(ctx, &wire.SessionSignTurnParams{Ref: ref})
		if err != nil {
			return nil, err
		}
		return r.Turn, nil
	})
}

// GC is executor.Executor.GC. Only the operator may ask.
func (x *Executor) GC(ctx context.Context, req turnstone.GCRequest) (*turnstone.GCReport, error) {
	p := wire.SessionGcParams{KeepAnonymous: int64(req.KeepAnonymous),
		KeepUnreachable: int64(req.KeepUnreachable), DryRun: req.DryRun}
	if !req.Now.IsZero() {
		p.Now = req.Now.UTC().Format(time.RFC3339Nano)
	}
	return fetch[*turnstone.GCReport](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		p := p
		p.Report = id
		return c.SessionGc(ctx, &p)
	})
}

// HasHome is executor.Executor.HasHome, of the caller's homes.
func (x *Executor) HasHome(ctx context.Context, name string) error {
	return x.do(ctx, func(c *wire.Client) error {
		return c.SessionHasHome(ctx, &wire.SessionHasHomeParams{Name: name})
	})
}

// RemoveHome is executor.Executor.RemoveHome, of the caller's homes.
func (x *Executor) RemoveHome(ctx context.Context, name string) error {
	return x.do(ctx, func(c *wire.Client) error {
		return c.SessionRemoveHome(ctx, &wire.SessionRemoveHomeParams{Name: name})
	})
}

// Owns returns nil if the caller owns a session. The error is of kind NotFound or Invalid if another one does.
func (x *Executor) Owns(ctx context.Context, session string) error {
	return x.do(ctx, func(c *wire.Client) error {
		_, err := c.SessionOwners(ctx, &wire.SessionOwnersParams{Session: session})
		return err
	})
}

// Allow admits the key of another client to a session for a time, for reading, or for writing too.
// Without a time the key may nothing any more. Only an owner of the session may do that.
func (x *Executor) Allow(ctx context.Context, session string, client channel.PublicKey, write bool,
	lasts time.Duration) error {
	p := &wire.SessionAllowParams{Session: session, Client: client.String(), Scopes: []string{},
		Seconds: int64(lasts / time.Second)}
	if lasts > 0 {
		p.Scopes = append(p.Scopes, "read")
	}
	if lasts > 0 && write {
		p.Scopes = append(p.Scopes, "write")
	}
	return x.do(ctx, func(c *wire.Client) error { return c.SessionAllow(ctx, p) })
}

// Admit brings a grant that the owner of a session signed, and returns the session's ID.
func (x *Executor) Admit(ctx context.Context, grant []byte) (id turnstone.SessionID, err error) {
	err = x.do(ctx, func(c *wire.Client) error {
		r, err := c.SessionAdmit(ctx, &wire.SessionAdmitParams{Grant: grant})
		if err == nil {
			id = turnstone.SessionID(r.Session)
		}
		return err
	})
	return id, err
}
