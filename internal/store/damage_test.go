package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/testsize"
)

func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, pattern))
	check(t, err)
	return all
}

// damage changes the file's bytes with f.
func damage(t *testing.T, path string, f func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, f(b), 0o600))
}

// filled returns a store's folder with two packs: of text, and of a large content.
func filled(t *testing.T) (root string, objects [][]byte, large turnstone.Content,
	largeBytes []byte) {
	t.Helper()
	root = t.TempDir()
	s := open(t, root)
	b := begin(t, s)
	for i := range 40 {
		objects = append(objects, text(3000, i))
		put(t, b, objects[i])
	}
	check(t, b.Flush(t.Context()))
	largeBytes = noise(3<<20, 6)
	large = putContent(t, b, largeBytes)
	check(t, b.Flush(t.Context()))
	check(t, b.Close())
	check(t, s.Close())
	return
}

// TestDamagedPack flips a byte in the middle of each pack: the affected objects are reported and
// not returned, fsck finds them, the others stay, and putting them again heals them.
func TestDamagedPack(t *testing.T) {
	root, objects, large, largeBytes := filled(t)
	packs := files(t, filepath.Join(root, "blobs", "packs"), "*")
	if len(packs) != 2 {
		t.Fatalf("packs: %q", packs)
	}
	for _, p := range packs {
		damage(t, p, func(b []byte) []byte { b[len(b)/3] ^= 1; return b })
	}
	s := open(t, root)
	bad := 0
	for _, o := range objects {
		got, err := s.Get(t.Context(), turnstone.DigestBytes(o))
		if err == nil && bytes.Equal(got, o) {
			continue
		}
		bad++
		if turnstone.KindOf(err) != turnstone.KindIntegrity ||
			!strings.Contains(err.Error(), string(turnstone.DigestBytes(o))) ||
			!strings.Contains(err.Error(), "packs/") {
			t.Errorf("a damaged object: %v", err)
		}
	}
	if bad != 1 {
		t.Errorf("%d objects are damaged, want 1", bad)
	}
	r, err := s.OpenContent(t.Context(), large)
	check(t, err)
	if n, err := io.Copy(io.Discard, r); turnstone.KindOf(err) != turnstone.KindIntegrity ||
		n >= large.Size {
		t.Errorf("a damaged content: %d bytes, %v", n, err)
	}
	check(t, r.Close())

	var found []store.Problem
	s = open(t, root)
	sum, err := s.Fsck(t.Context(), func(p store.Problem) { found = append(found, p) })
	check(t, err)
	if len(found) != 2 || sum.Problems != 2 || found[0].Object == "" || found[0].Pack == "" ||
		found[1].Pack == found[0].Pack {
		t.Errorf("fsck found %+v", found)
	}
	s = open(t, root) // other processes know it too
	b := begin(t, s)
	for _, o := range objects {
		put(t, b, o)
	}
	putContent(t, b, largeBytes)
	check(t, b.Flush(t.Context()))
	s = open(t, root)
	for _, o := range objects {
		wantObject(t, s, o)
	}
	wantContent(t, s, large, largeBytes)
}

// TestLostPacks truncates one pack and removes the other.
func TestLostPacks(t *testing.T) {
	root, objects, large, _ := filled(t)
	for _, p := range files(t, filepath.Join(root, "blobs", "packs"), "*") {
		if info, err := os.Stat(p); err == nil && info.Size() > 1<<20 {
			damage(t, p, func(b []byte) []byte { return b[:len(b)/2] })
		} else {
			check(t, os.Remove(p))
		}
	}
	s := open(t, root)
	for _, o := range objects {
		if _, err := s.Get(t.Context(),
			turnstone.DigestBytes(o)); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Fatalf("an object whose pack is gone: %v", err)
		}
	}
	named := map[turnstone.Digest]bool{}
	packs := 0
	_, err := s.Fsck(t.Context(), func(p store.Problem) {
		if p.Object == "" {
			packs++
		}
		named[p.Object] = true
	})
	check(t, err)
	for _, o := range objects {
		if !named[turnstone.DigestBytes(o)] {
			t.Errorf("fsck does not name a missing object")
		}
	}
	if packs != 2 {
		t.Errorf("fsck names %d packs, want 2", packs)
	}
	if !named[large.Chunks] {
		t.Error("fsck does not name the list of chunks, which was at the pack's end")
	}
}

