package store_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/seal"
)

// domainOf returns the domain whose key is n repeated.
func domainOf(t testing.TB, n byte) *seal.Domain {
	t.Helper()
	k, err := seal.ParseKey(bytes.Repeat([]byte{n}, seal.KeySize))
	check(t, err)
	d, err := seal.New(k)
	check(t, err)
	return d
}

// in returns the fixture's view of a domain.
func (f *fixture) in(d *seal.Domain, also ...*seal.Domain) *fixture {
	return &fixture{Store: f.In(d, also...), dir: f.dir, bl: f.bl}
}

// fill puts objects and contents in one batch, and returns what it needs.
func fill(t testing.TB, s *fixture, objects, contents [][]byte) (needs []turnstone.Digest,
	put []turnstone.Content) {
	t.Helper()
	b, err := s.Begin(t.Context())
	check(t, err)
	for _, o := range objects {
		_, err := b.Put(t.Context(), o)
		check(t, err)
	}
	for _, c := range contents {
		put = append(put, putContent(t, b, c))
	}
	check(t, b.Flush(t.Context()))
	needs = b.Needs()
	check(t, b.Close())
	return needs, put
}

func wantErr(t testing.TB, err error, want turnstone.Kind) {
	t.Helper()
	if err == nil || turnstone.KindOf(err) != want {
		t.Errorf("got %v of kind %q, want kind %q", err, turnstone.KindOf(err), want)
	}
}

// TestSealedRoundTrip puts all kinds of contents in a domain, and reads them before and after the
// flush, and in another process's store. Other views have nothing of it.
func TestSealedRoundTrip(t *testing.T) {
	root := t.TempDir()
	a, b := domainOf(t, 1), domainOf(t, 2)
	s := open(t, root).in(a)
	batch := begin(t, s)
	var contents []turnstone.Content
	for _, p := range samples() {
		c := putContent(t, batch, p)
		if c.Digest != turnstone.DigestBytes(p) || c.Size != int64(len(p)) {
			t.Errorf("content of %d bytes is %+v", len(p), c)
		}
		contents = append(contents, c)
		wantContent(t, batch, c, p)
	}
	object := text(3<<20, 9)
	put(t, batch, object)
	wantObject(t, batch, object)
	check(t, batch.Flush(t.Context()))
	wantObject(t, batch, object)
	needs := batch.Needs()
	check(t, batch.Close())
	again := open(t, root)
	for i, p := range samples() {
		wantContent(t, s, contents[i], p)
		wantContent(t, again.in(a), contents[i], p)
		for _, other := range []*fixture{again, again.in(b), again.in(nil)} {
			_, err := other.OpenContent(t.Context(), contents[i])
			wantErr(t, err, turnstone.KindNotFound)
			if ok, err := other.Has(t.Context(), contents[i].Digest); ok || err != nil {
				t.Errorf("another view has it: %v", err)
			}
		}
	}
	wantObject(t, again.in(a), object)
	// Every need is an object, and every object is needed.
	u, err := again.Usage(t.Context())
	check(t, err)
	if u.Objects != len(needs) {
		t.Errorf("%d objects, %d needs", u.Objects, len(needs))
	}
	for _, n := range needs {
		if ok, err := again.HasName(t.Context(), n); !ok || err != nil {
			t.Errorf("%s is needed and not there: %v", n, err)
		}
		_, err := again.Get(t.Context(), n) // no digest, but a name
		wantErr(t, err, turnstone.KindUnavailable)
	}
	for _, f := range []*fixture{again, again.in(a), again.in(b)} {
		fsckClean(t, f)
	}
	domains, err := again.Domains(t.Context())
	check(t, err)
	if d := domains[a.ID()]; len(domains) != 1 || d.Objects != u.Objects || d.Packs != u.Packs ||
		d.Stored != u.Stored {
		t.Errorf("the domains are %+v, the usage %+v", domains, u)
	}
	// Nothing new is written, and the needs are the same.
	again2, _ := fill(t, again.in(a), [][]byte{object}, samples())
	if !slices.Equal(again2, needs) {
		t.Errorf("put again, %d objects are needed, not %d", len(again2), len(needs))
	}
	if now, err := again.Usage(t.Context()); err != nil || now != u {
		t.Errorf("put again: %+v is now %+v, %v", u, now, err)
	}
}

