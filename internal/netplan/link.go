package netplan

import (
	"context"
	"crypto/x509"
	"net"
	"slices"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/netstack"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/secret"
)

// A Link is what serves the network of one sandbox. A nil Link serves none, and its guest trusts
// what its image says.
type Link struct {
	rules    Rules
	policy   network.Policy // of rules, with what a player adds
	budget   *proxy.Budget  // of the connections that it opens; nil: one of its own
	recorder *recording.Recorder
	player   *recording.Player

	CA     *proxy.CA           // nil: no TLS is opened
	HostCA []*x509.Certificate // that the guest trusts because its host does
	Bundle string              // path of the certificates that the guest trusts without us
	outer  map[string]string   // variables that Trust replaces, as they would be
}

// NewLink returns what serves rules. budget bounds the connections that it opens; nil stands for
// one of its own.
func NewLink(rules Rules, budget *proxy.Budget) *Link {
	return &Link{rules: rules, policy: rules.Policy, budget: budget}
}

// Record has the network recorded.
func (l *Link) Record(to *recording.Recorder) { l.recorder = to }

// Replay serves a recording in the place of the network, which is not touched.
func (l *Link) Replay(p *recording.Player) {
	l.player = p
	allow := l.policy.Allow
	l.policy.Allow = append(slices.Clone(allow), p.Rules(maxReplayRules-len(allow))...)
	l.policy.Only, l.policy.Within = false, nil // nothing but the recording is behind it
}

// maxReplayRules bounds the rules of a policy that is replayed under.
const maxReplayRules = 1000

// Options are those of the network's stack, which tells watch what it refuses.
func (l *Link) Options(watch *network.Watch) netstack.Options {
	secrets, spec := l.rules.Secrets, &l.rules.Spec
	o := netstack.Options{Policy: l.policy, Budget: l.budget,
		Observer: maskedWatch{watch, secrets}, Resolver: resolverAt(spec.DNS)}
	if l.recorder == nil && l.player == nil && l.CA == nil && len(spec.Headers) == 0 {
		return o
	}
	p := proxy.New(proxy.Options{Resolver: o.Resolver, CA: l.CA, Open: spec.Open || l.player != nil,
		Headers: spec.Headers, Recorder: l.recorder, Player: l.player, Secrets: secrets, Budget: l.budget,
		Observer: o.Observer})
	o.Interceptor = p
	o.Dialer, o.Resolver = p.Below()
	return o
}

// resolverAt asks the name server at an address; nil is the host's own.
func resolverAt(address string) network.Resolver {
	if address == "" {
		return nil
	}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return &net.Resolver{PreferGo: true, Dial: dial}
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
