package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
)

// A Root is the operator's root that a client trusts about the nodes of a host, and what the client
// has seen of it.
type Root struct {
	Key string `toml:"key"` // "TYPE BASE64"
	// Epoch is the latest of the root's certificates that the client saw: it refuses earlier ones.
	Epoch uint64 `toml:"epoch"`
	// Former are the roots that Key has followed, the oldest first. None of them is believed again:
	// who names one means Key.
	Former []string `toml:"former,omitempty"`
	// Nodes are the keys whose certificates the client saw. Those of an earlier epoch are not
	// trusted: the node of one may have been revoked.
	Nodes []Certified `toml:"nodes,omitempty"`
}

// A Certified is the key of a node with a certificate.
type Certified struct {
	Name   string    `toml:"name,omitempty"`
	Key    string    `toml:"key"` // "TYPE BASE64"
	Epoch  uint64    `toml:"epoch"`
	After  time.Time `toml:"after"`
	Before time.Time `toml:"before"`
}

// ID returns the root's fingerprint.
func (r *Root) ID() string {
	k, err := key.Parse(r.Key)
	if err != nil {
		return ""
	}
	return k.ID()
}

func (r *Root) check() error {
	if _, err := key.Parse(r.Key); err != nil {
		return err
	}
	if r.Epoch > attest.MaxEpoch {
		return fmt.Errorf("epoch: it is more than %d", attest.MaxEpoch)
	}
	if len(r.Former) > maxFormer || slices.Contains(r.Former, r.Key) {
		return fmt.Errorf("former: there are more than %d, or one that follows itself", maxFormer)
	}
	for _, text := range r.Former {
		if _, err := key.Parse(text); err != nil {
			return fmt.Errorf("former: %w", err)
		}
	}
	if len(r.Nodes) > maxNodes {
		return fmt.Errorf("nodes: there are more than %d", maxNodes)
	}
	for _, n := range r.Nodes {
		if n.Name != "" {
			if err := turnstone.CheckName("node", n.Name); err != nil {
				return fmt.Errorf("nodes: %w", err)
			}
		}
		if _, err := key.Parse(n.Key); err != nil {
			return fmt.Errorf("nodes: %w", err)
		}
		if n.Epoch > r.Epoch || !n.After.Before(n.Before) || n.After.Year() < 1 ||
			n.Before.Year() > 9999 {
			return errors.New("nodes: a certificate has no possible time or epoch")
		}
	}
	return nil
}

// Entries returns the keys that the root's certificates make trusted.
func (r *Root) Entries() (all []key.Entry, err error) {
	for _, n := range r.Nodes {
		if n.Epoch < r.Epoch {
			continue
		}
		k, err := key.Parse(n.Key)
		if err != nil {
			return nil, err
		}
		all = append(all, key.Entry{Key: k, Role: key.Node, Name: n.Name, After: n.After.UTC(),
			Before: n.Before.UTC()})
	}
	return all, nil
}

// note adds a certificate of the root's epoch, and reports whether that is new. The time of a key
// that was certified before is extended.
func (r *Root) note(c *attest.Certificate) bool {
	one := Certified{c.Node, c.Key, c.Epoch, c.Time.UTC(), c.Expires.UTC()}
	kept := slices.DeleteFunc(slices.Clone(r.Nodes), func(o Certified) bool {
		joined := o.Key == one.Key && o.Name == one.Name && !o.Before.Before(one.After) &&
			!one.Before.Before(o.After)
		if joined && o.After.Before(one.After) {
			one.After = o.After.UTC()
		}
		if joined && o.Before.After(one.Before) {
			one.Before = o.Before.UTC()
		}
		return joined
	})
	if len(kept) >= maxNodes { // the least useful one goes
		least := slices.MinFunc(kept, func(a, b Certified) int {
			return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), a.Before.Compare(b.Before))
		})
		kept = slices.DeleteFunc(kept, func(o Certified) bool { return o == least })
	}
	kept = append(kept, one)
	slices.SortFunc(kept, func(a, b Certified) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), a.After.Compare(b.After),
			strings.Compare(a.Key, b.Key))
	})
	if slices.EqualFunc(kept, r.Nodes, func(a, b Certified) bool {
		return a.Name == b.Name && a.Key == b.Key && a.Epoch == b.Epoch && a.After.Equal(b.After) &&
			a.Before.Equal(b.Before)
	}) {
		return false
	}
	r.Nodes = kept
	return true
}

// SetRoot makes h a host whose nodes are trusted by a root, "TYPE BASE64", in place of its pins. What
// the client knows of the root from this and other hosts counts: its latest epoch, and the root that
// took its place.
func (l *List) SetRoot(h *Host, root string) {
	h.Nodes = nil
	r := Root{Key: root}
	if h.Root != nil && (h.Root.Key == root || slices.Contains(h.Root.Former, root)) {
		r = *h.Root
	}
	l.update(&r)
	h.Root = &r
}

// update brings r up to what the hosts of the list know, and reports whether that is more.
func (l *List) update(r *Root) (changed bool) {
	for range len(l.Hosts) + 1 { // each can lead to another one
		for _, name := range slices.Sorted(maps.Keys(l.Hosts)) {
			o := l.Hosts[name].Root
			switch {
			case o == nil:
			case o.Key == r.Key && o.Epoch > r.Epoch:
				r.Epoch, changed = o.Epoch, true
			case slices.Contains(o.Former, r.Key) && !slices.Contains(r.Former, o.Key):
				r.follow(o.Key, o.Former[slices.Index(o.Former, r.Key):])
				r.Epoch, changed = max(r.Epoch, o.Epoch), true
			}
		}
	}
	return changed
}

