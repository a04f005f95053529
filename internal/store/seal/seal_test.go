package seal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/seal"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, want turnstone.Kind) {
	t.Helper()
	if err == nil || turnstone.KindOf(err) != want {
		t.Errorf("got %v of kind %q, want kind %q", err, turnstone.KindOf(err), want)
	}
}

// keyOf returns a key of repeated bytes.
func keyOf(b byte) seal.Key {
	k, err := seal.ParseKey(bytes.Repeat([]byte{b}, seal.KeySize))
	if err != nil {
		panic(err)
	}
	return k
}

func domainOf(t testing.TB, b byte) *seal.Domain {
	t.Helper()
	d, err := seal.New(keyOf(b))
	check(t, err)
	return d
}

// TestKeyIsHidden prints a key in all ways that a program may print it by mistake.
func TestKeyIsHidden(t *testing.T) {
	k := keyOf('K')
	domain := domainOf(t, 'K')
	type holder struct {
		Key    seal.Key
		hidden seal.Key
		d      *seal.Domain
	}
	h := holder{k, k, domain}
	var out strings.Builder
	for _, v := range []any{k, &k, h, &h, []seal.Key{k}, map[string]seal.Key{"k": k}, domain} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("it", "key", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("it", "key", v)
		b, err := json.Marshal(v)
		check(t, err)
		out.Write(b)
	}
	fmt.Fprintln(&out, errors.Join(turnstone.Errorf("x", turnstone.KindInternal, "", "%v", k)))
	text := out.String()
	for _, secret := range []string{"KKKK", "4b4b4b", "4B4B4B", "75 75 75", "75, 75", "75,75",
		"0x4b, 0x4b", "S0tLS0"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in what is printed", secret)
		}
	}
	if !strings.Contains(text, "[key]") {
		t.Error("nothing stands for the key")
	}
}

func TestKeys(t *testing.T) {
	if a, b := seal.NewKey(), seal.NewKey(); a.Equal(b) || !a.Equal(a) {
		t.Error("two new keys are equal, or one differs from itself")
	}
	k := keyOf(7)
	same, err := seal.ParseKey(k.Bytes())
	check(t, err)
	if !same.Equal(k) || (seal.Key{}).Equal(seal.Key{}) {
		t.Error("a key differs from its copy, or no key equals no key")
	}
	_, err = seal.ParseKey(make([]byte, 31))
	wantKind(t, err, turnstone.KindInvalid)
	_, err = seal.New(seal.Key{})
	wantKind(t, err, turnstone.KindUnavailable)
	d, err := seal.New(k)
	check(t, err)
	if _, err := seal.Open(d.ID(), same); err != nil {
		t.Error(err)
	}
	_, err = seal.Open(d.ID(), keyOf(8))
	wantKind(t, err, turnstone.KindUnavailable)
	same.Erase()
	if !bytes.Equal(same.Bytes(), make([]byte, seal.KeySize)) {
		t.Error("an erased key has bytes")
	}
	_, err = seal.New(same)
	wantKind(t, err, turnstone.KindUnavailable)
	if _, err := d.NameOf([32]byte{}); err != nil {
		t.Errorf("the domain ends with the key that it was made from: %v", err)
	}
	id, err := seal.ParseID(d.ID().String())
	if err != nil || id != d.ID() || id.IsZero() {
		t.Errorf("the ID %s is read as %s: %v", d.ID(), id, err)
	}
	for _, s := range []string{"", "12", strings.Repeat("g", 32), strings.Repeat("A", 32)} {
		_, err := seal.ParseID(s)
		wantKind(t, err, turnstone.KindInvalid)
	}
}

