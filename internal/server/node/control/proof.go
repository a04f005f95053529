package control

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// A caller is who makes a call: a client that has proved its key. Whoever authorised the call has no
// say in this.
type caller struct {
	principal *v1.Principal
	key       channel.PublicKey // zero: the call names none
	operator  bool
	trusted   bool // to say what the principal's scopes are
}

// caller returns who makes the call m, in which c is the client; nil: it names none. A client that
// is named has to prove its key, except to a node that believes who the operator is.
func (s *Service) caller(ctx context.Context, p *v1.Principal, m proto.Message,
	c *v1.ChannelClient) (caller, error) {
	who := caller{principal: p, operator: s.operator(p),
		trusted: s.o.TrustOperator || s.o.TrustController}
	if c == nil {
		return who, nil
	}
	client, _, err := s.client(p, c, "")
	if err != nil {
		return who, err
	}
	who.key = client.Key
	if who.operator {
		return who, nil
	}
	fault, claim := node.ProofForged, channel.Claim{Tenant: p.GetTenant(),
		Request: api.ProofDigest(m)}
	for _, k := range c.Proofs {
		if k.GetNode() == s.o.Node.Name() {
			fault = s.o.Node.Prove(client.Key, k.GetMessage(), claim)
			break // one verification for each call
		}
	}
	if fault != "" {
		return who, s.refuseProof(ctx, client, fault)
	}
	return who, nil
}

// refuseProof is the error for a client whose proof is missing or no good.
func (s *Service) refuseProof(ctx context.Context, c node.Client, fault node.ProofFault) error {
	refuse := func(reason, hint, format string, args ...any) *api.Status {
		return &api.Status{Reason: reason, Err: turnstone.Errorf("client.prove",
			turnstone.KindDenied, "client_public_key", format, args...).WithHint(hint)}
	}
	switch fault {
	case node.ProofClock:
		return refuse("clock", "compare the clocks of this machine and the node",
			"the proof of its possession was made too long ago, or in the future: here it is %s",
			time.Now().UTC().Format(time.RFC3339))
	case node.ProofUsed:
		return refuse("replayed", "make a new proof for each call",
			"the proof of its possession was used before")
	case node.ProofFull:
		return exhausted(turnstone.Errorf("client.prove", turnstone.KindExhausted, "the tenant",
			"has made too many calls in the last minutes"))
	}
	e := refuse(api.Unproven, "call with the turn command, or leave client out where it is not "+
		"required: docs/api.md, Client keys",
		"the call does not prove to node %s that the caller has this key", s.o.Node.Name())
	signed, err := s.o.Node.Introduce(ctx, c)
	if err != nil {
		return err
	}
	e.Introduction, e.Certificate = signed.Envelope, s.o.Node.Certificate()
	return e
}

// owns is the caller for the owners of sessions.
func (c caller) owns() owners.Caller { return owners.Caller{Key: c.key, Operator: c.operator} }

// admin reports whether the caller may end and change what belongs to other clients of its tenant.
// A scope is the controller's word: a node believes it only if the controller is in the same
// process, or its own configuration says so.
func (c caller) admin(scope auth.Scope) bool {
	return c.operator || c.trusted && c.principal.GetSandboxId() == "" &&
		slices.Contains(c.principal.GetScopes(), string(scope))
}

// refuse is the error for a caller that does not own an object of its own tenant.
func (c caller) refuse(op turnstone.Op, what, id string, scope auth.Scope) error {
	text := "exists and belongs to another client key"
	if c.key == (channel.PublicKey{}) {
		text = "belongs to a client key, and the call proves none"
	}
	hint := "use the client key that made it, or a token with the scope " + string(scope)
	if !c.trusted && slices.Contains(c.principal.GetScopes(), string(scope)) {
		hint = "use the client key that made it, or let the node's operator set " +
			"node.trust_controller: this node believes no controller about " + string(scope)
	}
	return denied(op, what, id, text, hint)
}

func denied(op turnstone.Op, what, id, text, hint string) error {
	return turnstone.Errorf(op, turnstone.KindDenied, what+" "+id, "%s", text).WithHint(hint)
}

// mayControl returns nil if the caller may end or change a sandbox: its owner, everybody of the
// tenant if it has none, and an administrator.
func (s *Service) mayControl(op turnstone.Op, c caller, st *tenants.State,
	id turnstone.SandboxID) error {
	if c.admin(auth.SandboxesAdmin) {
		return nil
	}
	rec, err := s.record(st, id)
	if err != nil {
		return err
	}
	if rec != nil && c.holds(rec.Holder) {
		return nil
	}
	return c.refuse(op, kindSandbox, string(id), auth.SandboxesAdmin)
}

// holds reports whether the caller is the owner of a sandbox or a snapshot, or it has none.
func (c caller) holds(h kept.Holder) bool {
	return h.Open || c.key != channel.PublicKey{} && h.Client == c.key
}

// maySession returns nil if the caller may do with a session what it needs. It is plain with clients
// of the tenant, who see the names of all its sessions.
func (c caller) maySession(op turnstone.Op, st *tenants.State, i turnstone.Session,
	need owners.Need) error {
	err := st.Owners.May(i.ID, c.owns(), need)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	name := i.Name
	if name == "" {
		name = string(i.ID)
	}
	if need == owners.Own {
		return c.refuse(op, kindSession, name, auth.SessionsAdmin)
	}
	return taken(op, name)
}

// taken is the error about the name of a session of another client.
func taken(op turnstone.Op, name string) error {
	return denied(op, kindSession, name, "exists and belongs to another client key",
		"use another name, or ask an owner for access: turn session allow")
}

// isSession reports whether a session that a controller found is the one that the caller named.
func isSession(i turnstone.Session, ref string) bool {
	return ref != "" && (ref == i.Name || ref == string(i.ID))
}