// Take makes l the list next, and keeps what l knows of roots.
func (l *List) Take(next *List) {
	for name, h := range next.Hosts {
		if h.Root == nil {
			continue
		}
		l.SetRoot(h, h.Root.Key)
		if o := l.Hosts[name]; len(h.Root.Nodes) == 0 && o != nil && o.Root != nil && o.Root.Key == h.Root.Key {
			h.Root.Nodes = o.Root.Nodes
		}
	}
	*l = *next
}

// follow makes next the root in place of the former ones, the last of which named it.
func (r *Root) follow(next string, former []string) {
	r.Former = append(slices.DeleteFunc(slices.Clone(r.Former), func(o string) bool {
		return slices.Contains(former, o)
	}), former...)
	r.Former = r.Former[max(0, len(r.Former)-maxFormer):]
	r.Key = next
}

// believe returns what the client knows after it has seen a chain. Errors have a channel.Fault.
func (r *Root) believe(c *attest.Chain, now time.Time) (attest.Root, error) {
	if slices.Contains(r.Former, c.Signer) {
		return attest.Root{}, attest.Replaced(c.Signer, r.Key)
	}
	return c.Check(attest.Root{Key: r.Key, Epoch: r.Epoch}, now)
}

// Learn checks what a node of h shows, and notes the certificate, its epoch, and the root that has
// followed h's, for all hosts of the roots in it. What another host has shown of a root counts too. It
// reports whether something was new. Errors have a channel.Fault.
func (l *List) Learn(h *Host, c *attest.Chain, now time.Time) (bool, error) {
	changed := l.update(h.Root)
	next, err := h.Root.believe(c, now)
	if err != nil {
		return false, err
	}
	roots := c.Roots()
	moved := []*Root{h.Root}
	for _, o := range l.Hosts {
		if o.Root == nil || o.Root == h.Root || !slices.Contains(roots, o.Root.Key) {
			continue
		}
		if _, err := o.Root.believe(c, now); err != nil {
			return false, err
		}
		moved = append(moved, o.Root)
	}
	for _, o := range moved {
		if at := slices.Index(roots, o.Key); o.Key != next.Key {
			o.follow(next.Key, roots[at:len(roots)-1])
			changed = true
		}
		changed = changed || o.Epoch != next.Epoch
		o.Epoch = next.Epoch
	}
	return h.Root.note(&c.Certificate) || changed, nil
}

// rooted trusts the keys of trust, and the node that a certificate is about.
type rooted struct {
	trust *key.Trust
	node  string
	chain *attest.Chain
	why   error // there is no certificate to believe
}

// Vouch implements attest.Pins.
func (r *rooted) Vouch(k key.Public, role key.Role, at time.Time) (key.Entry, error) {
	e, err := r.trust.Vouch(k, role, at)
	switch {
	case err == nil || r.trust.Revoked(k.ID()):
		return e, err
	case r.why != nil:
		return e, r.why
	}
	return key.Entry{Key: k, Role: role, Name: r.chain.Node}, r.chain.CheckNode(r.node, k)
}

// certified returns the keys of trust, and the node that the untrusted certificate is about, if the
// root of the host with a name vouches for it. What it shows of the root is remembered first.
func (s Store) certified(ctx context.Context, trust *key.Trust, name string, h *Host,
	node string, certificate []byte) (attest.Pins, error) {
	r := &rooted{trust: trust, node: node}
	if len(certificate) == 0 {
		r.why = attest.Uncertified(h.Root.Key)
		return r, nil
	}
	if r.chain, r.why = attest.OpenChain(ctx, certificate); r.why != nil {
		return r, nil
	}
	now := time.Now()
	list, err := s.Load()
	if err != nil {
		return nil, err
	}
	if changed := r.learn(list, current(list, name, h), now); !changed || r.why != nil {
		return r, nil
	}
	return r, s.Change(ctx, func(l *List) error { // another process may have seen a later epoch
		r.learn(l, current(l, name, h), now)
		return nil
	})
}

// learn notes in a list what the chain shows of the root of one of its hosts, and reports whether that
// is new. It sets why if the chain is not to be believed.
func (r *rooted) learn(l *List, one *Host, now time.Time) (changed bool) {
	l.update(one.Root)
	if r.why = CheckRevoked(r.trust, r.chain, one.Root.Key); r.why == nil {
		changed, r.why = l.Learn(one, r.chain, now)
	}
	return changed
}

// current returns the host with the name of h in a list, or a copy of h if the list has it with no
// root, or not, any more.
func current(l *List, name string, h *Host) *Host {
	if o := l.Hosts[name]; o != nil && o.Root != nil && o.URL == h.URL {
		return o
	}
	one, root := *h, *h.Root
	one.Root = &root
	return &one
}

// CheckRevoked reports a chain that hangs on a root which the user has revoked, for a client that pins
// one of its roots: those that came before it do not matter. The error has a channel.Fault.
func CheckRevoked(t *key.Trust, c *attest.Chain, pinned string) error {
	roots := c.Roots()
	if at := slices.Index(roots, pinned); at >= 0 {
		roots = roots[at:]
	}
	return revokedRoot(t, append(roots, pinned))
}

// revokedRoot reports a root that the user has revoked.
func revokedRoot(t *key.Trust, roots []string) error {
	for _, text := range roots {
		k, err := key.Parse(text)
		if err != nil {
			return err
		}
		if t.Revoked(k.ID()) {
			return attest.Revoked(k)
		}
	}
	return nil
}
