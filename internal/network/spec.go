package network

import (
	"net/netip"

	"turnstone.dev/turnstone"
)

// PublicWord stands for all public addresses in a list of rules.
const PublicWord = "public"

// PolicyOf parses the rules of s, which may be nil. An error is of kind Invalid.
func PolicyOf(s *turnstone.NetworkSpec) (Policy, error) {
	if s == nil {
		return Policy{}, nil
	}
	p := Policy{Only: s.Only}
	for _, text := range s.Allow {
		if text == PublicWord {
			p.Only = false
			continue
		}
		r, err := ParseRule(text)
		if err != nil {
			return p, err
		}
		p.Allow = append(p.Allow, r)
	}
	for _, text := range s.Deny {
		r, err := ParseRule(text)
		if err != nil {
			return p, err
		}
		p.Deny = append(p.Deny, r)
	}
	if s.DNS != "" {
		if _, err := netip.ParseAddrPort(s.DNS); err != nil {
			return p, turnstone.NewError("network.spec", turnstone.KindInvalid, "dns", err).
				WithHint("write ADDRESS:PORT, as 192.0.2.53:53")
		}
	}
	return p, p.Validate()
}