// TestDamagedFrame flips each of the first bytes of a compressed object. The error is the same,
// whether the object still decompresses or not.
func TestDamagedFrame(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	b, err := s.Begin(t.Context())
	check(t, err)
	object := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog\n", 100))
	d, err := b.Put(t.Context(), object)
	check(t, err)
	check(t, b.Flush(t.Context()))
	check(t, b.Close())
	check(t, s.Close())
	packs := files(t, filepath.Join(root, "blobs", "packs"), "*")
	if len(packs) != 1 {
		t.Fatalf("packs: %q", packs)
	}
	const magic = 8
	for i := magic; i < magic+40; i++ {
		flip := func(b []byte) []byte { b[i] ^= 0xff; return b }
		damage(t, packs[0], flip)
		s := open(t, root)
		_, err := s.Get(t.Context(), d)
		if turnstone.KindOf(err) != turnstone.KindIntegrity ||
			!strings.Contains(err.Error(), "does not match its digest") {
			t.Errorf("byte %d: %v", i, err)
		}
		check(t, s.Close())
		damage(t, packs[0], flip)
	}
}

// TestAnyByteOfAPack: fsck notices a change of any byte of a pack, also one that decompresses to the
// same objects.
func TestAnyByteOfAPack(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	b := begin(t, s)
	for i := range 3 {
		put(t, b, text(300, i))
	}
	put(t, b, noise(100, 1)) // not compressed
	check(t, b.Flush(t.Context()))
	check(t, b.Close())
	check(t, s.Close())
	packs := files(t, filepath.Join(root, "blobs", "packs"), "*")
	if len(packs) != 1 {
		t.Fatalf("packs: %q", packs)
	}
	problems := func() (n int) {
		s := open(t, root)
		_, err := s.Fsck(t.Context(), func(store.Problem) { n++ })
		check(t, err)
		check(t, s.Close())
		return n
	}
	if n := problems(); n != 0 {
		t.Fatalf("%d problems of an intact pack", n)
	}
	good, err := os.ReadFile(packs[0])
	check(t, err)
	for i := 0; i < len(good); i += testsize.Step(7) {
		for _, bits := range []byte{0x01, 0x80, 0xff} {
			damage(t, packs[0], func(b []byte) []byte { b[i] ^= bits; return b })
			if problems() == 0 {
				t.Errorf("byte %d of %d, bits %02x: not noticed", i, len(good), bits)
			}
			damage(t, packs[0], func([]byte) []byte { return good })
			_ = os.Remove(filepath.Join(root, "damaged"))
		}
	}
}

// TestLostIndex removes and damages the index in all ways: nothing is lost.
func TestLostIndex(t *testing.T) {
	for name, harm := range map[string]func(b []byte) []byte{
		"removed":   nil,
		"empty":     func(b []byte) []byte { return nil },
		"cut off":   func(b []byte) []byte { return b[:len(b)-100] },
		"no magic":  func(b []byte) []byte { b[0] ^= 1; return b },
		"a block":   func(b []byte) []byte { b[len(b)-2000] ^= 1; return b },
		"the table": func(b []byte) []byte { b[40] ^= 1; return b },
		"noise":     func(b []byte) []byte { return noise(len(b), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			root, objects, large, largeBytes := filled(t)
			for _, seg := range files(t, filepath.Join(root, "store", "index"), "*.seg") {
				if harm == nil {
					check(t, os.Remove(seg))
				} else {
					damage(t, seg, harm)
				}
			}
			s := open(t, root)
			for _, o := range objects {
				wantObject(t, s, o)
			}
			wantContent(t, s, large, largeBytes)
			fsckClean(t, s)
			b := begin(t, s)
			for _, o := range objects {
				put(t, b, o)
			}
			check(t, b.Flush(t.Context()))
			if packs := files(t, filepath.Join(root, "blobs", "packs"), "*"); len(packs) != 2 {
				t.Errorf("what is there was stored again: %d packs", len(packs))
			}
		})
	}
}

