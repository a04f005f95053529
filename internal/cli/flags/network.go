package flags

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/network"
)

// ForNetwork describe a sandbox's network access.
type ForNetwork struct {
	Network      NetworkMode  `help:"Set the network mode (default: on)." placeholder:"on|off|record|replay[=TURN]"`
	Allow        []Rule       `help:"Allow only this host or network (repeatable)." placeholder:"RULE" sep:"none"`
	Deny         []Rule       `help:"Deny this host or network (repeatable)." placeholder:"RULE" sep:"none"`
	SecretHeader []headerFlag `help:"Set a header outside of the sandbox (repeatable)." placeholder:"HOST=NAME=VARIABLE" sep:"none"`
	NoHostCA     bool         `name:"no-host-ca" help:"Do not trust the host's certificate authorities."`
}

// On reports whether there is to be a network; nil: no flag decides.
func (f *ForNetwork) On() *bool {
	on := true
	switch {
	case f.Network.set:
		return &f.Network.on
	case len(f.Allow)+len(f.SecretHeader) > 0:
		return &on
	}
	return nil
}

// ValidateWithoutTurn checks the flags of a sandbox in which no turn runs: only traffic of turns is
// recorded.
func (f *ForNetwork) ValidateWithoutTurn() error {
	if f.Network.Rules.Record || f.Network.Rules.Replay {
		return errors.New("--network: record and replay are for turns")
	}
	return f.contradiction()
}

// contradiction rejects rules for a network that is off.
func (f *ForNetwork) contradiction() error {
	if f.Network.set && !f.Network.on && len(f.Allow) > 0 {
		return errors.New("--allow cannot be used with --network off")
	}
	return nil
}

// Rules returns the flags other than on and off; nil: none.
func (f *ForNetwork) Rules() *document.NetworkRules {
	if len(f.Allow)+len(f.Deny) == 0 && !f.Network.set && !f.NoHostCA {
		return nil
	}
	r := f.Network.Rules
	r.NoHostCA = f.NoHostCA
	r.HasAllow = len(f.Allow) > 0
	for _, a := range f.Allow {
		r.Allow = append(r.Allow, string(a))
	}
	for _, d := range f.Deny {
		r.Deny = append(r.Deny, string(d))
	}
	return &r
}

// Spec returns the network of a sandbox that is kept.
func (f *ForNetwork) Spec() (*turnstone.NetworkSpec, error) {
	headers, err := f.SecretHeaders()
	r := f.Rules()
	if err != nil || r == nil && len(headers) == 0 {
		return nil, err
	}
	s := &turnstone.NetworkSpec{}
	if r != nil {
		s.Allow, s.Only, s.Deny, s.NoHostCA = r.Allow, r.HasAllow, r.Deny, r.NoHostCA
	}
	for _, text := range headers {
		h, err := network.ParseSecretHeader(text)
		if err != nil {
			return nil, err
		}
		s.Headers = append(s.Headers, h)
	}
	return s, nil
}

// NetworkMode is a mode of the network that records whether it was given.
type NetworkMode struct {
	set, on bool
	Rules   document.NetworkRules
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *NetworkMode) UnmarshalText(text []byte) error {
	word, turn, named := strings.Cut(string(text), "=")
	on, rules, ok := document.NetworkMode(word)
	truth := slices.Contains([]string{"true", "false", "yes", "no"}, strings.ToLower(word))
	if !ok || truth || named && (word != "replay" || turn == "") {
		return fmt.Errorf("%q is none of on, off, record, replay and replay=TURN", text)
	}
	*m = NetworkMode{set: true, on: on}
	if rules != nil {
		m.Rules = *rules
		m.Rules.ReplayOf = turn
	}
	return nil
}

// A Rule is a rule of network.ParseRule, or public.
type Rule string

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rule) UnmarshalText(text []byte) error {
	*r = Rule(text)
	if *r == network.PublicWord {
		return nil
	}
	_, err := network.ParseRule(string(text))
	return err
}

// A headerFlag is HOST=NAME: VALUE, or HOST=NAME=VARIABLE.
type headerFlag string

// UnmarshalText implements encoding.TextUnmarshaler. It checks nothing, because its errors would
// contain the value.
func (h *headerFlag) UnmarshalText(text []byte) error {
	*h = headerFlag(text)
	return nil
}

// SecretHeaders completes headers whose values are in turn's own environment.
func (f *ForNetwork) SecretHeaders() ([]string, error) {
	var all []string
	for _, given := range f.SecretHeader {
		text := string(given)
		if host, header, ok := strings.Cut(text, "="); ok && !strings.Contains(header, ":") {
			name, variable, ok := strings.Cut(header, "=")
			if !ok {
				name = "…" // it may be the value
			}
			value, there := os.LookupEnv(variable)
			if !ok || !there {
				subject := fmt.Sprintf("--secret-header %.80s=%.80s", host, name)
				return nil, turnstone.Errorf("run", turnstone.KindInvalid, subject,
					"no value is given, and the variable is not set").
					WithHint("write HOST=NAME=VARIABLE, and export VARIABLE first; " +
						"other users can see a value on the command line")
			}
			text = host + "=" + name + ": " + value
		}
		if _, err := network.ParseSecretHeader(text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}
