package sessions

import (
	"context"
	"log/slog"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/wire"
)

// maxResolutions bounds the decisions of a merge.
const maxResolutions = 10_000

func (v *served) Fork(ctx context.Context, _ *wire.Conn, p *wire.SessionForkParams) (
	*wire.SessionForkResult, error) {
	raw, err := small(ctx, v, owners.Write, light,
		func(ctx context.Context) (turnstone.Branch, error) { return v.x.Fork(ctx, p.Ref, p.Name) })
	return &wire.SessionForkResult{Branch: raw}, err
}

func (v *served) ForkLive(ctx context.Context, _ *wire.Conn, p *wire.SessionForkLiveParams) (
	*wire.SessionForkLiveResult, error) {
	raw, err := small(ctx, v, owners.Write, heavy,
		func(ctx context.Context) (turnstone.Branch, error) {
			return v.x.ForkLive(ctx, p.Ref, p.Name)
		})
	return &wire.SessionForkLiveResult{Branch: raw}, err
}

func (v *served) Tag(ctx context.Context, _ *wire.Conn, p *wire.SessionTagParams) (
	*wire.SessionTagResult, error) {
	raw, err := small(ctx, v, owners.Write, light,
		func(ctx context.Context) (turnstone.Tag, error) { return v.x.Tag(ctx, p.Ref, p.Name) })
	return &wire.SessionTagResult{Tag: raw}, err
}

func (v *served) Untag(ctx context.Context, _ *wire.Conn, p *wire.SessionUntagParams) error {
	return v.do(ctx, owners.Write, light, func(ctx context.Context) error {
		return v.x.Untag(ctx, p.Session, p.Tag)
	})
}

func (v *served) Rename(ctx context.Context, _ *wire.Conn, p *wire.SessionRenameParams) (
	*wire.SessionRenameResult, error) {
	raw, err := small(ctx, v, owners.Own, light,
		func(ctx context.Context) (turnstone.Session, error) {
			return v.x.Rename(ctx, p.Session, p.Name)
		})
	return &wire.SessionRenameResult{Session: raw}, err
}

func (v *served) Remove(ctx context.Context, _ *wire.Conn, p *wire.SessionRemoveParams) (
	*wire.SessionRemoveResult, error) {
	raw, err := small(ctx, v, owners.Own, light,
		func(ctx context.Context) (turnstone.Session, error) {
			remove := v.x.RemoveSession
			if p.Shred {
				remove = v.x.ShredSession
			}
			s, err := remove(ctx, p.Session)
			if err == nil {
				if err := v.o.Owners.Forget(s.ID); err != nil { // the next start removes it
					slog.Warn("the owners of a removed session stay", "session", s.ID, "err", err)
				}
			}
			return s, err
		})
	return &wire.SessionRemoveResult{Session: raw}, err
}

func (v *served) RemoveBranch(ctx context.Context, _ *wire.Conn,
	p *wire.SessionRemoveBranchParams) error {
	return v.do(ctx, owners.Write, light, func(ctx context.Context) error {
		return v.x.RemoveBranch(ctx, p.Session, p.Branch)
	})
}

func (v *served) Merge(ctx context.Context, c *wire.Conn, p *wire.SessionMergeParams) error {
	if len(p.Paths) > maxResolutions {
		return invalid("the paths", "are %d; the limit is %d", len(p.Paths), maxResolutions)
	}
	req := executor.MergeRequest{From: p.From, Into: p.Into, Session: p.Session,
		Markers: p.Markers, NoFF: p.NoFF, DryRun: p.DryRun, Message: p.Message}
	var err error
	if req.Default, err = side(string(p.Side)); err != nil {
		return err
	}
	for _, r := range p.Paths {
		s, err := side(string(r.Side))
		if err != nil {
			return err
		}
		if req.Paths == nil {
			req.Paths = make(map[string]turnstone.Side)
		}
		req.Paths[r.Path] = s
	}
	return report(ctx, v, c, p.Report, owners.Write, heavy,
		func(ctx context.Context) (*turnstone.MergeReport, error) { return v.x.Merge(ctx, req) })
}

func side(s string) (turnstone.Side, error) {
	if s == "" || s == turnstone.SideNone.String() {
		return turnstone.SideNone, nil
	}
	one, err := turnstone.ParseSide(s)
	if err != nil {
		return one, invalid("the side", "%w", err)
	}
	return one, nil
}

// Owners returns whose a session is.
func (v *served) Owners(ctx context.Context, _ *wire.Conn, p *wire.SessionOwnersParams) (
	*wire.SessionOwnersResult, error) {
	raw, err := small(ctx, v, owners.Own, light,
		func(ctx context.Context) (*owners.Owners, error) {
			id, err := v.find(ctx, p.Session)
			if err != nil {
				return nil, err
			}
			return v.o.Owners.Show(id, v.caller)
		})
	return &wire.SessionOwnersResult{Owners: raw}, err
}

// find returns the ID of a session that the context may use. The session is named.
func (v *served) find(ctx context.Context, nameOrID string) (turnstone.SessionID, error) {
	if nameOrID == "" {
		return "", invalid("the session", "has no name")
	}
	s, err := v.x.CurrentSession(ctx, nameOrID)
	return s.ID, err
}

// Allow admits a key to a session.
func (v *served) Allow(ctx context.Context, _ *wire.Conn, p *wire.SessionAllowParams) error {
	var client channel.PublicKey
	if err := client.UnmarshalText([]byte(p.Client)); err != nil {
		return err
	}
	if err := client.Check(); err != nil {
		return err
	}
	const most = int64(attest.MaxGrantValidity / time.Second)
	if p.Seconds < 0 || p.Seconds > most || p.Seconds == 0 && len(p.Scopes) > 0 {
		return invalid("the time", "is not 1 to %d seconds", most)
	}
	var scopes []attest.Scope
	for _, s := range p.Scopes {
		scopes = append(scopes, attest.Scope(s))
	}
	return v.do(ctx, owners.Own, light, func(ctx context.Context) error {
		id, err := v.find(ctx, p.Session)
		if err != nil {
			return err
		}
		return v.o.Owners.Allow(ctx, id, v.caller, client, scopes,
			v.now().Add(time.Duration(p.Seconds)*time.Second))
	})
}

// Admit takes a grant. The owner's signature counts, not who brings the grant.
func (v *served) Admit(ctx context.Context, _ *wire.Conn, p *wire.SessionAdmitParams) (
	*wire.SessionAdmitResult, error) {
	r := new(wire.SessionAdmitResult)
	return r, v.do(ctx, owners.Read, light, func(ctx context.Context) error {
		id, err := v.o.Owners.Admit(ctx, p.Grant)
		r.Session = string(id)
		return err
	})
}
