package public

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
)

// notItsDigest is in the stamps of the tests: who reads the file finds that it is damaged.
const notItsDigest = turnstone.Digest("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// built makes the folder of an image, with a stamp that is fresh.
func built(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "built")
	write(t, filepath.Join(dir, image), "the image")
	write(t, filepath.Join(dir, index), "the index")
	s, err := filestamp.Quick(filepath.Join(dir, image))
	if err != nil {
		t.Fatal(err)
	}
	s.Digest = notItsDigest
	b, err := json.Marshal(map[string]any{"format": 1, "root": s, "more": []string{"kept"}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, manifest), string(b))
	return dir
}

func give(from, to string, also ...string) error {
	return new(Images).Link(from, to, func() []string { return also })
}

// stamp returns the stamp in a folder's manifest.
func stamp(t *testing.T, dir string) filestamp.Stamp {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, manifest))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Format int             `json:"format"`
		Root   filestamp.Stamp `json:"root"`
		More   []string        `json:"more"`
	}
	if err := json.Unmarshal(b, &m); err != nil || m.Format != 1 || strings.Join(m.More, " ") != "kept" {
		t.Errorf("%s: %v, %s", dir, err, b)
	}
	return m.Root
}

// TestImage: the stamps of all who have an image follow each new link, so that nobody reads it.
func TestImage(t *testing.T) {
	from := built(t)
	var also []string
	for _, name := range []string{"a", "b", "c"} {
		to := filepath.Join(t.TempDir(), name, "image")
		if err := give(from, to, append(also, filepath.Join(t.TempDir(), "none"))...); err != nil {
			t.Fatal(err)
		}
		also = append(also, to)
		for _, dir := range append([]string{from}, also...) {
			if s := stamp(t, dir); !s.Fresh(filepath.Join(dir, image)) || s.Digest != notItsDigest {
				t.Errorf("after %s: %s: %+v", name, dir, s)
			}
			if b, err := os.ReadFile(filepath.Join(dir, index)); err != nil || string(b) != "the index" {
				t.Errorf("%q, %v", b, err)
			}
		}
	}
	if err := give(from, also[0], also...); err != nil || !stamp(t, from).Fresh(filepath.Join(from, image)) {
		t.Error("a folder that exists:", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(also[0]), "tmp", "*")); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

// TestImagesAtOnce: links at one time leave the stamps of the last one.
func TestImagesAtOnce(t *testing.T) {
	from, above := built(t), t.TempDir()
	var also []string
	for n := range 20 {
		also = append(also, filepath.Join(above, fmt.Sprint(n), "image"))
	}
	var images Images
	var all sync.WaitGroup
	for _, to := range slices.Concat(also, also) {
		all.Go(func() {
			if err := images.Link(from, to, func() []string { return also }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, dir := range append(also, from) {
		if s := stamp(t, dir); !s.Fresh(filepath.Join(dir, image)) || s.Digest != notItsDigest {
			t.Errorf("%s: %+v", dir, s)
		}
	}
}

// TestImageThatChanged: a stamp that was not fresh before the link is none after it, and what cannot be
// read of others hinders no link.
func TestImageThatChanged(t *testing.T) {
	from := built(t)
	other, broken := filepath.Join(t.TempDir(), "other"), t.TempDir()
	if err := give(from, other); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(broken, manifest), "{{{")
	was, path := stamp(t, from), filepath.Join(from, image)
	write(t, path, "an imagE!") // as long as before
	old := time.Unix(0, was.MtimeNs)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "to")
	if err := give(from, to, other, broken); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{from, to, other} {
		if s := stamp(t, dir); s != was || s.Fresh(filepath.Join(dir, image)) {
			t.Errorf("%s: %+v, before %+v", dir, s, was)
		}
	}
}

// TestNoImage: a layered template has no image, and the folder is not made.
func TestNoImage(t *testing.T) {
	from := t.TempDir()
	write(t, filepath.Join(from, manifest), "{}")
	to := filepath.Join(t.TempDir(), "to")
	if err := give(from, to); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(to); err == nil {
		t.Error("a folder without an image was made")
	}
}