// TestPublicIsVisible reads public objects in a view, which puts its own copies.
func TestPublicIsVisible(t *testing.T) {
	s := open(t, t.TempDir())
	v := s.in(domainOf(t, 1))
	p, large := text(2000, 1), noise(3<<20, 1)
	public, contents := fill(t, s, [][]byte{p}, [][]byte{large})
	wantObject(t, v, p)
	wantContent(t, v, contents[0], large)
	if ok, err := v.Has(t.Context(), turnstone.DigestBytes(p)); !ok || err != nil {
		t.Errorf("Has: %v, %v", ok, err)
	}
	if slices.Index(public, turnstone.DigestBytes(p)) < 0 {
		t.Error("a public object is not needed by its digest")
	}
	needs, sealedContents := fill(t, v, [][]byte{p}, [][]byte{large})
	for _, n := range needs {
		if slices.Contains(public, n) {
			t.Errorf("the domain needs the public object %s", n)
		}
	}
	if name, err := v.Name(turnstone.DigestBytes(p)); err != nil || !slices.Contains(needs, name) {
		t.Errorf("the object's name %s is not needed: %v", name, err)
	}
	// Without the public copies, and then without the sealed ones.
	_, err := s.Sweep(t.Context(), keepAll(needs...))
	check(t, err)
	wantObject(t, v, p)
	wantContent(t, v, sealedContents[0], large)
	_, err = s.Get(t.Context(), turnstone.DigestBytes(p))
	wantErr(t, err, turnstone.KindNotFound)
	fill(t, s, [][]byte{p}, [][]byte{large})
	_, err = v.Sweep(t.Context(), keepAll(public...)) // a sweep of any view concerns all
	check(t, err)
	wantObject(t, v, p)
	wantContent(t, v, contents[0], large)
	if d, err := s.Domains(t.Context()); err != nil || len(d) != 0 {
		t.Errorf("domains remain: %v, %v", d, err)
	}
	fsckClean(t, s)
}

// TestEqualContentsDoNotShow puts the same contents in two domains and publicly: no name, no size of
// a sealed object in a sequence, and no list of chunks is the same.
func TestEqualContentsDoNotShow(t *testing.T) {
	var lists []turnstone.Digest
	var sequences [][]int
	var all [][]turnstone.Digest
	large := noise(24<<20, 3)
	for _, d := range []*seal.Domain{nil, domainOf(t, 1), domainOf(t, 2)} {
		s := open(t, t.TempDir()).in(d)
		needs, contents := fill(t, s, [][]byte{text(1000, 1)}, [][]byte{large})
		chunks, err := s.ContentObjects(t.Context(), contents[0])
		check(t, err)
		var sizes []int
		for _, c := range chunks[1:] {
			p, err := s.Get(t.Context(), c)
			check(t, err)
			sizes = append(sizes, len(p))
		}
		lists = append(lists, contents[0].Chunks)
		sequences = append(sequences, sizes)
		all = append(all, needs)
	}
	for i := range all {
		for k := range i {
			common := 0
			for _, n := range sequences[i] {
				if slices.Contains(sequences[k], n) {
					common++
				}
			}
			if lists[i] == lists[k] || common > len(sequences[i])/10 {
				t.Errorf("%d and %d: %d of %d chunks have the same sizes", i, k, common,
					len(sequences[i]))
			}
			for _, n := range all[i] {
				if slices.Contains(all[k], n) {
					t.Errorf("%d and %d: both have %s", i, k, n)
				}
			}
		}
	}
}

