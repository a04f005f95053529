package host

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/netplan"
)

// Rules names what the host says of networks today: see netplan.RulesOf.
func (h *Host) Rules() (turnstone.Digest, error) {
	c, err := h.Config()
	if err != nil {
		return "", err
	}
	return netplan.RulesOf(c)
}

// StillRules is was where the host still says that, else empty: a machine was made meanwhile, and
// nobody knows by which rules.
func (h *Host) StillRules(was turnstone.Digest) turnstone.Digest {
	if now, err := h.Rules(); err != nil || now != was {
		return ""
	}
	return was
}

// DefaultNetwork tells whether a sandbox of which nothing is said has a network here.
// The error is of kind Invalid when the host's policy cannot be read.
func (h *Host) DefaultNetwork() (bool, error) {
	c, err := h.Config()
	return c.Network.Default != "off", err
}