// TestErase checks that nothing works with an erased domain, also while others use it.
func TestErase(t *testing.T) {
	d := domainOf(t, 1)
	sealed, err := d.SealBytes("x", []byte("secret"))
	check(t, err)
	var file bytes.Buffer
	check(t, sealFile(d, &file, "x", []byte("secret")))
	frame := make([]byte, seal.HeaderSize+10)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				if _, err := d.SealBytes("x", []byte("y")); err != nil {
					wantKind(t, err, turnstone.KindUnavailable)
					return
				}
			}
		})
	}
	d.Erase()
	wg.Wait()
	d.Erase()
	for name, f := range map[string]func() error{
		"NameOf":    func() error { _, err := d.NameOf([32]byte{}); return err },
		"Name":      func() error { _, err := d.Name(turnstone.DigestBytes(nil)); return err },
		"Seal":      func() error { _, err := d.Seal(nil, frame, [32]byte{}, 10); return err },
		"Open":      func() error { _, _, err := d.Open(make([]byte, 100), [32]byte{}); return err },
		"SealBytes": func() error { _, err := d.SealBytes("x", nil); return err },
		"OpenBytes": func() error { _, err := d.OpenBytes("x", sealed); return err },
		"Lookup":    func() error { _, err := d.Lookup("x", "y"); return err },
		"Gear":      func() error { _, err := d.Gear(); return err },
		"NewWriter": func() error { _, err := d.NewWriter(io.Discard, "x"); return err },
		"NewReader": func() error { _, err := d.NewReader(&file, "x"); return err },
	} {
		err := f()
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!errors.Is(err, turnstone.ErrLocked) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sealObject seals the stored form p of an object.
func sealObject(t testing.TB, d *seal.Domain, name seal.Name, size int, p []byte) []byte {
	t.Helper()
	sealed, err := d.Seal(nil, append(make([]byte, seal.HeaderSize), p...), name, size)
	check(t, err)
	return sealed
}

func TestObject(t *testing.T) {
	d, other := domainOf(t, 1), domainOf(t, 2)
	for _, n := range []int{0, 1, 47, 48, 49, 55, 56, 57, 1000, 65_536, 1 << 20, 1<<20 + 13} {
		p := bytes.Repeat([]byte("abc"), n/3+1)[:n]
		name, err := d.NameOf(sha256.Sum256(p))
		check(t, err)
		sealed := sealObject(t, d, name, 5*n, p)
		if len(sealed) != seal.SealedSize(n) {
			t.Errorf("%d bytes take %d, want %d", n, len(sealed), seal.SealedSize(n))
		}
		if bytes.Equal(sealed, sealObject(t, d, name, 5*n, p)) {
			t.Error("sealed twice, an object has the same bytes")
		}
		size, got, err := d.Open(bytes.Clone(sealed), name)
		if err != nil || size != 5*n || !bytes.Equal(got, p) {
			t.Errorf("%d bytes: got %d of %d, %v", n, len(got), size, err)
		}
		// Under another name, in another domain, changed, and truncated.
		_, _, err = d.Open(bytes.Clone(sealed), seal.Name{1})
		wantKind(t, err, turnstone.KindIntegrity)
		_, _, err = other.Open(bytes.Clone(sealed), name)
		wantKind(t, err, turnstone.KindIntegrity)
		for _, at := range []int{0, 11, 12, len(sealed) / 2, len(sealed) - 1} {
			bad := bytes.Clone(sealed)
			bad[at] ^= 0x20
			_, _, err = d.Open(bad, name)
			wantKind(t, err, turnstone.KindIntegrity)
		}
		for _, k := range []int{0, 1, 12, 28, 35, len(sealed) - 1} {
			_, _, err = d.Open(bytes.Clone(sealed[:k]), name)
			wantKind(t, err, turnstone.KindIntegrity)
		}
		_, _, err = d.Open(append(bytes.Clone(sealed), 0), name)
		wantKind(t, err, turnstone.KindIntegrity)
	}
}

// TestPadding checks the bounds of Padmé: few sizes, little more.
func TestPadding(t *testing.T) {
	sizes := map[int]bool{}
	for n := 1; n <= 1<<16; n++ {
		p := seal.PaddedSize(n)
		if p < n || p > max(64, n+n*12/100) || p < seal.PaddedSize(n-1) && n > 1 ||
			seal.PaddedSize(p) != p {
			t.Fatalf("%d is padded to %d", n, p)
		}
		sizes[p] = true
	}
	if len(sizes) > 150 {
		t.Errorf("the sizes up to 64 KiB have %d paddings", len(sizes))
	}
	// The values of the paper's algorithm.
	for n, want := range map[int]int{65: 72, 100: 104, 1000: 1024, 1025: 1088, 300_000: 303_104,
		1 << 20: 1 << 20, 1<<20 + 1: 1<<20 + 1<<15, 256<<20 + 8: 256<<20 + 1<<23} {
		if got := seal.PaddedSize(n); got != want {
			t.Errorf("%d is padded to %d, want %d", n, got, want)
		}
	}
	if seal.SealedSize(256<<20) > math.MaxUint32 {
		t.Error("the largest object does not fit into a pack")
	}
}

func TestNames(t *testing.T) {
	a, b := domainOf(t, 1), domainOf(t, 2)
	digest := turnstone.DigestBytes([]byte("x"))
	one, err := a.Name(digest)
	check(t, err)
	again, err := domainOf(t, 1).Name(digest)
	check(t, err)
	two, err := b.Name(digest)
	check(t, err)
	if one != again || one == two || one == digest {
		t.Errorf("the names of %s are %s, %s and %s", digest, one, again, two)
	}
	if _, err := turnstone.ParseDigest(string(one)); err != nil {
		t.Error(err)
	}
	_, err = a.Name("sha256:12")
	wantKind(t, err, turnstone.KindInvalid)
	lookup := func(d *seal.Domain, context, value string) string {
		s, err := d.Lookup(context, value)
		check(t, err)
		return s
	}
	if l := lookup(a, "x", "y"); l != lookup(a, "x", "y") || l == lookup(b, "x", "y") ||
		l == lookup(a, "xy", "") || l == lookup(a, "", "xy") || l == lookup(a, "x", "z") {
		t.Error("lookup names are ambiguous, or change")
	}
	ga, err := a.Gear()
	check(t, err)
	gb, err := b.Gear()
	check(t, err)
	if *ga == *gb {
		t.Error("two domains cut alike")
	}
}

func TestBytes(t *testing.T) {
	a, b := domainOf(t, 1), domainOf(t, 2)
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOf(rapid.Byte()).Draw(t, "value")
		context := rapid.String().Draw(t, "context")
		sealed, err := a.SealBytes(context, p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.OpenBytes(context, sealed)
		if err != nil || !bytes.Equal(got, p) {
			t.Fatalf("got %x, %v", got, err)
		}
		for _, f := range []func() ([]byte, error){
			func() ([]byte, error) { return b.OpenBytes(context, sealed) },
			func() ([]byte, error) { return a.OpenBytes(context+"x", sealed) },
			func() ([]byte, error) {
				bad := bytes.Clone(sealed)
				bad[rapid.IntRange(0, len(bad)-1).Draw(t, "at")] ^= 1
				return a.OpenBytes(context, bad)
			},
			func() ([]byte, error) {
				return a.OpenBytes(context, sealed[:rapid.IntRange(0, len(sealed)-1).Draw(t, "n")])
			},
		} {
			if _, err := f(); turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Fatalf("wrong bytes are opened: %v", err)
			}
		}
	})
	_, err := a.SealBytes("x", make([]byte, 65<<20))
	wantKind(t, err, turnstone.KindInvalid)
}

// TestSizesAreHidden checks that values of similar sizes have the same sealed size.
func TestSizesAreHidden(t *testing.T) {
	d := domainOf(t, 1)
	var sizes []int
	for n := range 60 {
		sealed, err := d.SealBytes("x", make([]byte, n))
		check(t, err)
		sizes = append(sizes, len(sealed))
	}
	slices.Sort(sizes)
	if got := slices.Compact(sizes); len(got) != 1 {
		t.Errorf("values of up to 60 bytes have the sizes %v", got)
	}
}

func sealFile(d *seal.Domain, w io.Writer, context string, p []byte) error {
	f, err := d.NewWriter(w, context)
	if err != nil {
		return err
	}
	// In pieces, so that chunks begin anywhere in them.
	r := rand.New(rand.NewPCG(uint64(len(p)), 1))
	for len(p) > 0 {
		n := min(len(p), 1+r.IntN(100_000))
		if _, err := f.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return f.Close()
}
