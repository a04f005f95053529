package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/local"
	"turnstone.dev/turnstone/internal/store/cut"
	"turnstone.dev/turnstone/internal/store/tree"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == crashArg {
		crashChild(os.Args[2])
		return
	}
	goleak.VerifyTestMain(leaktest.Patient(m))
}

// A fixture is a store with its folders, which tests inspect and damage.
type fixture struct {
	*store.Store
	dir string // of the index
	bl  string // of the packs
}

func open(t testing.TB, root string) *fixture {
	t.Helper()
	return openWith(t, root, nil)
}

func openWith(t testing.TB, root string, fault func(string) error) *fixture {
	t.Helper()
	f := &fixture{dir: filepath.Join(root, "store"), bl: filepath.Join(root, "blobs")}
	blobs, err := local.Open(f.bl, local.Options{Fault: fault})
	check(t, err)
	f.Store, err = store.Open(t.Context(), f.dir, blobs, store.Options{Fault: fault})
	check(t, err)
	t.Cleanup(func() {
		_ = f.Close()
		_ = blobs.Close()
	})
	return f
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func begin(t testing.TB, s *fixture) *store.Batch {
	t.Helper()
	b, err := s.Begin(t.Context())
	check(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// text compresses, noise does not; both are deterministic for n.
func text(n, seed int) []byte {
	var b bytes.Buffer
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	for b.Len() < n {
		fmt.Fprintf(&b, "line %d of some text that says %d\n", r.IntN(1000), r.IntN(100))
	}
	return b.Bytes()[:n]
}

func noise(n, seed int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(n)}).Read(b)
	return b
}

type putter interface {
	tree.Putter
	tree.ContentPutter
}

func put(t testing.TB, b putter, p []byte) turnstone.Digest {
	t.Helper()
	d, err := b.Put(t.Context(), p)
	check(t, err)
	return d
}

func putContent(t testing.TB, b putter, p []byte) turnstone.Content {
	t.Helper()
	c, err := b.PutContent(t.Context(), bytes.NewReader(p), int64(len(p)))
	check(t, err)
	return c
}

func wantContent(t testing.TB, s tree.ContentGetter, c turnstone.Content, want []byte) {
	t.Helper()
	r, err := s.OpenContent(t.Context(), c)
	if err != nil {
		t.Errorf("OpenContent(%v): %v", c, err)
		return
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("content of %d bytes: got %d, %v", len(want), len(got), err)
	}
	check(t, r.Close())
}

func wantObject(t testing.TB, s tree.Getter, want []byte) {
	t.Helper()
	got, err := s.Get(t.Context(), turnstone.DigestBytes(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("object of %d bytes: got %d, %v", len(want), len(got), err)
	}
}

func fsckClean(t testing.TB, s *fixture) turnstone.StoreSummary {
	t.Helper()
	sum, err := s.Fsck(t.Context(), func(p store.Problem) { t.Errorf("fsck: %+v: %v", p, p.Err) })
	check(t, err)
	return sum
}

// samples has an example of each kind of content.
func samples() [][]byte {
	return [][]byte{{}, []byte("x"), text(4000, 1), noise(4000, 1), text(1<<20, 2), noise(1<<20, 2),
		text(1<<20+1, 3), noise(5_000_000, 4), make([]byte, 9_000_000),
		bytes.Repeat(noise(70_000, 5), 60)}
}

func TestRoundTrip(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	b := begin(t, s)
	var contents []turnstone.Content
	for _, p := range samples() {
		c := putContent(t, b, p)
		if want := turnstone.DigestBytes(p); c.Digest != want || c.Size != int64(len(p)) ||
			(c.Chunks != "") != (len(p) > 1<<20) {
			t.Errorf("content of %d bytes is %+v", len(p), c)
		}
		contents = append(contents, c)
		wantContent(t, b, c, p) // before it is written
	}
	object := text(3<<20, 9) // an object is never cut
	if d := put(t, b, object); d != turnstone.DigestBytes(object) {
		t.Errorf("digest %s", d)
	}
	wantObject(t, b, object)
	check(t, b.Flush(t.Context()))
	again := open(t, root)
	for _, r := range []tree.Reader{b, s, again} {
		for i, p := range samples() {
			wantContent(t, r, contents[i], p)
		}
		wantObject(t, r, object)
	}
	fsckClean(t, again)
	_, err := again.Get(t.Context(), turnstone.DigestBytes([]byte("nothing")))
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("what is not there: %v", err)
	}
	_, err = again.Get(t.Context(), "sha256:nonsense")
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("no digest: %v", err)
	}
}

// TestNothingNew checks that existing data causes no write.
func TestNothingNew(t *testing.T) {
	writes := 0
	root := t.TempDir()
	fill := func(s *fixture) {
		b := begin(t, s)
		for _, p := range samples() {
			putContent(t, b, p)
			putContent(t, b, p)
		}
		check(t, b.Flush(t.Context()))
		check(t, b.Close())
	}
	fill(open(t, root))
	before := fsckClean(t, open(t, root))
	fill(openWith(t, root, func(op string) error { writes++; return nil }))
	if writes != 0 {
		t.Errorf("%d writes", writes)
	}
	if after := fsckClean(t, open(t, root)); before != after {
		t.Errorf("%+v is now %+v", before, after)
	}
}

// TestNotFlushed checks that a batch that is closed early leaves nothing known.
func TestNotFlushed(t *testing.T) {
	s := open(t, t.TempDir())
	b := begin(t, s)
	p := text(5000, 1)
	d := put(t, b, p)
	check(t, b.Close())
	if ok, err := s.Has(t.Context(), d); ok || err != nil {
		t.Errorf("it is there: %v", err)
	}
	if _, err := b.Put(t.Context(), p); err == nil {
		t.Error("a closed batch takes an object")
	}
	if err := b.Flush(t.Context()); err == nil {
		t.Error("a closed batch is flushed")
	}
}