// TestNothingInTheClear searches all files of a store for contents, in the clear and compressed, and
// for digests, binary and in hexadecimal.
func TestNothingInTheClear(t *testing.T) {
	root := t.TempDir()
	s := open(t, root).in(domainOf(t, 1))
	marker := "the-marker-of-this-test"
	objects := [][]byte{[]byte(marker), []byte(strings.Repeat(marker, 50)),
		append(noise(5000, 1), marker...)}
	contents := [][]byte{append(noise(3<<20, 2), marker...), []byte(marker + "2")}
	fill(t, s, objects, contents)
	var secrets [][]byte
	secret := func(p []byte) {
		sum := sha256.Sum256(p)
		secrets = append(secrets, sum[:], []byte(hex.EncodeToString(sum[:])))
	}
	secrets = append(secrets, []byte(marker))
	for _, p := range append(objects, contents...) {
		secret(p)
		if len(p) > 100 {
			secrets = append(secrets, p[:16])
		}
	}
	c := putContent(t, begin(t, s), contents[0])
	chunks, err := s.ContentObjects(t.Context(), c)
	check(t, err)
	for _, d := range chunks {
		raw, err := hex.DecodeString(d.Hex())
		check(t, err)
		secrets = append(secrets, raw, []byte(d.Hex()))
	}
	// A damaged object is listed by its name.
	pack := files(t, filepath.Join(root, "blobs", "packs"), "*")[0]
	damage(t, pack, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	_, err = s.Fsck(t.Context(), func(store.Problem) {})
	check(t, err)
	if _, err := os.Stat(filepath.Join(root, "store", "damaged")); err != nil {
		t.Error(err)
	}
	found := 0
	check(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		found++
		b, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(b, secret) || strings.Contains(path, string(secret)) {
				t.Errorf("%s contains %q", path, secret)
			}
		}
		return err
	}))
	if found < 5 {
		t.Errorf("%d files were searched", found)
	}
}

// TestWrongKey reads a domain with another key, and with an erased one.
func TestWrongKey(t *testing.T) {
	s := open(t, t.TempDir())
	d := domainOf(t, 1)
	v := s.in(d)
	p := text(1000, 1)
	_, contents := fill(t, v, [][]byte{p}, [][]byte{p, noise(2<<20, 1)})
	_, err := seal.Open(d.ID(), seal.NewKey())
	wantErr(t, err, turnstone.KindUnavailable)
	b := begin(t, v)
	d.Erase()
	_, err = v.Get(t.Context(), turnstone.DigestBytes(p))
	wantErr(t, err, turnstone.KindUnavailable)
	_, err = v.Has(t.Context(), turnstone.DigestBytes(p))
	wantErr(t, err, turnstone.KindUnavailable)
	for _, c := range contents {
		_, err = v.OpenContent(t.Context(), c)
		wantErr(t, err, turnstone.KindUnavailable)
	}
	_, err = b.Put(t.Context(), []byte("new"))
	wantErr(t, err, turnstone.KindUnavailable)
	_, err = b.PutContent(t.Context(), bytes.NewReader(make([]byte, 3<<20)), 3<<20)
	wantErr(t, err, turnstone.KindUnavailable)
	check(t, b.Close())
	_, err = v.Fsck(t.Context(), func(p store.Problem) { t.Errorf("%+v", p) })
	wantErr(t, err, turnstone.KindUnavailable)
	fsckClean(t, s)
	if _, err := v.Sweep(t.Context(), keepAll()); err != nil {
		t.Errorf("a sweep needs the key: %v", err)
	}
}

