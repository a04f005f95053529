package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/local"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/testsize"
)

// errFault is the error of an operation that the model lets fail.
var errFault = errors.New("the operation fails by intention")

// A sealedModel is a store with the views of two domains and the public one, and what each view has
// to have. Any operation on the disk may fail.
type sealedModel struct {
	t       *rapid.T
	root    string
	domains []*seal.Domain // the first is nil
	store   *store.Store
	blobs   *local.Store
	left    int // operations on the disk until one fails; negative: none fails

	// Objects by view: true if it must be there, false if it may be.
	objects []map[int]bool
	needs   []map[turnstone.Digest]bool // of the objects that must be there
}

func (m *sealedModel) check(err error) {
	if err != nil {
		m.t.Fatalf("%v", err)
	}
}

func (m *sealedModel) fault(string) error {
	if m.left == 0 {
		return errFault
	}
	m.left--
	return nil
}

// open opens the store as another process does.
func (m *sealedModel) open() {
	m.left = -1
	m.close()
	var err error
	m.blobs, err = local.Open(filepath.Join(m.root, "blobs"), local.Options{Fault: m.fault})
	m.check(err)
	m.store, err = store.Open(m.t.Context(), filepath.Join(m.root, "store"), m.blobs,
		store.Options{Fault: m.fault})
	m.check(err)
}

func (m *sealedModel) close() {
	if m.store != nil {
		m.check(m.store.Close())
		m.check(m.blobs.Close())
	}
}

// modelObject returns the object n: the same in all views.
func modelObject(n int) []byte {
	switch n % 3 {
	case 0:
		return text(100+n*50, n)
	case 1:
		return noise(60_000+n, n)
	}
	return noise(n, n)
}

// failing calls f, in which an operation on the disk may fail, and reports whether one did.
func (m *sealedModel) failing(f func() error) bool {
	m.left = rapid.SampledFrom([]int{-1, -1, -1, 0, 1, 2, 3, 5, 8, 13}).Draw(m.t, "fault after")
	err := f()
	failed := m.left == 0 && err != nil
	m.left = -1
	if err != nil && !failed {
		m.t.Fatalf("%v", err)
	}
	if failed {
		m.open() // the process died
	}
	return failed
}

// put puts objects in a view, and flushes, closes early, or fails.
func (m *sealedModel) put(t *rapid.T) {
	m.t = t
	v := rapid.IntRange(0, 2).Draw(t, "view")
	all := rapid.SliceOfN(rapid.IntRange(0, 40), 1, 12).Draw(t, "objects")
	flush := rapid.IntRange(0, 4).Draw(t, "flush") > 0
	var needs []turnstone.Digest
	failed := m.failing(func() error {
		b, err := m.store.In(m.domains[v]).Begin(t.Context())
		if err != nil {
			return err
		}
		defer func() { _ = b.Close() }()
		for _, n := range all {
			p := modelObject(n)
			if n%2 == 0 {
				_, err = b.Put(t.Context(), p)
			} else {
				_, err = b.PutContent(t.Context(), bytes.NewReader(p), int64(len(p)))
			}
			if err != nil {
				return err
			}
			got, err := b.Get(t.Context(), turnstone.DigestBytes(p))
			if err != nil || !bytes.Equal(got, p) {
				return fmt.Errorf("the batch returns %d bytes: %w", len(got), err)
			}
		}
		needs = b.Needs()
		if flush {
			return b.Flush(t.Context())
		}
		return nil
	})
	done := flush && !failed
	for _, n := range all {
		m.objects[v][n] = m.objects[v][n] || done
	}
	if done {
		for _, n := range needs {
			m.needs[v][n] = true
		}
	}
}

// putLarge puts a content of several chunks.
func (m *sealedModel) putLarge(t *rapid.T) {
	m.t = t
	v := rapid.IntRange(0, 2).Draw(t, "view")
	n := rapid.IntRange(1, 3).Draw(t, "content")
	p := noise(1_300_000+n, n)
	s := m.store.In(m.domains[v])
	b, err := s.Begin(t.Context())
	m.check(err)
	defer func() { _ = b.Close() }()
	c, err := b.PutContent(t.Context(), bytes.NewReader(p), int64(len(p)))
	m.check(err)
	m.check(b.Flush(t.Context()))
	for _, d := range b.Needs() {
		m.needs[v][d] = true
	}
	r, err := s.OpenContent(t.Context(), c)
	m.check(err)
	var got bytes.Buffer
	_, err = got.ReadFrom(r)
	m.check(errors.Join(err, r.Close()))
	if !bytes.Equal(got.Bytes(), p) {
		t.Fatal("the content differs")
	}
}

