package network

import "strings"

// MayOpen reports whether p could allow anything that the allow rule r names. False is certain, and
// permits an early error; true promises nothing, because a connection is decided when it is opened.
func (p Policy) MayOpen(r Rule) bool {
	for _, w := range p.Within {
		if !w.MayOpen(r) {
			return false
		}
	}
	var k kind
	if r.Name == "" {
		k = r.inside()
	}
	if !p.Only && k.class == public {
		return true
	}
	// With Only, the names in rules can be looked up, for whatever port the rules are. What has been looked
	// up is reached by a rule for the address, too.
	looked, addresses := false, false
	for _, o := range p.Allow {
		port := o.Port == 0 || r.Port == 0 || o.Port == r.Port
		switch {
		case r.Name != "" && o.Name != "" && patternsMeet(o.Name, r.Name):
			if port {
				return true
			}
			looked = true
		case r.Name != "":
			addresses = addresses || port && o.Name == ""
		case port && (o.Name == "" && o.Prefix.Overlaps(r.Prefix) || o.Name != "" && o.nameOpens(k)):
			return true
		}
	}
	return looked && addresses
}

// inside returns the kind of address that all of r's prefix belongs to. It returns public for a
// prefix that lies only partly in a kind.
func (r Rule) inside() kind {
	for _, k := range kinds() {
		if k.prefix.Bits() <= r.Prefix.Bits() && k.prefix.Contains(r.Prefix.Addr()) {
			return k
		}
	}
	return kind{class: public}
}

// patternsMeet reports whether a name matches both patterns.
func patternsMeet(a, b string) bool {
	belowA, wildA := strings.CutPrefix(a, "*")
	belowB, wildB := strings.CutPrefix(b, "*")
	switch {
	case wildA && wildB:
		return strings.HasSuffix(belowA, belowB) || strings.HasSuffix(belowB, belowA)
	case wildA:
		return Rule{Name: a}.matchesName(b)
	}
	return Rule{Name: b}.matchesName(a)
}
