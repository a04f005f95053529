package template

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestImagesThatTurnsMayNeedStay checks that when a rebuild of a damaged image results in another
// image, the intact files of the old image are still found.
func TestImagesThatTurnsMayNeedStay(t *testing.T) {
	ctx := context.Background()
	s, n := counting(t)
	tmpl := ensure(t, s, "base")
	_, made := makeTemplate(t, []treetest.File{{Path: "/a", Data: "a file"}})
	// The image of the old build: it has a tree, and its spec's digest now results in another tree.
	dir := filepath.Dir(tmpl.Root)
	b, err := os.ReadFile(made.Root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tmpl.Root, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tmpl.Root, b, 0o644); err != nil {
		t.Fatal(err)
	}
	old := *made
	old.Root = tmpl.Root
	if err := writeManifest(filepath.Join(dir, "manifest.json"), tmpl, &old); err != nil {
		t.Fatal(err)
	}
	objects := treetest.NewStore()
	ref, err := s.Tree(ctx, &old, objects)
	if err != nil {
		t.Fatal(err)
	}
	// A bit of it flips: it is built again.
	b[len(b)-1] ^= 1
	if err := os.WriteFile(tmpl.Root, append(b, 0), 0o644); err != nil {
		t.Fatal(err)
	}
	if again := ensure(t, s, "base"); n.Load() != 2 || again.RootDigest == old.RootDigest {
		t.Fatalf("%d builds", n.Load())
	}
	aside := old
	aside.Root = filepath.Join(s.imageDir(old.RootDigest), "root.erofs")
	c := ContentOf(&aside)
	defer func() { _ = c.Close() }()
	e, err := tree.Lookup(ctx, objects, ref, "/a")
	if err != nil {
		t.Fatal(err)
	}
	if !c.HasContent(e.Content.Digest) {
		t.Error("the file is lost")
	}
}

func writeManifest(path string, of, with *turnstone.Template) error {
	m := manifest{Format: manifestVersion, Digest: of.Digest}
	m.Root.Digest, m.Root.Size = with.RootDigest, with.Size
	return writeJSON(path, m)
}