// TestSealedDamage changes, truncates and exchanges sealed objects. With and without the key, fsck
// finds what was changed; a reader returns nothing of it; and putting the object again heals it.
func TestSealedDamage(t *testing.T) {
	d := domainOf(t, 1)
	objects := [][]byte{noise(3000, 1), noise(3000, 2), noise(3000, 3)}
	for name, change := range map[string]func(b []byte) []byte{
		"a bit of an object":    func(b []byte) []byte { b[24+1500] ^= 4; return b },
		"a bit of a nonce":      func(b []byte) []byte { b[24] ^= 4; return b },
		"a bit of the magic":    func(b []byte) []byte { b[3] ^= 4; return b },
		"a bit of the domain":   func(b []byte) []byte { b[12] ^= 4; return b },
		"a bit of a name":       func(b []byte) []byte { b[len(b)-32-3*44] ^= 4; return b },
		"a bit of a sum":        func(b []byte) []byte { b[len(b)-32-1] ^= 4; return b },
		"a bit of the trailer":  func(b []byte) []byte { b[len(b)-32+3] ^= 4; return b },
		"a bit of the end":      func(b []byte) []byte { b[len(b)-2] ^= 4; return b },
		"truncated":             func(b []byte) []byte { return b[:len(b)/2] },
		"two objects exchanged": exchange,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			root := t.TempDir()
			fill(t, open(t, root).in(d), objects, nil)
			pack := files(t, filepath.Join(root, "blobs", "packs"), "*")[0]
			damage(t, pack, change)
			for _, view := range []*seal.Domain{nil, d} {
				problems := 0
				s := open(t, root).in(view)
				_, err := s.Fsck(t.Context(), func(p store.Problem) { problems++ })
				check(t, err)
				if problems == 0 {
					t.Errorf("fsck finds nothing (with the key: %v)", view != nil)
				}
			}
			s := open(t, root).in(d)
			for _, o := range objects {
				got, err := s.Get(t.Context(), turnstone.DigestBytes(o))
				if err == nil && !bytes.Equal(got, o) ||
					err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
			}
			fill(t, s, objects, nil)
			again := open(t, root).in(d)
			for _, o := range objects {
				wantObject(t, again, o)
			}
		})
	}
}

// exchange exchanges the first two objects of a pack with three objects of the same size.
func exchange(b []byte) []byte {
	size := (len(b) - 24 - 32 - 3*44) / 3
	one := bytes.Clone(b[24 : 24+size])
	copy(b[24:], b[24+size:24+2*size])
	copy(b[24+size:], one)
	return b
}

// TestRemoveDomain removes one of two domains: nothing of it remains in any file or cache, the rest
// is unchanged, and another call does nothing.
func TestRemoveDomain(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	a, b := domainOf(t, 1), domainOf(t, 2)
	object, content := text(2000, 1), noise(3<<20, 1)
	var needs []turnstone.Digest
	for range 3 {
		fill(t, s, [][]byte{object, text(99, 3)}, [][]byte{content})
		fill(t, s.in(b), [][]byte{object, text(99, 3)}, [][]byte{content})
		n, _ := fill(t, s.in(a), [][]byte{object, noise(77, len(needs))}, [][]byte{content})
		needs = append(needs, n...)
	}
	// A pack whose table is damaged belongs to the domain of its header.
	fill(t, s.in(a), [][]byte{[]byte("one more")}, nil)
	var torn string
	for _, p := range files(t, s.bl, "packs/*") {
		damage(t, p, func(f []byte) []byte {
			if id := a.ID(); torn == "" && bytes.Equal(f[8:24], id[:]) {
				torn = p
				f[len(f)-1]++
			}
			return f
		})
	}
	// With a segment less, the index lacks the pack.
	for _, seg := range files(t, s.dir, "index/*.seg") {
		check(t, os.Remove(seg))
	}
	s = open(t, root)
	_, err := s.Fsck(t.Context(), func(store.Problem) {})
	check(t, err)
	if torn == "" {
		t.Fatal("no pack of the domain was found")
	}
	before, err := s.Usage(t.Context())
	check(t, err)
	domains, err := s.Domains(t.Context())
	check(t, err)
	got, err := s.RemoveDomain(t.Context(), a.ID())
	check(t, err)
	if got.PacksRemoved != domains[a.ID()].Packs+1 || got.Freed <= domains[a.ID()].Stored ||
		got.Objects != domains[a.ID()].Objects {
		t.Errorf("%+v was removed of %+v", got, domains[a.ID()])
	}
	for _, s := range []*fixture{s, open(t, root)} {
		_, err := s.in(a).Get(t.Context(), turnstone.DigestBytes(noise(77, 0)))
		wantErr(t, err, turnstone.KindNotFound)
		for _, v := range []*fixture{s, s.in(b)} {
			wantObject(t, v, object)
			fsckClean(t, v)
		}
		after, err := s.Usage(t.Context())
		check(t, err)
		if after.Objects != before.Objects-domains[a.ID()].Objects {
			t.Errorf("%+v is now %+v", before, after)
		}
		if d, err := s.Domains(t.Context()); err != nil || len(d) != 1 {
			t.Errorf("domains: %v, %v", d, err)
		}
	}
	id := a.ID()
	check(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.ReadFile(path)
		if bytes.Contains(f, id[:]) {
			t.Errorf("%s names the domain", path)
		}
		for _, n := range needs {
			raw, _ := hex.DecodeString(n.Hex())
			if bytes.Contains(f, raw) || bytes.Contains(f, []byte(n.Hex())) {
				t.Errorf("%s has the name %s", path, n)
			}
		}
		return err
	}))
	if got, err := s.RemoveDomain(t.Context(), a.ID()); err != nil ||
		got != (turnstone.StoreSwept{}) {
		t.Errorf("again: %+v, %v", got, err)
	}
	_, err = s.RemoveDomain(t.Context(), seal.ID{})
	wantErr(t, err, turnstone.KindInvalid)
	if n, _ := fill(t, s.in(a), [][]byte{object}, nil); len(n) != 1 {
		t.Errorf("put again: %v", n)
	}
	wantObject(t, s.in(a), object)
}

