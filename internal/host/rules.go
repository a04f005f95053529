package host

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/netplan"
)

// Rules returns the digest of the host's current network rules: see netplan.RulesOf.
func (h *Host) Rules() (turnstone.Digest, error) {
	c, err := h.Config()
	if err != nil {
		return "", err
	}
	return netplan.RulesOf(c)
}

// StillRules returns was if the host's rules are unchanged, and "" otherwise: the rules changed
// while a machine was created, so the machine's rules are unknown.
func (h *Host) StillRules(was turnstone.Digest) turnstone.Digest {
	if now, err := h.Rules(); err != nil || now != was {
		return ""
	}
	return was
}

// DefaultNetwork reports whether a sandbox has a network on this host if nothing requests or
// refuses a network. The error is of kind Invalid if the host's policy cannot be read.
func (h *Host) DefaultNetwork() (bool, error) {
	c, err := h.Config()
	return c.Network.Default != "off", err
}