// TestWrongChunks gives contents the chunks of others.
func TestWrongChunks(t *testing.T) {
	s := open(t, t.TempDir())
	b := begin(t, s)
	one, two := putContent(t, b, noise(3<<20, 1)), putContent(t, b, noise(3<<20, 2))
	check(t, b.Flush(t.Context()))
	for what, c := range map[string]turnstone.Content{
		"chunks of another": {Digest: one.Digest, Size: one.Size, Chunks: two.Chunks},
		"another size":      {Digest: one.Digest, Size: one.Size - 1, Chunks: one.Chunks},
		"a list that is not": {Digest: one.Digest, Size: one.Size,
			Chunks: put(t, b, []byte("not a list"))},
		"a wrong small size": {Digest: put(t, b, []byte("abc")), Size: 2},
		"a negative size":    {Digest: one.Digest, Size: -5, Chunks: one.Chunks},
	} {
		r, err := b.OpenContent(t.Context(), c)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			check(t, r.Close())
		}
		if turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An image is an Alternate with a few contents.
type image struct{ has map[turnstone.Digest][]byte }

func (a *image) HasContent(d turnstone.Digest) bool { return a.has[d] != nil }

func (a *image) OpenContent(_ context.Context, c turnstone.Content) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(a.has[c.Digest])), nil
}

// TestAlternate checks that an alternate's content is not stored, is read from the alternate, and
// is verified.
func TestAlternate(t *testing.T) {
	small, large := text(5000, 1), noise(4<<20, 1)
	for _, seek := range []bool{false, true} {
		root := t.TempDir()
		s := open(t, root)
		a := &image{has: map[turnstone.Digest][]byte{turnstone.DigestBytes(small): small,
			turnstone.DigestBytes(large): large}}
		s.AddAlternate(a)
		b := begin(t, s)
		for _, p := range [][]byte{small, large} {
			r := io.Reader(bytes.NewReader(p))
			if !seek {
				r = io.MultiReader(r)
			}
			c, err := b.PutContent(t.Context(), r, int64(len(p)))
			check(t, err)
			if c.Chunks != "" || c.Digest != turnstone.DigestBytes(p) {
				t.Errorf("it is %+v", c)
			}
			check(t, b.Flush(t.Context()))
			wantContent(t, s, c, p)
			if all, err := s.ContentObjects(t.Context(), c); err != nil || len(all) != 0 {
				t.Errorf("it consists of %q, %v", all, err)
			}
		}
		if packs := files(t, filepath.Join(root, "blobs", "packs"), "*"); seek && len(packs) != 0 {
			t.Errorf("it was stored: %q", packs)
		}
		other := noise(4<<20, 2)
		wantContent(t, b, putContent(t, b, other), other)
		for _, p := range [][]byte{small, large} {
			for what, now := range map[string][]byte{"changed": append(p[:len(p)-1:len(p)-1], 'x'),
				"shorter": p[:len(p)-1], "longer": append(p[:len(p):len(p)], 1)} {
				a.has[turnstone.DigestBytes(p)] = now
				r, err := s.OpenContent(t.Context(),
					turnstone.Content{Digest: turnstone.DigestBytes(p), Size: int64(len(p))})
				if err == nil {
					_, err = io.Copy(io.Discard, r)
					check(t, r.Close())
				}
				if turnstone.KindOf(err) != turnstone.KindIntegrity {
					t.Errorf("%s where it lies: %v", what, err)
				}
			}
		}
	}
}

// TestFaults fails each operation of a commit in turn, in the process: the batch returns the error,
// and the store continues.
func TestFaults(t *testing.T) {
	broken := errors.New("injected")
	for n := 0; ; n++ {
		left := n
		s := openWith(t, t.TempDir(), func(string) error {
			if left--; left == -1 {
				return broken
			}
			return nil
		})
		b := begin(t, s)
		for i := range 10 {
			put(t, b, text(1000, i))
		}
		err := b.Flush(t.Context())
		if err == nil && left >= 0 {
			if n < 8 {
				t.Errorf("a commit has %d operations only", n)
			}
			return
		}
		if err != nil && !errors.Is(err, broken) {
			t.Errorf("fault %d: %v", n, err)
		}
		check(t, b.Close())
		b = begin(t, s)
		for i := range 10 {
			put(t, b, text(1000, i))
		}
		check(t, b.Flush(t.Context()))
		for i := range 10 {
			wantObject(t, s, text(1000, i))
		}
		fsckClean(t, s)
		check(t, b.Close())
	}
}
