package network

import (
	"net/netip"
	"slices"
	"strings"
)

// A Verdict is a policy's decision on a connection.
type Verdict struct {
	Allowed bool
	Rule    string // the deciding rule, in the form of Rule.String; empty: the default
	Reason  string // why it is refused, a single line; empty: allowed
}

// Decide decides whether a guest may connect to port of addr. name is the host that the guest wants
// there and that addr was answered for, or empty. The address Gateway stands for the host's
// loopback. Decide does not know the host's own addresses: a Stack also refuses them, unless a rule
// has exactly the address.
func (p Policy) Decide(name string, addr netip.Addr, port uint16) Verdict {
	return NewJudge(p, func(netip.Addr) bool { return false }).decide(name, addr, port)
}

// A Judge is a policy, with the policies that it is within, prepared for decisions. It allows only
// what all of them allow. A judge is immutable.
type Judge struct {
	terrain
	policies []singlePolicy // the first is the policy itself
	own      []Rule         // the policy's Own
	denies   bool           // a Deny contains a name
}

// A singlePolicy is one of the policies of a Judge.
type singlePolicy struct {
	*terrain
	Policy
}

// A terrain knows the kinds of addresses.
type terrain struct {
	kinds   []kind
	global  netip.Prefix
	isOwn   func(netip.Addr) bool
	gateway netip.Addr
	dns     netip.Addr
}

// NewJudge returns a Judge of p. isOwn reports whether an address belongs to the host.
func NewJudge(p Policy, isOwn func(netip.Addr) bool) *Judge {
	j := &Judge{own: p.Own, terrain: terrain{kinds: kinds(),
		global: netip.MustParsePrefix(globalUnicast), isOwn: isOwn,
		gateway: netip.MustParseAddr(Gateway), dns: netip.MustParseAddr(DNS)}}
	j.add(p)
	return j
}

func (j *Judge) add(p Policy) {
	j.policies = append(j.policies, singlePolicy{&j.terrain, p})
	for _, r := range p.Deny {
		j.denies = j.denies || r.Name != ""
	}
	for _, w := range p.Within {
		j.add(w)
	}
}

