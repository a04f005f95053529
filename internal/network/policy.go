package network

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
)

// HostName is the name under which a guest finds the ports of the host's loopback that its policy
// opens ("127.0.0.1:PORT" in Allow). It stands for Gateway.
const HostName = "host.turnstone.internal"

// maxRules bounds the rules of a policy, Allow and Deny each.
const maxRules = 1024

// ParseRule parses a rule: a name ("api.example.com"), every name below a name ("*.example.org"),
// an address or a prefix ("192.0.2.1", "10.0.0.0/8", "2001:db8::/32"), each with an optional
// ":PORT". An IPv6 address with a port is in brackets. An error is of kind Invalid.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return Rule{}, turnstone.NewError("network.rule", turnstone.KindInvalid,
			strconv.Quote(text), err).
			WithHint("write a name, an address or a prefix, with a port or without: " +
				"api.example.com, *.example.org:443, 10.0.0.0/8, 192.0.2.1:5432")
	}
	return r, nil
}

func parseRule(text string) (Rule, error) {
	host, port, err := splitPort(text)
	if err != nil {
		return Rule{}, err
	}
	if prefix, ok, err := parsePrefix(host); ok || err != nil {
		if err != nil {
			return Rule{}, err
		}
		r := Rule{Prefix: prefix, Port: port}
		return r, r.check()
	}
	r := Rule{Name: strings.ToLower(strings.TrimSuffix(host, ".")), Port: port}
	return r, r.check()
}

// splitPort splits ":PORT" from the end of text. Without brackets, text with more than one colon is
// an IPv6 address without a port.
func splitPort(text string) (host string, port uint16, err error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		host, rest, ok := strings.Cut(inner, "]")
		if !ok {
			return "", 0, errors.New("a bracket is not closed")
		}
		if rest == "" {
			return host, 0, nil
		}
		digits, ok := strings.CutPrefix(rest, ":")
		if !ok {
			return "", 0, errors.New("something other than a port follows the bracket")
		}
		port, err = parsePort(digits)
		return host, port, err
	}
	if strings.Count(text, ":") != 1 {
		return text, 0, nil
	}
	host, digits, _ := strings.Cut(text, ":")
	port, err = parsePort(digits)
	return host, port, err
}

func parsePort(digits string) (uint16, error) {
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '+' {
		return 0, fmt.Errorf("port %q is not between 1 and 65535", digits)
	}
	return uint16(n), nil
}

// parsePrefix returns false if host does not look like an address.
func parsePrefix(host string) (netip.Prefix, bool, error) {
	if strings.Contains(host, "/") {
		p, err := netip.ParsePrefix(host)
		if err != nil {
			return netip.Prefix{}, true, err
		}
		if p != p.Masked() {
			return netip.Prefix{}, true,
				fmt.Errorf("bits beyond the prefix are set: it would be %s", p.Masked())
		}
		return unmapPrefix(p), true, nil
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		if LooksLikeAddress(host) {
			return netip.Prefix{}, true, errors.New("not an address")
		}
		return netip.Prefix{}, false, nil
	}
	if a.Zone() != "" {
		return netip.Prefix{}, true, errors.New("an address with a zone")
	}
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()), true, nil
}

// unmapPrefix converts ::ffff:a.b.c.d/96+n to a.b.c.d/n.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// LooksLikeAddress reports whether inet_aton and similar functions may read the text as an address,
// such as "127.1", "0x7f000001" and "2130706433", or whether it contains a colon. The last label of
// a name is never a number.
func LooksLikeAddress(host string) bool {
	if strings.Contains(host, ":") {
		return true
	}
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == "" {
		return false
	}
	_, err := strconv.ParseUint(last, 0, 64)
	return err == nil || strings.Trim(last, "0123456789") == ""
}

// check returns why r is a rule that cannot work.
func (r Rule) check() error {
	if r.Name != "" {
		if r.Prefix.IsValid() {
			return errors.New("both a name and a prefix")
		}
		return checkPattern(r.Name)
	}
	if !r.Prefix.IsValid() {
		return errors.New("neither a name nor an address")
	}
	if r.Prefix != r.Prefix.Masked() {
		return errors.New("bits beyond the prefix are set")
	}
	return nil
}