// sweep drops some of the objects of all views.
func (m *sealedModel) sweep(t *rapid.T) {
	m.t = t
	part := rapid.IntRange(0, 3).Draw(t, "dropped part")
	var keep []turnstone.Digest
	objects := []map[int]bool{{}, {}, {}}
	needs := []map[turnstone.Digest]bool{{}, {}, {}}
	for v := range m.objects {
		for n, must := range m.objects[v] {
			name, err := m.store.In(m.domains[v]).Name(turnstone.DigestBytes(modelObject(n)))
			m.check(err)
			objects[v][n] = false
			if must && n%4 >= part {
				keep = append(keep, name)
				objects[v][n] = true
			} else {
				delete(m.needs[v], name)
			}
		}
		for d := range m.needs[v] {
			needs[v][d] = true
			keep = append(keep, d)
		}
	}
	m.objects, m.needs = objects, needs
	view := m.store.In(m.domains[rapid.IntRange(0, 2).Draw(t, "view")])
	if m.failing(func() error { _, err := view.Sweep(t.Context(), keepAll(keep...)); return err }) {
		return
	}
	slices.Sort(keep)
	u, err := m.store.Usage(t.Context())
	m.check(err)
	// A pack with little garbage is not rewritten.
	if want := len(slices.Compact(keep)); u.Objects < want {
		t.Fatalf("%d objects remain after the sweep, want %d", u.Objects, want)
	}
}

func (m *sealedModel) removeDomain(t *rapid.T) {
	m.t = t
	v := rapid.IntRange(1, 2).Draw(t, "domain")
	remove := func() error {
		_, err := m.store.RemoveDomain(t.Context(), m.domains[v].ID())
		return err
	}
	if m.failing(remove) {
		m.check(remove())
	}
	m.objects[v], m.needs[v] = map[int]bool{}, map[turnstone.Digest]bool{}
	d, err := m.store.Domains(t.Context())
	m.check(err)
	if _, ok := d[m.domains[v].ID()]; ok {
		t.Fatal("the domain is still there")
	}
}

// lose removes the index, or a part of it.
func (m *sealedModel) lose(t *rapid.T) {
	m.t = t
	all, err := filepath.Glob(filepath.Join(m.root, "store", "index", "*.seg"))
	m.check(err)
	for _, p := range all {
		switch rapid.IntRange(0, 2).Draw(t, "loss") {
		case 1:
			m.check(os.Remove(p))
		case 2:
			b, err := os.ReadFile(p)
			m.check(err)
			b[len(b)/2] ^= 1
			m.check(os.WriteFile(p, b, 0o600))
		}
	}
	m.open()
}

func (m *sealedModel) reopen(t *rapid.T) {
	m.t = t
	m.open()
}

// fsck checks all, with one key or none: it may repair the index, and finds no damage.
func (m *sealedModel) fsck(t *rapid.T) {
	m.t = t
	s := m.store.In(m.domains[rapid.IntRange(0, 2).Draw(t, "view")])
	_, err := s.Fsck(t.Context(), func(p store.Problem) {
		if !p.Repaired {
			t.Fatalf("%+v: %v", p, p.Err)
		}
	})
	m.check(err)
}

// holds checks that each view has what it must have, and nothing else.
func (m *sealedModel) holds(t *rapid.T) {
	m.t = t
	n := rapid.IntRange(0, 40).Draw(t, "object")
	p := modelObject(n)
	d := turnstone.DigestBytes(p)
	public, maybePublic := m.objects[0][n], false
	if must, ok := m.objects[0][n]; ok && !must {
		maybePublic = true
	}
	for v, domain := range m.domains {
		got, err := m.store.In(domain).Get(t.Context(), d)
		must, maybe := m.objects[v][n]
		switch {
		case err == nil && !bytes.Equal(got, p):
			t.Fatalf("view %d: object %d differs", v, n)
		case err != nil && turnstone.KindOf(err) != turnstone.KindNotFound:
			t.Fatalf("view %d: object %d: %v", v, n, err)
		case err != nil && (must || public):
			t.Fatalf("view %d: object %d is missing", v, n)
		case err == nil && !maybe && !public && !maybePublic:
			t.Fatalf("view %d: object %d is there", v, n)
		}
	}
}

func TestSealedModel(t *testing.T) {
	testsize.Checks(t, 30)
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "sealed-model-*")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(root) }()
		m := &sealedModel{t: t, root: root, domains: []*seal.Domain{nil}}
		for range 2 {
			d, err := seal.New(seal.NewKey())
			m.check(err)
			m.domains = append(m.domains, d)
		}
		for range m.domains {
			m.objects = append(m.objects, map[int]bool{})
			m.needs = append(m.needs, map[turnstone.Digest]bool{})
		}
		m.open()
		defer func() { m.close() }()
		t.Repeat(map[string]func(*rapid.T){"put": m.put, "putLarge": m.putLarge, "sweep": m.sweep,
			"removeDomain": m.removeDomain, "lose": m.lose, "reopen": m.reopen, "fsck": m.fsck,
			"": m.holds})
	})
}
