package netplan

import (
	"context"
	"crypto/x509"
	"net"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/netstack"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/secret"
)

// A Link serves the network of a sandbox. A nil Link serves no network, and its guest trusts its
// image's certificates.
type Link struct {
	rules    Rules
	policy   network.Policy // the policy of rules, with a player's additions
	budget   *proxy.Budget  // budget of its connections; nil: a new one
	recorder *recording.Recorder
	player   *recording.Player

	CA     *proxy.CA           // nil: TLS is not intercepted
	Clock  time.Time           // what the guest's clock starts at; zero: the host's time
	HostCA []*x509.Certificate // certificates that the guest trusts because its host does
	Bundle string              // path of the certificates that the guest trusts without Turnstone's
	outer  map[string]string   // original values of the variables that Trust replaces
}

// NewLink returns a link that serves rules. budget bounds its connections; nil means a new budget.
func NewLink(rules Rules, budget *proxy.Budget) *Link {
	return &Link{rules: rules, policy: rules.Policy, budget: budget}
}

// Record records the network's traffic.
func (l *Link) Record(to *recording.Recorder) { l.recorder = to }

// Replay serves a recording instead of the network. No connection leaves the host.
func (l *Link) Replay(p *recording.Player) {
	l.player = p
	allow := l.policy.Allow
	l.policy.Allow = append(slices.Clone(allow), p.Rules(maxReplayRules-len(allow))...)
	l.policy.Only, l.policy.Within = false, nil // only the recording answers
}

// maxReplayRules bounds the number of a replayed policy's rules.
const maxReplayRules = 1000

// Options returns the options of the network's stack, which reports refusals to watch.
func (l *Link) Options(watch *network.Watch) netstack.Options {
	secrets, spec := l.rules.Secrets, &l.rules.Spec
	o := netstack.Options{Policy: l.policy, Budget: l.budget,
		Observer: maskedWatch{watch, secrets}, Resolver: resolverAt(spec.DNS)}
	if l.recorder == nil && l.player == nil && l.CA == nil && len(spec.Headers) == 0 {
		return o
	}
	p := proxy.New(proxy.Options{Resolver: o.Resolver, CA: l.CA, Open: spec.Open || l.player != nil,
		Headers: spec.Headers, Recorder: l.recorder, Player: l.player, Secrets: secrets,
		Budget:   l.budget,
		Observer: o.Observer})
	o.Interceptor = p
	o.Dialer, o.Resolver = p.Below()
	return o
}

// resolverAt returns a resolver that asks the name server at an address; nil means the host's
// resolver.
func resolverAt(address string) network.Resolver {
	if address == "" {
		return nil
	}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return &net.Resolver{PreferGo: true, Dial: dial}
}

// A maskedWatch reports refusals with their secrets masked.
type maskedWatch struct {
	*network.Watch
	secrets *secret.Set
}

// Refused implements network.Observer.
func (w maskedWatch) Refused(r turnstone.Refusal) {
	r.Host, r.Reason = w.secrets.Hosts().Mask(r.Host), w.secrets.Mask(r.Reason)
	w.Watch.Refused(r)
}
