package turn

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/sandbox"
)

// trusts is what the guest of a link trusts beside its image's certificates.
func trusts(l *netplan.Link) sandbox.Trust {
	if l == nil {
		return sandbox.Trust{}
	}
	return sandbox.Trust{CA: l.CA, Host: l.HostCA, Bundle: l.Bundle}
}

// hostRules names what the host says of networks today: see netplan.RulesOf.
func (x *Runner) hostRules() (turnstone.Digest, error) {
	c, err := x.config()
	if err != nil {
		return "", err
	}
	return netplan.RulesOf(c)
}

// stillHostRules is was where the host still says that, else empty: a machine was made
// meanwhile, and nobody knows by which rules.
func (x *Runner) stillHostRules(was turnstone.Digest) turnstone.Digest {
	if now, err := x.hostRules(); err != nil || now != was {
		return ""
	}
	return was
}

// DefaultNetwork tells whether a sandbox of which nothing is said has a network here.
// The error is of kind Invalid when the host's policy cannot be read.
func (x *Runner) DefaultNetwork() (bool, error) {
	host, err := x.config()
	return host.Network.Default != "off", err
}
