package hosts

import (
	"maps"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// Trusted returns the keys that named names (key.Ring.ListOf), or else those of the lists of the
// state directory, and of the nodes that are pinned there, which sign what ran at them. What a list
// says about a key counts more than a pin. The state directory need not exist. Errors are those of
// the files.
func Trusted(dir *statedir.Dir, named []string) (*key.Trust, error) {
	t, err := key.Ring{Dir: dir}.ListOf(named)
	if err != nil || len(named) > 0 {
		return t, err
	}
	list, err := Store{Dir: dir}.Load()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(list.Hosts)) {
		if err := list.Hosts[name].trust(t, name); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Pinned reports whether the client knows whom it trusts behind the host.
func (h *Host) Pinned() bool { return len(h.Nodes) > 0 || h.Root != nil }

// trust adds the keys of the host's nodes to t, and those that its root certified, except those that
// t knows.
func (h *Host) trust(t *key.Trust, name string) error {
	known := t.Entries()
	add := func(e key.Entry) {
		e.Host = name
		if !slices.ContainsFunc(known, func(o key.Entry) bool { return o.Key.Equal(e.Key) }) {
			t.Add(e)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(h.Nodes)) {
		for _, text := range h.Nodes[node] {
			k, err := key.Parse(text)
			if err != nil {
				return err
			}
			add(key.Entry{Key: k, Role: key.Node, Name: node})
		}
	}
	if h.Root == nil || revokedRoot(t, []string{h.Root.Key}) != nil {
		return nil
	}
	certified, err := h.Root.Entries()
	for _, e := range certified {
		add(e)
	}
	return err
}

// A Witness says whom a client trusts when it lets a node verify turns.
type Witness struct {
	trust *key.Trust
	again func() (*Witness, error) // reads the files again
}

// Witness returns whom this client trusts for the turns of a host: its own lists, and the pins of
// the host (Client.Server). Without any pin it is nil: the node's own lists count.
func (c Client) Witness(host string) (*Witness, error) {
	store, err := c.store()
	if err != nil {
		return nil, err
	}
	list, err := store.Load()
	if err != nil {
		return nil, err
	}
	name, h, err := list.Find(host)
	if turnstone.KindOf(err) == turnstone.KindNotFound || err == nil && !h.Pinned() {
		return nil, nil // a socket or a port of this machine, which needs no pin
	}
	if err != nil {
		return nil, err
	}
	t, err := key.Ring{Dir: store.Dir}.List()
	if err == nil {
		err = h.trust(t, name)
	}
	return &Witness{t, func() (*Witness, error) { return c.Witness(host) }}, err
}

// Keys returns the trusted keys, as turnstone.VerifyRequest.Trust has them. They are more when a
// channel has shown a certificate since the last call.
func (w *Witness) Keys() (all []string) {
	if now, err := w.again(); err == nil && now != nil {
		w.trust = now.trust
	}
	for _, e := range w.trust.Entries() {
		if w.trust.Revoked(e.Key.ID()) ||
			len(e.Namespaces) > 0 && !slices.Contains(e.Namespaces, key.Namespace) {
			continue
		}
		roles := []key.Role{e.Role}
		if e.Role == "" {
			roles = []key.Role{key.Node, key.Caller}
		}
		for _, e.Role = range roles {
			all = append(all, e.Line())
		}
	}
	return all
}

// Explain adds to a report of those keys which of them a pin vouches for.
func (w *Witness) Explain(r *turnstone.VerifyReport) {
	pinned := map[string]string{}
	for _, e := range w.trust.Entries() {
		if e.Host != "" {
			pinned[e.Key.ID()] = e.Host
		}
	}
	for i := range r.Turns {
		for j := range r.Turns[i].Vouchers {
			v := &r.Turns[i].Vouchers[j]
			v.Host = ""
			if v.Role == string(key.Node) {
				v.Host = pinned[v.Key]
			}
		}
	}
}
