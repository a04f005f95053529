package sessions

import (
	"context"
	"encoding/json"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/wire"
)

// maxCompared bounds the turns of a comparison.
const maxCompared = 100

func (v *served) List(ctx context.Context, c *wire.Conn, p *wire.SessionListParams) error {
	return report(ctx, v, c, p.Report, owners.Read, light, v.x.Sessions)
}

func (v *served) Get(ctx context.Context, c *wire.Conn, p *wire.SessionGetParams) error {
	return report(ctx, v, c, p.Report, owners.Read, light,
		func(ctx context.Context) (*turnstone.Graph, error) { return v.x.Session(ctx, p.Session) })
}

func (v *served) Log(ctx context.Context, c *wire.Conn, p *wire.SessionLogParams) error {
	return report(ctx, v, c, p.Report, owners.Read, light,
		func(ctx context.Context) (*turnstone.Graph, error) {
			return v.x.Log(ctx, p.Ref, int(max(0, min(p.Limit, 1<<30))))
		})
}

// named returns the session that a client means by its current session. The node notes which
// session its operator used last; of other clients it only sees their sessions.
func (v *served) named(ctx context.Context, named string) (string, error) {
	if named != "" || v.caller.Operator {
		return named, nil
	}
	all, err := v.x.Sessions(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", turnstone.Errorf("executor.athand", turnstone.KindNotFound,
			"the current session", "no session was used yet").
			WithHint("name a session, as turn session ls lists them")
	}
	return string(all[0].ID), nil
}

func (v *served) Expand(ctx context.Context, _ *wire.Conn, p *wire.SessionExpandParams) (
	*wire.SessionExpandResult, error) {
	r := new(wire.SessionExpandResult)
	return r, v.do(ctx, owners.Read, light, func(ctx context.Context) error {
		// a reference that is no short form needs no session
		ref, err := v.x.Expand(ctx, p.Ref, p.Session)
		if turnstone.KindOf(err) == turnstone.KindNotFound && p.Session == "" || err == nil &&
			ref != p.Ref && p.Session == "" {
			var named string
			if named, err = v.named(ctx, ""); err == nil {
				ref, err = v.x.Expand(ctx, p.Ref, named)
			}
		}
		r.Ref = ref
		return err
	})
}

func (v *served) Current(ctx context.Context, _ *wire.Conn, p *wire.SessionCurrentParams) (
	*wire.SessionCurrentResult, error) {
	raw, err := small(ctx, v, owners.Read, light,
		func(ctx context.Context) (turnstone.Session, error) {
			named, err := v.named(ctx, p.Session)
			if err != nil {
				return turnstone.Session{}, err
			}
			return v.x.CurrentSession(ctx, named)
		})
	return &wire.SessionCurrentResult{Session: raw}, err
}

func (v *served) Show(ctx context.Context, c *wire.Conn, p *wire.SessionShowParams) error {
	return report(ctx, v, c, p.Report, owners.Read, light,
		func(ctx context.Context) (*turnstone.TurnInfo, error) { return v.x.Show(ctx, p.Ref) })
}

func (v *served) Receipt(ctx context.Context, c *wire.Conn, p *wire.SessionReceiptParams) error {
	return v.do(ctx, owners.Read, light, func(ctx context.Context) error {
		text, err := v.x.Receipt(ctx, p.Ref)
		if err != nil {
			return err
		}
		return send(c, p.Receipt, func(w io.Writer) error { _, err := w.Write(text); return err })
	})
}

func (v *served) Trace(ctx context.Context, c *wire.Conn, p *wire.SessionTraceParams) error {
	return lines(ctx, v, c, p.Lines,
		func(ctx context.Context, each func(turnstone.TraceLine) error) error {
			return v.x.Trace(ctx, p.Ref, each)
		})
}

func (v *served) ListFiles(ctx context.Context, c *wire.Conn,
	p *wire.SessionListFilesParams) error {
	return lines(ctx, v, c, p.Lines,
		func(ctx context.Context, each func(turnstone.FileInfo) error) error {
			return v.x.ListFiles(ctx, p.Ref, p.Path, p.Recursive, each)
		})
}

func (v *served) ReadFile(ctx context.Context, c *wire.Conn, p *wire.SessionReadFileParams) error {
	return v.do(ctx, owners.Read, light, func(ctx context.Context) error {
		in, err := v.x.OpenFile(ctx, p.Ref, p.Path)
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }()
		return send(c, p.Data, func(w io.Writer) error { _, err := io.Copy(w, in); return err })
	})
}

// A skip is a file that is not, or not unchanged, in a tar stream.
type skip struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

func (v *served) PackFiles(ctx context.Context, c *wire.Conn,
	p *wire.SessionPackFilesParams) error {
	return v.do(ctx, owners.Read, heavy, func(ctx context.Context) error {
		return send(c, p.Skipped, func(skips io.Writer) error {
			e := json.NewEncoder(skips)
			return send(c, p.Data, func(w io.Writer) error {
				return v.x.PackFiles(ctx, p.Ref, p.Path, w, func(name, why string) {
					_ = e.Encode(skip{name, why}) // the end of the stream reports it
				})
			})
		})
	})
}

func (v *served) Diff(ctx context.Context, c *wire.Conn, p *wire.SessionDiffParams) error {
	return report(ctx, v, c, p.Report, owners.Read, heavy,
		func(ctx context.Context) (*turnstone.StateDiff, error) {
			return v.x.Diff(ctx, turnstone.DiffRequest{From: p.From, To: p.To, Stat: p.Stat,
				Text: p.Text, Results: p.Results})
		})
}

func (v *served) Compare(ctx context.Context, c *wire.Conn, p *wire.SessionCompareParams) error {
	if len(p.Refs) > maxCompared {
		return invalid("the turns", "are %d; the limit is %d", len(p.Refs), maxCompared)
	}
	return report(ctx, v, c, p.Report, owners.Read, heavy,
		func(ctx context.Context) (*turnstone.CompareReport, error) {
			return v.x.Compare(ctx, p.Refs)
		})
}

func (v *served) Prepare(ctx context.Context, _ *wire.Conn, p *wire.SessionPrepareParams) error {
	return v.do(ctx, owners.Read, heavy, func(ctx context.Context) error {
		return v.x.Prepare(ctx, p.Ref)
	})
}

func (v *served) Heads(ctx context.Context, c *wire.Conn, p *wire.SessionHeadsParams) error {
	return report(ctx, v, c, p.Report, owners.Read, light,
		func(ctx context.Context) ([]turnstone.LoggedHead, error) {
			return v.x.Heads(ctx, p.Session)
		})
}
