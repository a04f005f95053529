package plan

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network"
)

// planNetwork sets the values of the network that p leaves open, from the caller, the document and
// the host's policy.
func (p *Plan) planNetwork(req Request) (err error) {
	front := req.Document.Front
	rules, said := mergeRules(req, front)
	asked := turnstone.NetworkSpec{Allow: rules.Allow, Deny: rules.Deny, Only: rules.HasAllow,
		Open: rules.Intercept, NoHostCA: rules.NoHostCA, Asked: p.authority.onlyAsked()}
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
	use.Silent = req.Network == nil && front.Network == nil && p.Determinism == nil
	p.Net, p.Shape.Network, err = netplan.Make(p.Host.Config, asked, mode, use)
	if err != nil {
		return err
	}
	if p.Checkpoint == turnstone.CheckpointStep && (p.Net.Mode.Record || p.Net.Mode.Replay) {
		return invalid("checkpoint: step", "a recording of the network is one piece, and an "+
			"interrupted turn would lose its part of it").
			WithHint("use network: on, or checkpoint: none")
	}
	return p.hideHeaders(req)
}

// sandboxNetwork is planNetwork for a sandbox that runs no document. silent says that nothing
// requests or refuses a network.
func (p *Plan) sandboxNetwork(spec *turnstone.NetworkSpec, silent bool) (err error) {
	var asked turnstone.NetworkSpec
	if spec != nil {
		asked = *spec
	}
	use := p.networkUse()
	use.Silent = silent
	p.Net, p.Shape.Network, err = netplan.Make(p.Host.Config, asked, netplan.Mode{}, use)
	if err == nil {
		p.Net.Secrets = p.Net.Hide(nil)
	}
	return err
}

// networkUse returns the properties of p that its network depends on.
func (p *Plan) networkUse() netplan.Use {
	return netplan.Use{Network: p.Shape.Network, Lifetime: p.Lifetime, Snapshot: p.Snapshot}
}

// mergeRules is netplan.Merge of the rules of req and its document.
func mergeRules(req Request, front document.FrontMatter) (rules, mode document.NetworkRules) {
	return netplan.Merge(front.NetworkRules, req.NetworkRules, req.Network != nil)
}

// hideHeaders adds the values of secret headers to the masked secrets, and rejects stored parts of
// the request that contain such a value.
func (p *Plan) hideHeaders(req Request) error {
	p.Secrets = p.Net.Hide(p.Secrets)
	p.Net.Secrets = p.Secrets.Written()
	if len(p.Net.Asked.Headers) == 0 {
		return nil
	}
	return p.noSecret(req)
}