// target returns the real destination of a connection to addr.
func (t *terrain) target(addr netip.Addr) netip.Addr {
	if addr == t.gateway {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return Embedded(addr)
}

// askInOrder asks one policy after the other, until one refuses.
func (j *Judge) askInOrder(ask func(singlePolicy) Verdict) Verdict {
	first := Verdict{Allowed: true}
	for i, p := range j.policies {
		v := ask(p)
		if !v.Allowed {
			if p.Whose != "" {
				v.Reason = p.Whose + ": " + v.Reason
			}
			return v
		}
		if i == 0 {
			first = v
		}
	}
	return first
}

func (j *Judge) decide(name string, addr netip.Addr, port uint16) Verdict {
	if v := j.serves(addr, port); v.Allowed {
		return v
	}
	return j.askInOrder(func(p singlePolicy) Verdict { return p.decide(name, addr, port) })
}

// serves reports whether a rule of Own has the address and port.
func (j *Judge) serves(addr netip.Addr, port uint16) Verdict {
	for _, r := range j.own {
		a := j.target(addr)
		if r.Port == port && r.matchesAddr(a) && r.opens(j.kindOf(a)) {
			return Verdict{Allowed: true, Rule: r.String()}
		}
	}
	return Verdict{}
}

// Lookup decides whether a guest may ask for the addresses of name.
func (j *Judge) Lookup(name string) Verdict {
	return j.askInOrder(func(p singlePolicy) Verdict { return p.lookup(name) })
}

// Answer decides whether the guest may learn addr as an address of name: whether it could connect
// to any port of it. A web page reaches a router by a name on the Internet with an address in a
// private range (DNS rebinding).
func (j *Judge) Answer(name string, addr netip.Addr) Verdict {
	return j.askInOrder(func(p singlePolicy) Verdict { return p.answer(name, addr) })
}

// Loopback reports whether any port of the host's loopback is open.
func (j *Judge) Loopback() bool {
	for _, r := range slices.Concat(j.own, j.policies[0].Allow) {
		if r.Name == "" && r.Prefix.Addr().IsLoopback() && j.decide("", j.gateway, r.Port).Allowed {
			return true
		}
	}
	return false
}

// pinned reports whether a guest that does not name its host may reach name at to: every policy
// that does not open the address itself has a rule with a name and exactly this port.
func (j *Judge) pinned(name string, to netip.AddrPort) bool {
	for _, p := range j.policies {
		if !p.decide("", to.Addr(), to.Port()).Allowed && !p.pinned(name, to.Port()) {
			return false
		}
	}
	return true
}

func (j singlePolicy) decide(name string, addr netip.Addr, port uint16) Verdict {
	if addr == j.dns {
		return Verdict{Reason: "not a service of the name server"}
	}
	a := j.target(addr)
	for _, r := range j.Deny {
		if r.matchesPort(port) && (r.matchesAddr(a) || addr.Is6() && !addr.Is4In6() &&
			r.matchesAddr(addr) || r.matchesName(name)) {
			return Verdict{Rule: r.String(), Reason: "in deny: " + r.String()}
		}
	}
	k := j.kindOf(a)
	if k.class == never {
		return Verdict{Reason: k.word}
	}
	for _, r := range j.Allow {
		if r.matchesPort(port) && (r.matchesAddr(a) && r.opens(k) || r.matchesName(name) &&
			r.nameOpens(k)) {
			return Verdict{Allowed: true, Rule: r.String()}
		}
	}
	switch {
	case k.class != public:
		return Verdict{Reason: k.word}
	case j.Only:
		return Verdict{Reason: "not in allow"}
	}
	return Verdict{Allowed: true}
}

func (j singlePolicy) lookup(name string) Verdict {
	for _, r := range j.Deny {
		if r.Port == 0 && r.matchesName(name) {
			return Verdict{Rule: r.String(), Reason: "in deny: " + r.String()}
		}
	}
	if !j.Only {
		return Verdict{Allowed: true}
	}
	for _, r := range j.Allow {
		if r.matchesName(name) {
			return Verdict{Allowed: true, Rule: r.String()}
		}
	}
	return Verdict{Reason: "not in allow"}
}

func (j singlePolicy) answer(name string, addr netip.Addr) Verdict {
	a := Embedded(addr)
	for _, r := range j.Deny {
		if r.Port == 0 && (r.matchesAddr(a) || r.matchesAddr(addr)) {
			return Verdict{Rule: r.String(), Reason: "in deny: " + r.String()}
		}
	}
	k := j.kindOf(a)
	if k.class == public {
		return Verdict{Allowed: true}
	}
	for _, r := range j.Allow {
		// A rule for the loopback opens it at the gateway's address.
		if k.class != never && !a.IsLoopback() && (r.matchesAddr(a) && r.opens(k) ||
			r.matchesName(name) && r.nameOpens(k)) {
			return Verdict{Allowed: true, Rule: r.String()}
		}
	}
	return Verdict{Reason: k.word}
}

// pinned reports whether a rule with a name and exactly this port opens name.
func (j singlePolicy) pinned(name string, port uint16) bool {
	for _, r := range j.Allow {
		if r.Port == port && r.matchesName(name) {
			return true
		}
	}
	return false
}

// Unreachable returns the word for an address that no connection can reach, or "".
func (j *Judge) Unreachable(a netip.Addr) string {
	if k := j.kindOf(a); k.class == never || a.IsLoopback() {
		return k.word
	}
	return ""
}

// kindOf returns the kind of address a, after embedded.
func (j *terrain) kindOf(a netip.Addr) kind {
	var k kind
	switch {
	case !a.IsValid():
		return kind{class: never, word: "not an address"}
	case a.Is6() && !j.global.Contains(a):
		k = kind{prefix: netip.PrefixFrom(a, 128), class: closed, word: "reserved address"}
	default:
		k = kind{class: public}
	}
	for _, c := range j.kinds {
		if c.prefix.Contains(a) {
			k = c
			break
		}
	}
	if k.class != never && !a.IsLoopback() && j.isOwn(a) {
		return kind{prefix: netip.PrefixFrom(a, a.BitLen()), class: own,
			word: "address of the host"}
	}
	return k
}

func (r Rule) matchesPort(port uint16) bool { return r.Port == 0 || r.Port == port }

func (r Rule) matchesAddr(a netip.Addr) bool { return r.Name == "" && r.Prefix.Contains(a) }

func (r Rule) matchesName(name string) bool {
	if r.Name == "" || name == "" {
		return false
	}
	if below, ok := strings.CutPrefix(r.Name, "*"); ok {
		return len(name) > len(below) && strings.HasSuffix(name, below)
	}
	return name == r.Name
}

// opens reports whether a rule with a prefix opens addresses of k: a prefix opens a range that is
// not public only if the prefix lies inside the range, so that 0.0.0.0/0 means the public Internet.
func (r Rule) opens(k kind) bool {
	return k.class == public || k.class != never && k.prefix.Bits() <= r.Prefix.Bits() &&
		k.prefix.Contains(r.Prefix.Addr())
}

// nameOpens reports whether a rule with a name opens addresses of k. The owner of a name in the DNS
// chooses its addresses, so a name opens private ranges only if it is an exact name, and never
// loopback, link-local, metadata or the host itself.
func (r Rule) nameOpens(k kind) bool {
	return k.class == public || k.class == private && !strings.HasPrefix(r.Name, "*")
}
