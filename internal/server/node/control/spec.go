package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/sandboxes"
)

// spec returns the library's description of a sandbox that a caller asks for. The caller is as
// untrusted as the author of a document, unless it is the operator.
func (s *Service) spec(ctx context.Context, st *tenants.State, q *v1.CreateSandboxRequest,
	rec *kept.Sandbox, who caller) (sandboxes.Spec, error) {
	operator := who.operator
	spec := sandboxes.Spec{Name: q.Name, Image: image(q), Env: environment(q.Env), Cwd: q.Cwd,
		Substrate: cmp.Or(q.Substrate, "auto"), Live: q.Live, Stranger: !operator,
		TTL: s.lifetime(q.Timeout.AsDuration())}
	if q.GetSnapshotId() != "" {
		return spec, s.fromSnapshot(ctx, q, who, &spec)
	}
	begun, err := s.onSession(ctx, st, q, rec, who)
	if err != nil {
		return spec, err
	}
	spec.Session, spec.Branch = string(rec.Session), q.Branch
	if !begun {
		spec.Image = cmp.Or(spec.Image, tenants.DefaultImage)
	}
	spec.Shape = st.Executor.Shape(spec.Image)
	m := toMachine(q.Machine).Over(turnstone.Machine{CPUs: spec.Shape.CPUs,
		Memory: spec.Shape.Memory, Disk: spec.Shape.Disk})
	spec.Shape = turnstone.Shape{CPUs: m.CPUs, Memory: m.Memory, Disk: m.Disk}
	return spec, network(st, q.Network, operator, &spec)
}

// network sets what a sandbox may reach. A caller opens no more than a document does.
func network(st *tenants.State, n *v1.Network, operator bool, spec *sandboxes.Spec) error {
	bad := func(format string, hint string) error {
		return turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "network", "%s", format).
			WithHint(hint)
	}
	byDefault, err := st.Executor.DefaultNetwork()
	if err != nil {
		return err
	}
	allow, deny := n.GetAllow(), n.GetDeny()
	switch n.GetMode() {
	case v1.NetworkMode_NETWORK_MODE_OFF:
		if len(allow) > 0 {
			return bad("has rules in allow, and is off", "leave the rules out")
		}
		return nil
	case v1.NetworkMode_NETWORK_MODE_ON:
		if !byDefault && !operator {
			if granted, err := st.OpensNetwork(); err != nil || !granted {
				return cmp.Or(err, bad("is off by the node's configuration", "leave it out, or let "+
					"the node's operator grant network in config.toml"))
			}
		}
		spec.Shape.Network = true
	default:
		spec.Shape.Network = byDefault
		if !byDefault && len(allow) > 0 {
			return bad("is off by the node's configuration", "leave the rules out")
		}
	}
	if !operator {
		closed, err := st.Closed(allow)
		if err != nil {
			return err
		}
		if len(closed) > 0 { // the connections would be refused, which a caller would learn late
			return bad("opens "+closed[0].Rule+" in allow: "+closed[0].Word, "leave it out, or "+
				"let the node's operator grant it: allow in [documents] of config.toml")
		}
	}
	if len(allow)+len(deny) > 0 {
		spec.Network = &turnstone.NetworkSpec{Allow: allow, Deny: deny, Only: len(allow) > 0,
			Asked: !operator}
	}
	return nil
}

// onSession finds the session that a sandbox belongs to, which the client's key may change, or makes
// it, and reports whether it has a turn that the sandbox starts from.
func (s *Service) onSession(ctx context.Context, st *tenants.State, q *v1.CreateSandboxRequest,
	rec *kept.Sandbox, who caller) (begun bool, err error) {
	caller := who.owns()
	if q.ContextId == "" && q.Branch != "" {
		return false, turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "branch",
			"needs its session").WithHint("name the session in context_id")
	}
	if q.ContextId == "" {
		return false, nil
	}
	// the names of sessions are in the node's database: the controller's may be older
	ref := cmp.Or(string(rec.Session), q.ContextId)
	g, err := st.Executor.Session(ctx, ref)
	if turnstone.KindOf(err) == turnstone.KindNotFound && rec.Session == "" {
		return false, s.newContext(ctx, st, q, rec, caller)
	}
	if err != nil {
		return false, hide(err, kindSession, q.ContextId)
	}
	if !isSession(g.Session, q.ContextId) {
		return false, missing(kindSession, q.ContextId)
	}
	rec.Session = g.Session.ID
	if err := admit(ctx, st, rec.Session, caller, q.Client.GetGrant()); err != nil {
		return false, err
	}
	if err := who.maySession("sandbox.create", st, g.Session, owners.Write); err != nil {
		return false, err
	}
	return slices.ContainsFunc(g.Branches, func(b turnstone.Branch) bool {
		return b.Name == cmp.Or(q.Branch, mainBranch) && b.Head != ""
	}), nil
}

// mainBranch is the branch that every session has.
const mainBranch = "main"

// newContext makes the session that a sandbox names and that does not exist.
func (s *Service) newContext(ctx context.Context, st *tenants.State, q *v1.CreateSandboxRequest,
	rec *kept.Sandbox, caller owners.Caller) error {
	made, err := st.Executor.CreateSession(st.Owners.Limit(ctx, caller, owners.Own),
		turnstone.NewSessionID(), q.ContextId)
	if err != nil {
		return err
	}
	rec.Session = made.ID
	s.attach(st)
	s.lookSessions(ctx, st, true)
	return nil
}

// fromSnapshot makes a sandbox continue from a snapshot, for the keys that may open the sandbox that
// it was taken of.
func (s *Service) fromSnapshot(ctx context.Context, q *v1.CreateSandboxRequest, who caller,
	spec *sandboxes.Spec) error {
	if len(q.Env) > 0 || q.Machine != nil || q.Network != nil || q.Substrate != "" ||
		q.ContextId != "" {
		return turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "snapshot_id",
			"a snapshot has its own environment, machine, network, substrate and files").
			WithHint("leave env, machine, network, substrate and context_id out")
	}
	dir, k, err := s.snapshot(who.principal, q.GetSnapshotId())
	if err != nil {
		return err
	}
	if len(q.Client.GetGrant()) > 0 {
		if _, err := k.Admit(ctx, k.Sandbox, q.Client.Grant, time.Now()); err != nil {
			return err
		}
	}
	if k.Client.Check() == nil || !who.operator { // otherwise of a local command's sandbox
		if err := k.May(who.key, time.Now()); err != nil {
			return err
		}
	}
	spec.Image, spec.Root, spec.Shape, spec.Network = k.Image, k.Root, k.Shape, k.Network
	spec.Substrate, spec.Holds, spec.From = k.Substrate, k.Secrets, k.Machine(dir)
	spec.Parent = k.Sandbox
	return nil
}
