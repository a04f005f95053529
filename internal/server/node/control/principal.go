package control

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// retryAfter is when a caller tries again for whom there was no room.
const retryAfter = 5 * time.Second

// exhausted makes an error of kind Exhausted one that may be retried.
func exhausted(err error) error {
	if turnstone.KindOf(err) != turnstone.KindExhausted {
		return err
	}
	return &api.Status{RetryAfter: retryAfter, Err: err}
}

// missing is the error for an object that does not exist, or is another tenant's.
func missing(what, id string) error {
	return turnstone.Errorf("node.find", turnstone.KindNotFound, what+" "+id, "does not exist")
}

// hide replaces an error of kind NotFound by the one for every missing object.
func hide(err error, what, id string) error {
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return missing(what, id)
	}
	return err
}

// operator reports whether p is the operator of this machine, as far as the node believes it.
func (s *Service) operator(p *v1.Principal) bool {
	return s.o.TrustOperator && p.GetIssuer() == "" && p.GetTokenId() == "" &&
		p.GetSandboxId() == "" && p.GetTenant() == auth.OperatorTenant
}

// find returns the state of a principal's tenant, for an object that has to exist.
func (s *Service) find(p *v1.Principal, what, id string) (*tenants.State, error) {
	st, err := s.o.Tenants.Known(p.GetTenant())
	return st, hide(err, what, id)
}

// client is a client of a call, as the node's statements and owners name it.
func (s *Service) client(p *v1.Principal, c *v1.ChannelClient, owner string) (node.Client,
	owners.Caller, error) {
	n := node.Client{Key: channel.PublicKey(c.GetClientPublicKey()),
		Nonce: attest.Nonce(c.GetNonce()), Owner: owner, Tenant: p.GetTenant(),
		Operator: s.operator(p), Principal: p}
	if err := n.Key.Check(); err != nil {
		return n, owners.Caller{}, turnstone.NewError("node.client", turnstone.KindInvalid,
			"client_public_key", err)
	}
	return n, owners.Caller{Key: n.Key, Owner: owner, Operator: n.Operator}, nil
}

// noOwner refuses the key of an owner in a call about content that exists, or that others will find
// by its name. A call does not prove that the caller has the client key that it names: with a key of
// its own as the owner, it could admit itself to what belongs to another client.
func noOwner(op turnstone.Op, owner, what string) error {
	if owner == "" {
		return nil
	}
	return turnstone.Errorf(op, turnstone.KindInvalid, "owner", "cannot be named for %s", what).
		WithHint("leave owner out; an owner of the session admits others with turn session allow")
}

// admit lets the owner's grant that a client has brought take effect for a session. A grant that is
// in effect already changes nothing.
func admit(ctx context.Context, st *tenants.State, session turnstone.SessionID, c owners.Caller,
	grant []byte) error {
	if len(grant) == 0 {
		return nil
	}
	about, err := st.Owners.Admit(ctx, grant)
	if channel.FaultOf(err) == channel.FaultReplayed && st.Owners.May(session, c, owners.Read) == nil {
		return nil
	}
	if err == nil && session != "" && about != session {
		err = turnstone.Errorf("session.admit", turnstone.KindInvalid, "the grant",
			"is about another session")
	}
	return err
}

// attestNode signs a statement about the node's channel.
func (s *Service) attestNode(ctx context.Context, c node.Client) (*v1.Channel, error) {
	signed, err := s.o.Node.Attest(ctx, c)
	if err != nil {
		return nil, exhausted(err)
	}
	return s.channel(signed, node.ChannelPath, "{node}", s.o.Node.Name()), nil
}

// attestSandbox signs a statement about the channel of a sandbox.
func (s *Service) attestSandbox(ctx context.Context, id turnstone.SandboxID, c node.Client) (
	*v1.Channel, error) {
	signed, err := s.o.Node.AttestSandbox(ctx, id, c)
	if err != nil {
		return nil, exhausted(err)
	}
	return s.channel(signed, node.SandboxChannelPath, "{id}", string(id)), nil
}