// TestSealedSweep sweeps without keys: what is kept is copied as it is, and no pack has objects of
// two domains.
func TestSealedSweep(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	views := []*fixture{s, s.in(domainOf(t, 1)), s.in(domainOf(t, 2))}
	var keep []turnstone.Digest
	object := func(v, run, i int) []byte { return text(2000+i, v*10_000+run*100+i) }
	for run := range 20 { // more than enough small packs to join
		for n, v := range views {
			var all [][]byte
			for i := range 4 {
				all = append(all, object(n, run, i))
			}
			fill(t, v, all, nil)
			for i := run % 2; i < 4; i += 2 {
				name, err := v.Name(turnstone.DigestBytes(object(n, run, i)))
				check(t, err)
				keep = append(keep, name)
			}
		}
	}
	damaged := files(t, s.bl, "packs/*")[0]
	damage(t, damaged, func(b []byte) []byte { b[500] ^= 1; return b })
	got, err := open(t, root).Sweep(t.Context(), keepAll(keep...))
	check(t, err)
	// The pack of a damaged object stays, whether the object is needed or not.
	if got.Kept != len(keep) || got.PacksMade != 3 || got.PacksRemoved < 59 {
		t.Errorf("%+v", got)
	}
	again := open(t, root)
	for n, d := range []*seal.Domain{nil, domainOf(t, 1), domainOf(t, 2)} {
		bad := 0
		for run := range 20 {
			for i := run % 2; i < 4; i += 2 {
				o := object(n, run, i)
				b, err := again.in(d).Get(t.Context(), turnstone.DigestBytes(o))
				if err != nil && turnstone.KindOf(err) == turnstone.KindIntegrity {
					bad++
				} else if err != nil || !bytes.Equal(b, o) {
					t.Errorf("an object of %d: %v", n, err)
				}
			}
		}
		if bad > 1 {
			t.Errorf("%d objects of %d are damaged", bad, n)
		}
		if _, err := os.Stat(damaged); errors.Is(err, fs.ErrNotExist) {
			fsckClean(t, again.in(d))
		}
	}
	domains, err := again.Domains(t.Context())
	check(t, err)
	for id, u := range domains {
		if u.Packs > 2 || u.Objects < 40 {
			t.Errorf("%s: %+v", id, u)
		}
	}
	if len(domains) != 2 {
		t.Errorf("domains: %v", domains)
	}
}
