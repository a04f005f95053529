// Package blobtest contains the test suite that every blob.Store must pass.
package blobtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
)

// Run tests stores created by open, each of which must be empty.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, blob.Store)
	}{
		{"what is put is got", roundTrip},
		{"ranges", ranges},
		{"what is not there", absent},
		{"hostile names", hostileNames},
		{"sizes that are not true", wrongSizes},
		{"a reader that fails", failingReader},
		{"a cancelled put", cancelled},
		{"a cancelled get", cancelledGet},
		{"list", list},
		{"put again", again},
		{"removal", removal},
		{"one name from many at once", sameName},
		{"large", large},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func put(t *testing.T, s blob.Store, name string, b []byte) {
	t.Helper()
	if err := s.Put(t.Context(), name, bytes.NewReader(b), int64(len(b))); err != nil {
		t.Fatalf("Put(%q): %v", name, err)
	}
}

func get(t *testing.T, s blob.Store, name string, off, n int64) []byte {
	t.Helper()
	r, err := s.Get(t.Context(), name, off, n)
	if err != nil {
		t.Fatalf("Get(%q, %d, %d): %v", name, off, n, err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("reading %q: %v", name, err)
	}
	if err := r.Close(); err != nil {
		t.Fatalf("closing %q: %v", name, err)
	}
	return b
}

func names(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	var all []string
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("List(%q): %v", prefix, err)
		}
		all = append(all, info.Name)
	}
	return all
}

