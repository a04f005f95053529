package network

import (
	"net/netip"
	"slices"

	"turnstone.dev/turnstone"
)

// A Spec is what is asked of a sandbox's network, in a form that can be written down.
type Spec struct {
	// Allow and Deny are rules as ParseRule reads them. The word "public" in Allow stands
	// for all public addresses.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	Only  bool     `json:"only,omitempty"` // what Allow does not name is refused
	Open  bool     `json:"open,omitempty"` // TLS is opened
	// Asked says that nobody but a document asks for Allow, which then opens no more than
	// public addresses and what the host grants to documents. Policy does not know of it.
	Asked bool `json:"asked,omitempty"`
	// Headers are secret headers. What is written down has them without values.
	Headers []SecretHeader `json:"headers,omitempty"`
	// NoHostCA says that the sandbox does not trust what its host trusts beyond the public authorities.
	NoHostCA bool   `json:"no_host_ca,omitempty"`
	DNS      string `json:"dns,omitempty"` // ADDRESS:PORT of the name server to ask; empty: the host's
}

// PublicWord stands for all public addresses in a list of rules.
const PublicWord = "public"

// Policy reads the rules. An error is of kind Invalid.
func (s *Spec) Policy() (Policy, error) {
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

// Bare is s without the values of secrets.
func (s *Spec) Bare() *Spec {
	if s == nil {
		return nil
	}
	bare := *s
	bare.Headers = slices.Clone(s.Headers)
	for i := range bare.Headers {
		bare.Headers[i].Value = ""
	}
	return &bare
}

// Same tells whether both ask for the same, but for the values of secrets.
func (s *Spec) Same(o *Spec) bool {
	if s == nil || o == nil {
		s, o = or(s, &Spec{}), or(o, &Spec{})
	}
	return slices.Equal(s.Allow, o.Allow) && slices.Equal(s.Deny, o.Deny) && s.Only == o.Only && s.Open == o.Open && s.Asked == o.Asked && s.NoHostCA == o.NoHostCA &&
		s.DNS == o.DNS &&
		slices.EqualFunc(s.Headers, o.Headers, func(a, b SecretHeader) bool { return a.Label() == b.Label() })
}

func or(s, other *Spec) *Spec {
	if s != nil {
		return s
	}
	return other
}
