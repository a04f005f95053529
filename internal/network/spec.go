package network

import (
	"cmp"
	"net/netip"
	"slices"

	"turnstone.dev/turnstone"
)

// A Spec is a request for a sandbox's network, in a form that can be stored.
type Spec struct {
	// Allow and Deny are rules in ParseRule's form. The word "public" in Allow stands for all
	// public addresses.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	Only  bool     `json:"only,omitempty"` // refuse everything that Allow does not name
	Open  bool     `json:"open,omitempty"` // TLS is intercepted
	// Asked means that only a document requests Allow, which then opens no more than public
	// addresses and the host's grants to documents. Policy ignores Asked.
	Asked bool `json:"asked,omitempty"`
	// Headers are secret headers. Their values are not stored.
	Headers []SecretHeader `json:"headers,omitempty"`
	// NoHostCA means that the sandbox does not trust the host's additional authorities.
	NoHostCA bool   `json:"no_host_ca,omitempty"`
	DNS      string `json:"dns,omitempty"` // ADDRESS:PORT of the name server; empty: the host's
}

// PublicWord stands for all public addresses in a list of rules.
const PublicWord = "public"

// Policy parses the rules. An error is of kind Invalid.
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

// Bare returns s without the values of secrets.
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

// Same reports whether both are equal except for the values of secrets.
func (s *Spec) Same(o *Spec) bool {
	if s == nil || o == nil {
		s, o = cmp.Or(s, &Spec{}), cmp.Or(o, &Spec{})
	}
	return slices.Equal(s.Allow, o.Allow) && slices.Equal(s.Deny, o.Deny) && s.Only == o.Only &&
		s.Open == o.Open && s.Asked == o.Asked && s.NoHostCA == o.NoHostCA &&
		s.DNS == o.DNS &&
		slices.EqualFunc(s.Headers, o.Headers,
			func(a, b SecretHeader) bool { return a.Label() == b.Label() })
}
