package rootimage_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/rootimage"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestKeptFromTheStore extracts an image that only the store has, and extracts it again when the
// file was damaged. An old image of another machine is removed.
func TestKeptFromTheStore(t *testing.T) {
	p := repotest.New(t)
	const image = "not an image that this package would have to understand"
	batch := repotest.OK[*store.Batch](t)(p.CS.Store.Begin(t.Context()))
	c := p.Content(batch, image)
	if err := batch.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := batch.Close(); err != nil {
		t.Fatal(err)
	}
	roots := repotest.OK[string](t)(p.Repo.Dir.MkdirAll("cache", "roots"))
	old := filepath.Join(roots, "old.erofs")
	for _, path := range []string{old, old + ".json"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-31*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	rec := &turnstone.TurnRecord{Image: "gone", VM: &turnstone.VMRef{Image: &c}}
	for range 2 {
		tmpl, err := rootimage.Kept(t.Context(), p.Repo, repotest.Templates(p.Repo), rec, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(tmpl.Root); err != nil || string(b) != image ||
			tmpl.RootDigest != c.Digest || tmpl.Size != int64(len(image)) || tmpl.Name != "gone" {
			t.Fatalf("%q, %v of %+v", b, err, tmpl)
		}
		if err := os.Chmod(tmpl.Root, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(tmpl.Root, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(old + "*"); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// TestKeptRejects: records are untrusted, because they may be imported.
func TestKeptRejects(t *testing.T) {
	p := repotest.New(t)
	absent := turnstone.DigestBytes([]byte("an image that nothing here has"))
	index := p.Template("mine", map[string]string{"/f": "of another image"})
	index(treetest.NewStore())
	for _, c := range []struct {
		name string
		rec  turnstone.TurnRecord
		kind turnstone.Kind
		text string
	}{
		{"a path for a digest", turnstone.TurnRecord{Image: "mine", VM: &turnstone.VMRef{
			Image: &turnstone.Content{Digest: "sha256:../../../../etc/passwd"}}},
			turnstone.KindInternal, "malformed digest"},
		{"another image", turnstone.TurnRecord{Image: "mine", VM: &turnstone.VMRef{
			Image: &turnstone.Content{Digest: absent, Size: 30}}},
			turnstone.KindUnavailable, "is not the image of its machine"},
		{"an unknown template", turnstone.TurnRecord{Image: "none", VM: &turnstone.VMRef{
			Image: &turnstone.Content{Digest: absent, Size: 30}}},
			turnstone.KindNotFound, "the template of its machine is missing"},
	} {
		tmpl, err := rootimage.Kept(t.Context(), p.Repo, repotest.Templates(p.Repo), &c.rec,
			func(string) {})
		if turnstone.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v", c.name, tmpl, err)
		}
	}
	if _, err := os.Stat(p.Repo.Dir.Path("cache", "roots")); err == nil {
		t.Error("a rejected record has made a folder")
	}
}
