package sessions

import (
	"context"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/wire"
)

// Bounds of whom a client trusts.
const (
	maxTrust     = 100
	maxTrustText = 1 << 20 // bytes of all
)

// Verify verifies turns. The executor reads files that the request names, so everything that is no
// key and no list of keys is rejected here.
func (v *served) Verify(ctx context.Context, c *wire.Conn, p *wire.SessionVerifyParams) error {
	size := 0
	for _, t := range p.Trust {
		size += len(t)
		if !isKeys(t) {
			return invalid("whom to trust", "is neither a key nor a list of keys")
		}
	}
	if len(p.Trust) > maxTrust || size > maxTrustText {
		return invalid("whom to trust", "has %d entries of %d bytes; the limits are %d and %d",
			len(p.Trust), size, maxTrust, maxTrustText)
	}
	return report(ctx, v, c, p.Report, owners.Read, heavy,
		func(ctx context.Context) (*turnstone.VerifyReport, error) {
			r, err := v.x.Verify(ctx, turnstone.VerifyRequest{Ref: p.Ref, All: p.All,
				Trust: p.Trust})
			if r != nil {
				for i := range r.Problems {
					r.Problems[i].Error = v.o.Paths.Text(r.Problems[i].Error)
				}
			}
			return r, err
		})
}

// isKeys reports whether the executor takes text for keys, and not for a path.
func isKeys(text string) bool {
	text = strings.TrimSpace(text)
	role, one, has := strings.Cut(text, "=")
	if r := key.Role(role); !has || r != key.Node && r != key.Caller {
		one = text
	}
	if key.IsPublic(one) && strings.Contains(one, " ") {
		return true
	}
	all, err := key.ParseEntries(text)
	return err == nil && len(all) > 0
}

// SignTurn adds the signature of the node's user.
func (v *served) SignTurn(ctx context.Context, _ *wire.Conn, p *wire.SessionSignTurnParams) (
	*wire.SessionSignTurnResult, error) {
	if !v.caller.Operator {
		return nil, forbidden("signing with the node's key of a caller")
	}
	raw, err := small(ctx, v, owners.Own, light,
		func(ctx context.Context) (*turnstone.VerifiedTurn, error) {
			return v.x.SignTurn(ctx, p.Ref)
		})
	return &wire.SessionSignTurnResult{Turn: raw}, err
}
