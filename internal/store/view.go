package store

import (
	"context"
	"errors"
	"iter"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/codec"
	"turnstone.dev/turnstone/internal/store/seal"
)

// In returns the store as the domain d sees it: what is put is sealed in d, and what is read is
// searched in d, then in the domains of also, and then among public objects. Objects are asked for
// by the digests of their plaintext. The views of a store share all else, and need not be closed.
// With a nil d, what is put is public, as in the view that Open returns.
func (s *Store) In(d *seal.Domain, also ...*seal.Domain) *Store {
	return &Store{core: s.core, domain: d, also: also}
}

// domainID returns the ID of the view's domain; zero for the public one.
func (s *Store) domainID() seal.ID {
	if s.domain == nil {
		return seal.ID{}
	}
	return s.domain.ID()
}

// nameOf returns the name under which a batch of the view stores the object with the digest i.
func (s *Store) nameOf(i id) (id, error) {
	if s.domain == nil {
		return i, nil
	}
	name, err := s.domain.NameOf(i)
	return name, err
}

// A target is a name that an object may have.
type target struct {
	id     id
	domain seal.ID
}

// targets returns the names of the object with the digest i, in the order of the search.
func (s *Store) targets(i id) ([]target, error) {
	var all []target
	for d := range s.domains() {
		name, err := d.NameOf(i)
		if err != nil {
			return nil, err
		}
		all = append(all, target{name, d.ID()})
	}
	return append(all, target{id: i}), nil
}

// domains yields the domains that the view can open.
func (s *Store) domains() iter.Seq[*seal.Domain] {
	return func(yield func(*seal.Domain) bool) {
		if s.domain != nil && !yield(s.domain) {
			return
		}
		for _, d := range s.also {
			if !yield(d) {
				return
			}
		}
	}
}

// opener returns the view's domain with the ID; nil if it has none.
func (s *Store) opener(of seal.ID) *seal.Domain {
	for d := range s.domains() {
		if d.ID() == of {
			return d
		}
	}
	return nil
}

// findTarget returns the places of t. Places in packs of other domains are not among them: err is
// of kind Unavailable if there are only such.
func (s *Store) findTarget(ctx context.Context, t target) ([]place, error) {
	all, err := s.find(ctx, t.id)
	if err != nil {
		return nil, err
	}
	var places []place
	for _, p := range all {
		if p.domain == t.domain {
			places = append(places, p)
		}
	}
	if len(places) == 0 && len(all) > 0 {
		return nil, seal.Locked("store.get", all[0].domain)
	}
	return places, nil
}

// unpack returns the verified object with the digest i from its stored form, which is overwritten
// if it is sealed.
func (s *Store) unpack(stored []byte, p place, i id) ([]byte, error) {
	if !p.sealed {
		return decode(s.codec, stored, p.packEntry)
	}
	b, digest, err := s.unseal(stored, p)
	if err == nil && digest != i {
		return nil, codec.ErrDigest
	}
	return b, err
}

// decode returns the verified public object e from its stored form.
func decode(c *codec.Codec, stored []byte, e packEntry) ([]byte, error) {
	b, digest, err := c.Expand(stored, int(e.size))
	if err == nil && digest != e.id {
		return nil, codec.ErrDigest
	}
	return b, err
}

// unseal opens a sealed object of the view's domain, and returns its digest.
func (s *Store) unseal(stored []byte, p place) (b []byte, digest id, err error) {
	d := s.opener(p.domain)
	if d == nil {
		return nil, id{}, seal.Locked("store.get", p.domain)
	}
	size, rest, err := d.Open(stored, p.id)
	if err != nil {
		return nil, id{}, err
	}
	return s.codec.Expand(rest, size)
}

// intact verifies the object at p as far as the view can: a sealed object of another domain by its
// checksum.
func (s *Store) intact(ctx context.Context, p place) error {
	stored, err := s.load(ctx, p)
	if err != nil {
		return err
	}
	err = s.verify(stored, p)
	if err != nil && s.packs.Again(ctx, packName(p.pack), stored, int64(p.off)) {
		err = s.verify(stored, p)
	}
	return damagedUnless("store.get", subject(p), err)
}

// verify is intact with the stored form, which is overwritten if the view can open it.
func (s *Store) verify(stored []byte, p place) error {
	if !p.sealed {
		_, err := decode(s.codec, stored, p.packEntry)
		return err
	}
	if checksum(stored) != p.sum {
		return errSum
	}
	d := s.opener(p.domain)
	if d == nil {
		return nil
	}
	_, digest, err := s.unseal(stored, p)
	if err != nil {
		return err
	}
	name, err := d.NameOf(digest)
	if err == nil && name != p.id {
		return codec.ErrDigest
	}
	return err
}

// damagedUnless returns an error of kind Integrity, unless err says that the key is not here.
func damagedUnless(op turnstone.Op, subject string, err error) error {
	if err == nil || turnstone.KindOf(err) == turnstone.KindUnavailable {
		return err
	}
	return damaged(op, subject, err)
}

// errSum reports a sealed object whose stored bytes were changed.
var errSum = errors.New("the sealed object does not match its checksum")

// A DomainUsage is the amount of data of a domain in the store.
type DomainUsage struct {
	Packs   int   `json:"packs"`
	Objects int   `json:"objects"`
	Stored  int64 `json:"stored_bytes"` // of the packs
}

// Domains returns the domains that have objects in the store. It needs no keys.
func (s *Store) Domains(ctx context.Context) (map[seal.ID]DomainUsage, error) {
	v, err := s.packsView(ctx)
	if err != nil {
		return nil, err
	}
	all := map[seal.ID]DomainUsage{}
	for _, p := range v.packs() {
		if !p.domain.IsZero() {
			u := all[p.domain]
			u.Packs++
			u.Objects += int(p.objects)
			u.Stored += p.size
			all[p.domain] = u
		}
	}
	return all, nil
}

// HasName reports whether the store has an object of any domain, or a public object, with the name,
// without reading it. It needs no key.
func (s *Store) HasName(ctx context.Context, name turnstone.Digest) (bool, error) {
	i, err := parseID("store.has", name)
	if err != nil {
		return false, err
	}
	for try := 0; ; try++ {
		places, err := s.find(ctx, i)
		if ok := len(places) > 0 && !s.bad.Has(i); ok || err != nil || try == 1 {
			return ok && err == nil, err
		}
		if err := s.refresh(ctx); err != nil {
			return false, err
		}
	}
}

// Name returns the name of the object with the digest d in the view's domain, in the form of a
// digest; d itself in the public view. Names are what Batch.Needs lists and a Mark keeps.
func (s *Store) Name(d turnstone.Digest) (turnstone.Digest, error) {
	i, err := parseID("store.name", d)
	if err != nil {
		return "", err
	}
	name, err := s.nameOf(i)
	return name.digest(), err
}
