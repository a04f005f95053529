package executor

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/netstack"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/secret"
)

// A networkPlan is what a plan asks of the sandbox's network, and what that needs.
type networkPlan struct {
	asked    network.Spec     // by the caller and the document
	spec     network.Spec     // with what the host's policy says
	policy   network.Policy   // of spec
	host     turnstone.Digest // what the host says of networks: rulesOf
	record   bool
	replay   bool
	replayOf string // the turn whose recording is replayed; empty: the nearest one's
	// replayNamed says that the caller named replayOf, and not the document.
	replayNamed bool
	secrets     *secret.Set // masked in what is recorded and told
	leak        string      // the secret that the recording holds all the same

	ca       *proxy.CA           // nil: no TLS is opened
	hostCA   []*x509.Certificate // that the guest trusts because its host does, beyond the public ones
	recorder *recording.Recorder
	spool    spool         // of the recorder, or the player
	opened   *proxy.Budget // of the connections that it opens; nil: one of its own
	player   *recording.Player
	playing  turnstone.TurnID
	outer    map[string]string // variables that trust replaces, as they would be
	bundle   string            // path of the certificates that the guest trusts without us
}

// planNetwork answers what p leaves open of the network: with the caller's word, the
// document's, and the host's policy.
func (x *Executor) planNetwork(p *plan, req Request) error {
	front := req.Document.Front
	rules, mode := mergeRules(req, front)
	p.net.record, p.net.replay, p.net.replayOf = mode.Record, mode.Replay, mode.ReplayOf
	p.net.replayNamed = req.NetworkRules != nil && req.NetworkRules.ReplayOf != ""
	p.net.asked = network.Spec{Allow: rules.Allow, Deny: rules.Deny, Only: rules.HasAllow, Open: rules.Intercept, NoHostCA: rules.NoHostCA, Asked: p.authority.onlyAsked()}
	for _, text := range req.SecretHeaders {
		h, err := network.ParseSecretHeader(text)
		if err != nil {
			return err
		}
		p.net.asked.Headers = append(p.net.asked.Headers, h)
	}
	if err := p.applyHostNetwork(x.Host, req.Network == nil && front.Network == nil); err != nil {
		return err
	}
	if err := p.net.fits(p); err != nil {
		return err
	}
	return p.hideHeaders(req)
}

// planSandbox is planNetwork for a sandbox of its own. silent says that nobody said
// whether there is to be a network.
func (x *Host) planSandbox(p *plan, spec *network.Spec, silent bool) error {
	if spec != nil {
		p.net.asked = *spec
	}
	if err := p.applyHostNetwork(x, silent); err != nil {
		return err
	}
	if err := p.net.fits(p); err != nil {
		return err
	}
	for _, h := range p.net.asked.Headers {
		p.net.secrets = p.net.secrets.With("header "+h.Name+" for "+h.Host, h.Values()...)
	}
	if !p.shape.Network {
		return nil
	}
	more, err := x.trusted(&p.net, p.env)
	p.env = append(slices.Clone(p.env), more...)
	return err
}

// mergeRules puts the caller's rules in the place of the document's: its allow replaces
// that of the document, its deny comes beside, and its mode counts when it says one.
func mergeRules(req Request, front document.FrontMatter) (rules, mode document.NetworkRules) {
	if r := front.NetworkRules; r != nil {
		rules, mode = *r, *r
	}
	asked := req.NetworkRules
	if asked == nil {
		asked = &document.NetworkRules{}
	}
	if asked.HasAllow {
		rules.Allow, rules.HasAllow = asked.Allow, true
	}
	rules.Deny = append(slices.Clone(rules.Deny), asked.Deny...)
	rules.Intercept = rules.Intercept || asked.Intercept
	rules.NoHostCA = rules.NoHostCA || asked.NoHostCA
	if req.Network != nil || asked.Record || asked.Replay {
		mode = *asked
	}
	return rules, mode
}

// fits refuses what cannot go together.
func (n *networkPlan) fits(p *plan) error {
	fail := func(subject, why, hint string) error {
		return turnstone.NewError("executor.network", turnstone.KindInvalid, subject,
			errors.New(why)).WithHint(hint)
	}
	if !p.shape.Network {
		switch {
		case len(n.asked.Headers) > 0:
			return fail("secret header", "the network is off", "leave it out, or say network: on")
		case n.record || n.replay:
			return fail("network", "it is off, and cannot be recorded or replayed", "leave out network: off")
		}
		return nil
	}
	if n.record && n.replay {
		return fail("network", "a turn cannot both record and replay", "leave one of them out")
	}
	if p.lifetime == document.LifetimeSession && (n.record || n.replay) {
		return fail("network", "connections of a machine that stays belong to more than one turn", "record and replay with lifetime: turn")
	}
	if p.lifetime == document.LifetimeSession && len(n.asked.Headers) > 0 {
		return fail("secret header", "the machine stays longer than the turn that is given it", "run this turn with lifetime: turn")
	}
	if p.snapshot == document.SnapshotVM && (n.asked.Open || len(n.asked.Headers) > 0 || n.replay) {
		return fail("snapshot: vm", "the machine trusts a certificate authority that ends with the turn", "leave out the snapshot, or intercept and secret headers")
	}
	return nil
}

// hideHeaders makes the values of secret headers known to those who mask, and refuses
// what would be kept with one in it.
func (p *plan) hideHeaders(req Request) error {
	for _, h := range p.net.asked.Headers {
		p.secrets = p.secrets.With("header "+h.Name+" for "+h.Host, h.Values()...)
	}
	p.net.secrets = p.secrets.Written()
	if len(p.net.asked.Headers) == 0 {
		return nil
	}
	return p.noSecret(req)
}

// options are those of the network's stack.
func (n *networkPlan) options(watch *network.Watch) netstack.Options {
	o := netstack.Options{Policy: n.policy, Budget: n.opened, Observer: maskedWatch{watch, n.secrets}, Resolver: resolverAt(n.spec.DNS)}
	if n.recorder == nil && n.player == nil && n.ca == nil && len(n.spec.Headers) == 0 {
		return o
	}
	p := proxy.New(proxy.Options{Resolver: o.Resolver, CA: n.ca, Open: n.spec.Open || n.player != nil, Headers: n.spec.Headers,
		Recorder: n.recorder, Player: n.player, Secrets: n.secrets, Budget: n.opened, Observer: o.Observer})
	o.Interceptor = p
	o.Dialer, o.Resolver = p.Below()
	return o
}

// resolverAt asks the name server at an address; nil is the host's own.
func resolverAt(address string) network.Resolver {
	if address == "" {
		return nil
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
}

// A maskedWatch notes refusals without secrets.
type maskedWatch struct {
	*network.Watch
	secrets *secret.Set
}

// Refused implements network.Observer.
func (w maskedWatch) Refused(r network.Refusal) {
	r.Host, r.Reason = w.secrets.Hosts().Mask(r.Host), w.secrets.Mask(r.Reason)
	w.Watch.Refused(r)
}