func checkPattern(name string) error {
	base := strings.TrimPrefix(name, "*.")
	if strings.Contains(base, "*") {
		return errors.New(`"*." may only be at the beginning, and stands for any name below`)
	}
	if LooksLikeAddress(base) {
		return errors.New("not an address, and not a name")
	}
	return CheckName(base)
}

// CheckName returns why no host has the name (RFC 1123, RFC 2181: letters, digits, hyphens and
// underscores, at most 63 bytes a label and 253 in all).
func CheckName(name string) error {
	if name == "" || len(name) > 253 {
		return fmt.Errorf("a name of %d bytes", len(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return fmt.Errorf("a part of %d bytes in a name", len(label))
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return fmt.Errorf("character %q in a name", c)
			}
		}
	}
	return nil
}

// String returns r in the form that ParseRule parses.
func (r Rule) String() string {
	host := r.Name
	if host == "" {
		host = r.Prefix.String()
		if r.Prefix.IsSingleIP() {
			host = r.Prefix.Addr().String()
		}
		if r.Port != 0 && r.Prefix.Addr().Is6() {
			host = "[" + host + "]"
		}
	}
	if r.Port == 0 {
		return host
	}
	return host + ":" + strconv.Itoa(int(r.Port))
}

// maxWithin bounds the total number of policies that a policy is within.
const maxWithin = 16

// Validate returns an error of kind Invalid for the first rule that cannot work, in p or in a
// policy that it is within.
func (p Policy) Validate() error {
	left := maxWithin
	return p.validate(&left)
}

func (p Policy) validate(left *int) error {
	fail := func(subject string, err error) error {
		return turnstone.NewError("network.policy", turnstone.KindInvalid, subject, err)
	}
	if len(p.Allow) > maxRules || len(p.Deny) > maxRules || len(p.Own) > maxRules {
		return fail("", fmt.Errorf("more than %d rules", maxRules))
	}
	for _, r := range p.Deny {
		if err := r.check(); err != nil {
			return fail("deny: "+r.String(), err)
		}
	}
	for _, r := range slices.Concat(p.Allow, p.Own) {
		if err := cmp.Or(r.check(), r.CheckAllow()); err != nil {
			return fail("allow: "+r.String(), err)
		}
	}
	for _, r := range p.Own {
		if r.Name != "" || !r.Prefix.IsSingleIP() || r.Port == 0 {
			return fail("own: "+r.String(), errors.New("not one address with a port"))
		}
	}
	for _, w := range p.Within {
		if *left--; *left < 0 {
			return fail("", fmt.Errorf("within more than %d policies", maxWithin))
		}
		if err := w.validate(left); err != nil {
			return err
		}
	}
	return nil
}

// CheckAllow returns why r is a rule that opens nothing.
func (r Rule) CheckAllow() error {
	if r.Name != "" {
		if r.Name == HostName {
			return &turnstone.Error{Kind: turnstone.KindInvalid,
				Err:  errors.New("a name of the host's loopback"),
				Hint: "write 127.0.0.1:PORT for a port of the host's loopback"}
		}
		return nil
	}
	a := r.Prefix.Addr()
	if r.Prefix.Overlaps(netip.MustParsePrefix("127.0.0.0/8")) && r.Prefix.Bits() >= 8 ||
		a.IsLoopback() {
		if a == netip.AddrFrom4([4]byte{127, 0, 0, 1}) && r.Prefix.IsSingleIP() && r.Port != 0 {
			return nil
		}
		return &turnstone.Error{Kind: turnstone.KindInvalid,
			Err: errors.New("the host's loopback is opened port by port"),
			Hint: "write 127.0.0.1:PORT; the guest finds it at " + HostName + ":PORT, which is " +
				Gateway}
	}
	if a.Is6() {
		return errors.New("a guest has IPv4 only")
	}
	inside := netip.MustParsePrefix(GuestAddress).Masked()
	if inside.Bits() <= r.Prefix.Bits() && inside.Contains(a) {
		return fmt.Errorf("%s is the guest's own network", inside)
	}
	for _, k := range kinds() {
		if k.class == never && k.prefix.Bits() <= r.Prefix.Bits() && k.prefix.Contains(a) {
			return fmt.Errorf("no rule opens a %s", k.word)
		}
	}
	return nil
}
