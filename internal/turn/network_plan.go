package turn

import (
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/sandbox"
)

// planNetwork answers what p leaves open of the network: with the caller's word, the
// document's, and the host's policy.
func (p *plan) planNetwork(req Request, host config.Config) (err error) {
	front := req.Document.Front
	rules, said := mergeRules(req, front)
	asked := network.Spec{Allow: rules.Allow, Deny: rules.Deny, Only: rules.HasAllow, Open: rules.Intercept,
		NoHostCA: rules.NoHostCA, Asked: p.authority.onlyAsked()}
	for _, text := range req.SecretHeaders {
		h, err := network.ParseSecretHeader(text)
		if err != nil {
			return err
		}
		asked.Headers = append(asked.Headers, h)
	}
	mode := netplan.Mode{Record: said.Record, Replay: said.Replay, ReplayOf: said.ReplayOf,
		Named: req.NetworkRules != nil && req.NetworkRules.ReplayOf != ""}
	use := p.networkUse()
	use.Silent = req.Network == nil && front.Network == nil
	if p.net, p.shape.Network, err = netplan.Make(host, asked, mode, use); err != nil {
		return err
	}
	return p.hideHeaders(req)
}

// planSandbox is planNetwork for a sandbox of its own. silent says that nobody said
// whether there is to be a network.
func (x *Host) planSandbox(p *plan, host config.Config, spec *network.Spec, silent bool) (err error) {
	var asked network.Spec
	if spec != nil {
		asked = *spec
	}
	use := p.networkUse()
	use.Silent = silent
	if p.net, p.shape.Network, err = netplan.Make(host, asked, netplan.Mode{}, use); err != nil {
		return err
	}
	p.net.Secrets = p.net.Hide(nil)
	if p.link = netplan.NewLink(p.net, x.opened.Share()); !p.shape.Network {
		return nil
	}
	more, err := p.link.Trust(netplan.Authorities(x.home), p.env)
	p.env = append(slices.Clone(p.env), more...)
	return err
}

// networkUse is what p's network has to fit.
func (p *plan) networkUse() netplan.Use {
	return netplan.Use{Network: p.shape.Network, Lifetime: p.lifetime, Snapshot: p.snapshot}
}

// mergeRules is netplan.Merge of what req and its document say.
func mergeRules(req Request, front document.FrontMatter) (rules, mode document.NetworkRules) {
	return netplan.Merge(front.NetworkRules, req.NetworkRules, req.Network != nil)
}

// hideHeaders makes the values of secret headers known to those who mask, and refuses
// what would be kept with one in it.
func (p *plan) hideHeaders(req Request) error {
	p.secrets = p.net.Hide(p.secrets)
	p.net.Secrets = p.secrets.Written()
	if len(p.net.Asked.Headers) == 0 {
		return nil
	}
	return p.noSecret(req)
}

// trusts is what the guest of a link trusts beside its image's certificates.
func trusts(l *netplan.Link) sandbox.Trust {
	if l == nil {
		return sandbox.Trust{}
	}
	return sandbox.Trust{CA: l.CA, Host: l.HostCA, Bundle: l.Bundle}
}

// hostRules names what the host says of networks today: see netplan.RulesOf.
func (x *Host) hostRules() (turnstone.Digest, error) {
	c, err := x.config()
	if err != nil {
		return "", err
	}
	return netplan.RulesOf(c)
}

// stillHostRules is was where the host still says that, else empty: a machine was made
// meanwhile, and nobody knows by which rules.
func (x *Host) stillHostRules(was turnstone.Digest) turnstone.Digest {
	if now, err := x.hostRules(); err != nil || now != was {
		return ""
	}
	return was
}

// DefaultNetwork tells whether a sandbox of which nothing is said has a network here.
// The error is of kind Invalid when the host's policy cannot be read.
func (x *Host) DefaultNetwork() (bool, error) {
	host, err := x.config()
	return host.Network.Default != "off", err
}