// wantKind fails unless err is a typed error of the kind.
func wantKind(t *testing.T, what string, err error, kind turnstone.Kind) {
	t.Helper()
	var e *turnstone.Error
	if !errors.As(err, &e) || turnstone.KindOf(err) != kind {
		t.Errorf("%s: got %v (%T, kind %s), want kind %s", what, err, err,
			turnstone.KindOf(err), kind)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func roundTrip(t *testing.T, s blob.Store) {
	for name, b := range map[string][]byte{
		"plain": []byte("x"), "a/b/c/d": []byte("deep"), "empty": {},
		"e/empty": {}, "bytes": random(300_000),
		"odd names/ä +%&=?#~'\"()*!:;,$@": []byte("odd"), strings.Repeat("n", 200) + "/" +
			strings.Repeat("m", 200): []byte("long"),
	} {
		put(t, s, name, b)
		if got := get(t, s, name, 0, -1); !bytes.Equal(got, b) {
			t.Errorf("%q: got %d bytes that are not the %d put", name, len(got), len(b))
		}
	}
}

func ranges(t *testing.T, s blob.Store) {
	b := random(10_000)
	put(t, s, "r", b)
	put(t, s, "empty", nil)
	for _, r := range [][2]int64{{0, 10_000}, {0, 1}, {9_999, 1}, {10_000, 0}, {10_000, -1},
		{1, -1}, {5_000, 2_500}, {0, 0}} {
		want := b[r[0]:]
		if r[1] >= 0 {
			want = want[:r[1]]
		}
		if got := get(t, s, "r", r[0], r[1]); !bytes.Equal(got, want) {
			t.Errorf("range %v: got %d wrong bytes, want %d", r, len(got), len(want))
		}
		if rr, ok := s.(blob.RangeReader); ok {
			got := make([]byte, len(want))
			if err := rr.ReadAt(t.Context(), "r", got, r[0]); err != nil ||
				!bytes.Equal(got, want) {
				t.Errorf("ReadAt of range %v: %v, or wrong bytes", r, err)
			}
		}
	}
	if got := get(t, s, "empty", 0, 0); len(got) != 0 {
		t.Error("an empty blob has bytes")
	}
	for _, r := range [][2]int64{{0, 10_001}, {10_001, -1}, {10_001, 0}, {-1, 5},
		{9_999, 2}, {1 << 62, 1 << 62}} {
		rd, err := s.Get(t.Context(), "r", r[0], r[1])
		wantKind(t, fmt.Sprint("range ", r), err, turnstone.KindInvalid)
		if err == nil {
			_ = rd.Close()
		}
	}
	if rr, ok := s.(blob.RangeReader); ok {
		wantKind(t, "ReadAt beyond the end", rr.ReadAt(t.Context(), "r", make([]byte, 2), 9_999),
			turnstone.KindInvalid)
		wantKind(t, "ReadAt before the start", rr.ReadAt(t.Context(), "r", make([]byte, 2), -1),
			turnstone.KindInvalid)
	}
}

func absent(t *testing.T, s blob.Store) {
	put(t, s, "dir/file", []byte("x"))
	for _, name := range []string{"nothing", "dir", "dir/nothing", "dir/file/below"} {
		_, err := s.Get(t.Context(), name, 0, -1)
		wantKind(t, "Get of "+name, err, turnstone.KindNotFound)
		if rr, ok := s.(blob.RangeReader); ok {
			wantKind(t, "ReadAt of "+name, rr.ReadAt(t.Context(), name, make([]byte, 1), 0),
				turnstone.KindNotFound)
		}
		if err := s.Remove(t.Context(), name); err != nil {
			t.Errorf("Remove(%q): %v", name, err)
		}
	}
	if got := names(t, s, ""); !slices.Equal(got, []string{"dir/file"}) {
		t.Errorf("after removing what is not there: %q", got)
	}
}

func hostileNames(t *testing.T, s blob.Store) {
	for _, name := range []string{"", ".", "..", "../x", "a/../b", "a/..", "/etc/passwd",
		"a//b", "a/", "a\x00b", "a\nb",
		`a\b`, ".hidden", "a/.tmp", "\xff", strings.Repeat("x", 256),
		strings.Repeat("x/", 300) + "x"} {
		wantKind(t, fmt.Sprintf("Put(%q)", name),
			s.Put(t.Context(), name, strings.NewReader("x"), 1), turnstone.KindInvalid)
		_, err := s.Get(t.Context(), name, 0, -1)
		wantKind(t, fmt.Sprintf("Get(%q)", name), err, turnstone.KindInvalid)
		wantKind(t, fmt.Sprintf("Remove(%q)", name),
			s.Remove(t.Context(), name), turnstone.KindInvalid)
		if rr, ok := s.(blob.RangeReader); ok {
			wantKind(t, fmt.Sprintf("ReadAt(%q)", name),
				rr.ReadAt(t.Context(), name, make([]byte, 1), 0), turnstone.KindInvalid)
		}
	}
	for _, prefix := range []string{"..", "../", "/", "/etc/", "a/../"} {
		if got := names(t, s, prefix); len(got) != 0 {
			t.Errorf("List(%q) yields %q", prefix, got)
		}
	}
}

func wrongSizes(t *testing.T, s blob.Store) {
	for _, size := range []int64{0, 4, 6, 1 << 20} {
		err := s.Put(t.Context(), "n", strings.NewReader("12345"), size)
		wantKind(t, fmt.Sprintf("5 bytes as %d", size), err, turnstone.KindInvalid)
	}
	if got := names(t, s, ""); len(got) != 0 {
		t.Errorf("they left %q", got)
	}
}

// errReader fails after n bytes.
type errReader struct {
	n   int
	err error
	do  func() // called before it fails
}

func (r *errReader) Read(p []byte) (int, error) {
	if r.n == 0 {
		if r.do != nil {
			r.do()
		}
		return 0, r.err
	}
	k := min(r.n, len(p))
	r.n -= k
	return k, nil
}

func failingReader(t *testing.T, s blob.Store) {
	cause := errors.New("the source is gone")
	put(t, s, "kept", []byte("before"))
	for _, name := range []string{"n", "kept"} {
		err := s.Put(t.Context(), name, &errReader{n: 3_000_000, err: cause}, 6_000_000)
		if !errors.Is(err, cause) {
			t.Errorf("Put: got %v, want the reader's error", err)
		}
	}
	if got := names(t, s, ""); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("it left %q", got)
	}
	if got := get(t, s, "kept", 0, -1); string(got) != "before" {
		t.Errorf("the blob that was there is now %d other bytes", len(got))
	}
}

// endless yields zeros, and calls do after n bytes.
type endless struct {
	n  int
	do func()
}

func (r *endless) Read(p []byte) (int, error) {
	if r.n -= len(p); r.n < 0 && r.do != nil {
		r.do()
		r.do = nil
	}
	return len(p), nil
}

func cancelled(t *testing.T, s blob.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := s.Put(ctx, "n", io.LimitReader(&endless{n: 4 << 20, do: cancel}, 256<<20), 256<<20)
	wantKind(t, "a put cancelled midway", err, turnstone.KindCanceled)
	wantKind(t, "a put cancelled before", s.Put(ctx, "m", strings.NewReader("x"), 1),
		turnstone.KindCanceled)
	if got := names(t, s, ""); len(got) != 0 {
		t.Errorf("they left %q", got)
	}
}

func cancelledGet(t *testing.T, s blob.Store) {
	put(t, s, "n", random(1<<20))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := s.Get(ctx, "n", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, r); err == nil {
		// Buffered data may still be served, but not a megabyte.
		t.Error("a cancelled get goes on to its end")
	}
	_ = r.Close()
	_, err = s.Get(ctx, "n", 0, -1)
	wantKind(t, "a get cancelled before", err, turnstone.KindCanceled)
	wantKind(t, "a removal cancelled before", s.Remove(ctx, "n"), turnstone.KindCanceled)
	for _, err := range s.List(ctx, "") {
		wantKind(t, "a cancelled list", err, turnstone.KindCanceled)
	}
}

func list(t *testing.T, s blob.Store) {
	before := time.Now()
	// In bytewise order: "-" and "." come before "/", digits after it.
	all := []string{"a-b", "a.b", "a/b", "a/b-c/d", "a/b.c", "a0", "b/x/y", "b/x/z", "c"}
	for i, name := range all {
		put(t, s, name, random(i))
	}
	for prefix, want := range map[string][]string{
		"":      all,
		"a":     all[:6],
		"a/":    all[2:5],
		"a/b":   all[2:5],
		"a/b-":  all[3:4],
		"a/b/":  nil,
		"b/x/":  all[6:8],
		"b/x/z": all[7:8],
		"c/":    nil,
		"d":     nil,
	} {
		if got := names(t, s, prefix); !slices.Equal(got, want) {
			t.Errorf("List(%q):\n got %q\nwant %q", prefix, got, want)
		}
	}
	i := 0
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if info.Size != int64(i) {
			t.Errorf("%q has size %d, want %d", info.Name, info.Size, i)
		}
		if d := info.Modified.Sub(before); d < -time.Minute || d > time.Hour {
			t.Errorf("%q was put at %v, which is %v from now", info.Name, info.Modified, d)
		}
		i++
		if i == 3 {
			break // a list that is not read to its end
		}
	}
}