// TestSharing checks that versions of a large content share unchanged parts, for changes at any
// position.
func TestSharing(t *testing.T) {
	s := open(t, t.TempDir())
	p := noise(20<<20, 1)
	b := begin(t, s)
	putContent(t, b, p)
	check(t, b.Flush(t.Context()))
	before, err := s.Usage(t.Context())
	check(t, err)
	changed := append(append(append([]byte{}, p[:7<<20]...), "an insertion"...), p[7<<20:]...)
	c := putContent(t, b, changed)
	check(t, b.Flush(t.Context()))
	wantContent(t, s, c, changed)
	after, err := s.Usage(t.Context())
	check(t, err)
	if more := after.Stored - before.Stored; more > 2<<20 {
		t.Errorf("an insertion of 12 bytes into 20 MiB takes %d bytes", more)
	}
}

// TestChunks pins the cuts of a content: other cuts would be another format.
func TestChunks(t *testing.T) {
	s := open(t, t.TempDir())
	b := begin(t, s)
	c := putContent(t, b, noise(3<<20, 77))
	check(t, b.Flush(t.Context()))
	if want := turnstone.Digest(wantList); c.Chunks != want {
		t.Errorf("the list of chunks is %s, want %s", c.Chunks, want)
	}
	all, err := s.ContentObjects(t.Context(), c)
	check(t, err)
	if all[0] != c.Chunks || len(all) < 4 {
		t.Errorf("it consists of %q", all)
	}
	for _, d := range all {
		if ok, err := s.Has(t.Context(), d); !ok || err != nil {
			t.Errorf("object %s: %v %v", d, ok, err)
		}
	}
}

func TestWrongSizes(t *testing.T) {
	s := open(t, t.TempDir())
	b := begin(t, s)
	for _, n := range []int{0, 1, 100, 1 << 20, 1<<20 + 1, 3 << 20} {
		for _, off := range []int{-1, 1, -70_000, 70_000} {
			if n+off < 0 {
				continue
			}
			_, err := b.PutContent(t.Context(), bytes.NewReader(noise(n, 3)), int64(n+off))
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%d bytes announced as %d: %v", n, n+off, err)
			}
		}
	}
	if _, err := b.PutContent(t.Context(), strings.NewReader(""),
		-1); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a negative size: %v", err)
	}
	cause := errors.New("the disk is gone")
	for _, n := range []int64{100, 1000, 500_000, 4 << 20} {
		r := io.MultiReader(io.LimitReader(zeros{}, n/2), failing{cause})
		if _, err := b.PutContent(t.Context(), r, n); !errors.Is(err, cause) {
			t.Errorf("a reader of %d bytes that fails: %v", n, err)
		}
	}
	check(t, b.Flush(t.Context())) // none of it harmed the batch
}

// TestRepeats checks contents in which chunks repeat, one after another and later: their lists are
// those of chunks that are cut and hashed one by one.
func TestRepeats(t *testing.T) {
	block := func(n, seed int) []byte { return noise(n<<10, seed) }
	empty := func(n int) []byte { return make([]byte, n<<10) }
	for name, p := range map[string][]byte{
		"zeros":              empty(9000),
		"holes":              slices.Concat(block(900, 1), empty(12_000), block(300, 2), empty(12_000), []byte("end")),
		"the same again":     bytes.Repeat(block(1024, 3), 9),
		"two in turn":        bytes.Repeat(slices.Concat(block(1024, 4), empty(1024)), 5),
		"repeats, then ends": slices.Concat(empty(7168), empty(1)),
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			s := open(t, root)
			b := begin(t, s)
			c, err := b.PutContent(t.Context(), bytes.NewReader(p), int64(len(p)))
			check(t, err)
			if c.Digest != turnstone.DigestBytes(p) {
				t.Errorf("the digest is %s", c.Digest)
			}
			wantContent(t, b, c, p)
			check(t, b.Flush(t.Context()))
			wantContent(t, s, c, p)
			got, err := s.ContentObjects(t.Context(), c)
			check(t, err)
			cutter, err := cut.New(nil)
			check(t, err)
			want := []turnstone.Digest{c.Chunks}
			for rest := p; len(rest) > 0; {
				k := cutter.Next(rest)
				want = append(want, turnstone.DigestBytes(rest[:k]))
				rest = rest[k:]
			}
			if !slices.Equal(got, want) {
				t.Errorf("the chunks are\n%v, want\n%v", got, want)
			}
			fsckClean(t, open(t, root))
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestConcurrentPuts puts the same and different data concurrently.
func TestConcurrentPuts(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	b := begin(t, s)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				p := text(100+i*20, i%50+g%2*50)
				c, err := b.PutContent(t.Context(), bytes.NewReader(p), int64(len(p)))
				if err != nil || c.Digest != turnstone.DigestBytes(p) {
					t.Errorf("put: %v", err)
				}
				wantContent(t, b, c, p)
			}
			p := noise(3<<20, g%3)
			c, err := b.PutContent(t.Context(), bytes.NewReader(p), int64(len(p)))
			if err != nil {
				t.Errorf("put: %v", err)
			}
			wantContent(t, b, c, p)
			if g%3 == 0 {
				if err := b.Flush(t.Context()); err != nil {
					t.Errorf("flush: %v", err)
				}
			}
		})
	}
	wg.Wait()
	check(t, b.Flush(t.Context()))
	fsckClean(t, open(t, root))
}
