// Package authority is an operator's root: the key that signs certificates of nodes, and the record
// of what it signed. docs/decisions/0023-operators-root.md has the reasons.
package authority

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
)

// An Authority is the operator's root of a state directory. It is safe for concurrent use, also by
// several processes.
type Authority struct{ Ring key.Ring }

// A Request is about a node to certify.
type Request struct {
	Key  key.Public
	Name string        // of the node; empty: any
	From time.Time     // zero: now
	For  time.Duration // to the expiry
}

// A Signed is a certificate as nodes show it.
type Signed struct {
	attest.Certificate
	Chain []byte // the content of the file that node.certificate names
}

// Make makes the root. An existing one is an error of kind Invalid. An empty passphrase leaves its
// private key without encryption.
func (a Authority) Make(ctx context.Context, passphrase []byte) (*Record, error) {
	l, err := a.Ring.LockRoot(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if _, err := a.load(); turnstone.KindOf(err) != turnstone.KindNotFound {
		if err == nil {
			err = turnstone.Errorf("root.make", turnstone.KindInvalid, a.path(),
				"there is a root already").WithHint("replace it with turn host root rotate")
		}
		return nil, err
	}
	s, err := a.Ring.MakeRoot(1, false, passphrase)
	if err != nil {
		return nil, err
	}
	r := &Record{Root: s.String(), Epoch: 1}
	return r, a.save(r)
}

// Show returns the root and what it signed. The error is of kind NotFound if there is none.
func (a Authority) Show() (*Record, error) { return a.load() }

// Sign certifies a node. A later certificate of the same name with another key takes the place of the
// earlier one in the record; both are valid.
func (a Authority) Sign(ctx context.Context, q Request) (*Signed, error) {
	var signed *Signed
	err := a.change(ctx, func(r *Record, root *key.Signer) (err error) {
		if r.revokes(q.Key.ID()) {
			return turnstone.Errorf("root.sign", turnstone.KindInvalid, "key "+q.Key.ID(),
				"is revoked").WithHint("make a new key on the node: turn key rotate node")
		}
		if q.Name != "" {
			if err := turnstone.CheckName("node", q.Name); err != nil {
				return err
			}
		}
		from := q.From
		if from.IsZero() {
			from = time.Now()
		}
		c := attest.Certificate{Node: q.Name, Key: q.Key.String(), Epoch: r.Epoch,
			Time:    from.UTC().Truncate(time.Second),
			Expires: from.Add(q.For).UTC().Truncate(time.Second), Signer: r.Root}
		if signed, err = r.sign(ctx, c, root); err != nil {
			return err
		}
		return r.note(Issued{Node: c.Node, Key: c.Key, Time: c.Time, Expires: c.Expires}, time.Now())
	})
	if err != nil {
		return nil, err
	}
	return signed, nil
}

// Revoke raises the epoch: clients that see a certificate of the new one refuse all older ones. The
// nodes that named names, by name, fingerprint or "TYPE BASE64", get no certificate any more, and are
// not among those that it returns new certificates of. epoch is the new epoch; 0: the next.
func (a Authority) Revoke(ctx context.Context, named []string, epoch uint64) (
	*Record, []*Signed, error) {
	var all []*Signed
	var now *Record
	err := a.change(ctx, func(r *Record, root *key.Signer) (err error) {
		if epoch == 0 {
			epoch = r.Epoch + 1
		}
		if epoch <= r.Epoch || epoch > attest.MaxEpoch {
			return turnstone.Errorf("root.revoke", turnstone.KindInvalid, fmt.Sprint("epoch ", epoch),
				"is not between %d and %d", r.Epoch+1, attest.MaxEpoch)
		}
		for _, name := range named {
			if err := r.revoke(strings.TrimSpace(name), epoch); err != nil {
				return err
			}
		}
		now, r.Epoch = r, epoch
		all, err = r.renew(ctx, root)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return now, all, nil
}

// HasPassphrase reports whether the root's private key is encrypted.
func (a Authority) HasPassphrase() (bool, error) {
	r, err := a.load()
	if err != nil {
		return false, err
	}
	return a.Ring.RootHasPassphrase(r.generation())
}

// Rotate makes a new root, which the old one names as its successor, and returns certificates of the
// nodes by the new one. A key that is in the place of the new one is renamed: the record may be an
// older copy, and the key that of the root which clients trust.
func (a Authority) Rotate(ctx context.Context, passphrase []byte) (*Record, []*Signed, error) {
	var all []*Signed
	var now *Record
	err := a.change(ctx, func(r *Record, old *key.Signer) error {
		next, err := a.Ring.MakeRoot(r.generation()+1, true, passphrase)
		if err != nil {
			return err
		}
		envelope, err := attest.SignSuccession(ctx, attest.Succession{Next: next.String(),
			Epoch: r.Epoch + 1, Time: time.Now()}, old)
		if err != nil {
			return err
		}
		r.Root, r.Epoch = next.String(), r.Epoch+1
		r.Successions = append(r.Successions, string(envelope))
		now = r
		all, err = r.renew(ctx, next)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return now, all, nil
}

// change calls f with the record and the root's key, and stores the record if f succeeds.
func (a Authority) change(ctx context.Context, f func(*Record, *key.Signer) error) error {
	l, err := a.Ring.LockRoot(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	r, err := a.load()
	if err != nil {
		return err
	}
	root, err := a.Ring.RootKey(r.generation())
	if err != nil {
		return err
	}
	if root.String() != r.Root {
		return turnstone.Errorf("root.load", turnstone.KindInvalid, a.path(),
			"names the root %s, and the key's file has %s", r.ID(), root.ID()).
			WithHint("restore both files from the same copy")
	}
	if err := f(r, root); err != nil {
		return err
	}
	return a.save(r)
}

// sign signs a certificate.
func (r *Record) sign(ctx context.Context, c attest.Certificate, root *key.Signer) (*Signed, error) {
	envelope, err := attest.SignCertificate(ctx, c, root)
	if err != nil {
		return nil, err
	}
	var successions [][]byte
	for _, s := range r.Successions {
		successions = append(successions, []byte(s))
	}
	text := attest.JoinChain(envelope, successions)
	if _, err := attest.OpenChain(ctx, text); err != nil {
		return nil, turnstone.NewError("root.sign", turnstone.KindInvalid, "the root's record", err).
			WithHint("restore keys/root.json from its copy")
	}
	return &Signed{c, text}, nil
}

// renew signs the certificates of the record again, with the record's epoch and their own times,
// except those that have expired. Of several about one node, the earliest counts.
func (r *Record) renew(ctx context.Context, root *key.Signer) (all []*Signed, err error) {
	now := time.Now()
	for _, n := range r.Nodes {
		if !n.Expires.After(now) || slices.ContainsFunc(all, func(o *Signed) bool {
			return o.Node == n.Node && o.Key == n.Key
		}) {
			continue
		}
		s, err := r.sign(ctx, attest.Certificate{Node: n.Node, Key: n.Key, Epoch: r.Epoch,
			Time: n.Time, Expires: n.Expires, Signer: r.Root}, root)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// note adds a certificate to the record, in place of those of the same name with another key. What it
// says of the same name and key is joined: a certificate that was signed in advance, or for a short
// time, does not cost a node the one that it has when all are signed again.
func (r *Record) note(n Issued, now time.Time) error {
	r.Nodes = slices.DeleteFunc(r.Nodes, func(o Issued) bool {
		switch {
		case o.Node != n.Node:
			return false
		case o.Key != n.Key:
			return n.Node != ""
		case o.Expires.Before(n.Time) || n.Expires.Before(o.Time):
			return !o.Expires.After(now)
		}
		n.join(o, now)
		return true
	})
	if len(r.Nodes) >= maxNodes {
		return turnstone.Errorf("root.sign", turnstone.KindExhausted, "the root",
			"has signed %d certificates, which is the limit", maxNodes).
			WithHint("revoke those that are not in use with turn host root revoke")
	}
	r.Nodes = append(r.Nodes, n)
	slices.SortFunc(r.Nodes, func(a, b Issued) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Key, b.Key), a.Time.Compare(b.Time))
	})
	return nil
}

// join extends n by the time of o, as far as one certificate can have it.
func (n *Issued) join(o Issued, now time.Time) {
	if o.Time.Before(n.Time) {
		n.Time = o.Time
	}
	if o.Expires.After(n.Expires) {
		n.Expires = o.Expires
	}
	if earliest := n.Expires.Add(-attest.MaxCertificateValidity); !earliest.After(n.Time) {
		return
	} else if earliest.After(now) {
		n.Expires = n.Time.Add(attest.MaxCertificateValidity)
	} else {
		n.Time = earliest
	}
}

// revokes reports whether the key with a fingerprint is revoked.
func (r *Record) revokes(id string) bool {
	return slices.ContainsFunc(r.Revoked, func(o Revoked) bool { return o.Key == id })
}

// revoke notes that the nodes that name names get no certificate any more.
func (r *Record) revoke(name string, epoch uint64) error {
	var ids []string
	node := ""
	if k, _, err := key.ParsePublic(name); err == nil {
		name = k.ID()
	}
	for _, n := range r.Nodes {
		if n.Node != "" && n.Node == name || n.ID() == name {
			ids, node = append(ids, n.ID()), n.Node
		}
	}
	if len(ids) == 0 {
		if !fingerprint(name) {
			return turnstone.Errorf("root.revoke", turnstone.KindNotFound, "node "+name,
				"is not certified").WithHint("name a node or a fingerprint of turn host root show")
		}
		ids = []string{name} // such as an earlier key of a node
	}
	for _, id := range ids {
		if r.revokes(id) {
			continue
		}
		if len(r.Revoked) >= maxRevoked {
			return turnstone.Errorf("root.revoke", turnstone.KindExhausted, "the root",
				"has revoked %d keys, which is the limit", maxRevoked)
		}
		r.Revoked = append(r.Revoked, Revoked{Key: id, Node: node, Epoch: epoch,
			Time: time.Now().UTC().Truncate(time.Second)})
	}
	r.Nodes = slices.DeleteFunc(r.Nodes, func(n Issued) bool { return slices.Contains(ids, n.ID()) })
	return nil
}