func again(t *testing.T, s blob.Store) {
	b := random(100_000)
	for range 3 {
		put(t, s, "twice", b)
	}
	if got := get(t, s, "twice", 0, -1); !bytes.Equal(got, b) {
		t.Error("a blob that was put again differs")
	}
	if got := names(t, s, ""); len(got) != 1 {
		t.Errorf("it is there as %q", got)
	}
}

func removal(t *testing.T, s blob.Store) {
	for _, name := range []string{"d/a", "d/b", "c"} {
		put(t, s, name, []byte("x"))
		_ = get(t, s, name, 0, -1)
		if rr, ok := s.(blob.RangeReader); ok {
			if err := rr.ReadAt(t.Context(), name, make([]byte, 1), 0); err != nil {
				t.Error(err)
			}
		}
	}
	for range 2 {
		for _, name := range []string{"d/a", "c"} {
			if err := s.Remove(t.Context(), name); err != nil {
				t.Errorf("Remove(%q): %v", name, err)
			}
			_, err := s.Get(t.Context(), name, 0, -1)
			wantKind(t, "Get after Remove", err, turnstone.KindNotFound)
			if rr, ok := s.(blob.RangeReader); ok {
				wantKind(t, "ReadAt after Remove", rr.ReadAt(t.Context(), name, make([]byte, 1), 0),
					turnstone.KindNotFound)
			}
		}
	}
	if got := names(t, s, ""); !slices.Equal(got, []string{"d/b"}) {
		t.Errorf("left: %q", got)
	}
}

// sameName checks that concurrent Puts leave a complete blob under a name from the first Put on.
func sameName(t *testing.T, s blob.Store) {
	b := random(1 << 20)
	want := sha256.Sum256(b)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.Put(t.Context(), "x/same", bytes.NewReader(b), int64(len(b))); err != nil {
				t.Errorf("Put: %v", err)
				return
			}
			r, err := s.Get(t.Context(), "x/same", 0, -1)
			if err != nil {
				t.Errorf("Get right after Put: %v", err)
				return
			}
			defer func() { _ = r.Close() }()
			h := sha256.New()
			if _, err := io.Copy(h, r); err != nil || [32]byte(h.Sum(nil)) != want {
				t.Errorf("right after Put it is another (%v)", err)
			}
		})
	}
	wg.Wait()
}

// large puts 100 MB that are never completely in memory.
func large(t *testing.T, s blob.Store) {
	const size = 100_000_000
	src := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{7}), size) }
	if err := s.Put(t.Context(), "large", src(), size); err != nil {
		t.Fatal(err)
	}
	digest := func(r io.Reader) [32]byte {
		h := sha256.New()
		if _, err := io.Copy(h, r); err != nil {
			t.Fatal(err)
		}
		return [32]byte(h.Sum(nil))
	}
	r, err := s.Get(t.Context(), "large", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if digest(r) != digest(src()) {
		t.Error("what was got is not what was put")
	}
	tail := get(t, s, "large", size-10, 10)
	all := src()
	_, _ = io.CopyN(io.Discard, all, size-10)
	if want, _ := io.ReadAll(all); !bytes.Equal(tail, want) {
		t.Error("the last ten bytes are others")
	}
}
