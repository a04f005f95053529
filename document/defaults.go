package document

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// Defaults are values for what a document leaves open, such as those of a project's manifest. They
// have the authority of a document: they ask, and grant nothing. The zero value has none.
type Defaults struct {
	Place string // where they are written, for messages: the path of a manifest
	// Front has the image, the machine, the timeout, the isolation, the network, Deterministic, and
	// the session with its branch. Its other fields are not used.
	Front FrontMatter

	Substrate string // name of a substrate, or "auto"; empty: no request
	// Guest is the system that the template has to have, such as "bookworm-amd64"; empty: any.
	Guest string
	// Branches are patterns of the branches that a turn may be added to; empty: every branch.
	Branches []string
}

// With returns d with the values of def under the keys that d does not set. session is the session
// that d's caller names; it replaces the one of def, which then has no branch either. d is not
// changed, and its source stays the author's.
func (d *Document) With(def Defaults, session string) *Document {
	if d == nil || reflect.ValueOf(def).IsZero() {
		return d
	}
	c := *d
	c.Inherited, c.Defaults = slices.Clone(d.Inherited), def
	to, from := &c.Front, &def.Front
	inherit(&c, "image", &to.Image, from.Image)
	inherit(&c, "timeout", &to.Timeout, from.Timeout)
	inherit(&c, "cpus", &to.CPUs, from.CPUs)
	inherit(&c, "memory", &to.Memory, from.Memory)
	inherit(&c, "disk", &to.Disk, from.Disk)
	inherit(&c, "isolation", &to.Isolation, from.Isolation)
	inherit(&c, deterministicKey, &to.Deterministic, from.Deterministic)
	if to.NetworkRules == nil { // the rules are a part of the key's value
		before := len(c.Inherited)
		if inherit(&c, "network", &to.Network, from.Network); len(c.Inherited) > before {
			to.NetworkRules = from.NetworkRules
		}
	}
	if session == "" && to.Session == "" && to.Branch == "" {
		inherit(&c, "session", &to.Session, from.Session)
		inherit(&c, "branch", &to.Branch, from.Branch)
	}
	return &c
}

// inherit sets a value of c that its author left open.
func inherit[T comparable](c *Document, key string, to *T, value T) {
	var zero T
	if *to == zero && value != zero && !slices.Contains(c.layout.front.keys, key) {
		*to, c.Inherited = value, append(c.Inherited, key)
	}
}

// Inherits reports whether the value under a key comes from the defaults.
func (d *Document) Inherits(key string) bool { return slices.Contains(d.Inherited, key) }

// CheckBranch returns an error of kind Invalid if turns may not be added to a branch.
func (def Defaults) CheckBranch(branch string) error {
	for _, pattern := range def.Branches {
		if ok, _ := path.Match(pattern, branch); ok {
			return nil
		}
	}
	if len(def.Branches) == 0 {
		return nil
	}
	return turnstone.Errorf("document.branch", turnstone.KindInvalid, "branch: "+branch,
		"%s allows the branches %s", def.Place, strings.Join(def.Branches, ", ")).
		WithHint(fmt.Sprintf("use one of them with --branch, or leave out the rules of %s with "+
			"--manifest none", def.Place))
}
