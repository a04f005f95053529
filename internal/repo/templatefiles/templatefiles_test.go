package templatefiles_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/templatefiles"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestContents follows two templates, of which one is removed, and folders that are no templates.
func TestContents(t *testing.T) {
	p := repotest.New(t)
	const both, first, second = "in both of them", "in the first only", "in the second only"
	for name, own := range map[string]string{"one": first, "two": second} {
		index := p.Template(name, map[string]string{"/both": both, "/own": own})
		index(treetest.NewStore())
	}
	dir := p.Repo.Dir.Path("templates")
	for name, manifest := range map[string]string{strings.Repeat("0", 64): "no JSON",
		strings.Repeat("1", 64): `{"root": {}}`, "short": "{}"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"manifest.json": manifest, "root.tree": "no index"} {
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := &templatefiles.Contents{Dir: dir}
	folders := map[string]string{} // by the text that only its image has
	for _, text := range []string{first, second} {
		d := turnstone.DigestBytes([]byte(text))
		if !c.HasContent(d) || !c.HasSize(int64(len(text))) {
			t.Fatalf("%q is not found", text)
		}
		entries, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, folder := range entries {
			if c.OnlyIn(folder, d) {
				folders[text] += folder
			}
		}
		if filepath.Dir(folders[text]) != dir {
			t.Fatalf("%q is only in %q", text, folders[text])
		}
		if c.OnlyIn(folders[text], turnstone.DigestBytes([]byte(both))) {
			t.Errorf("a content of both is only in %s", folders[text])
		}
	}
	read := func(text string) (string, error) {
		in, err := c.OpenContent(t.Context(), turnstone.Content{
			Digest: turnstone.DigestBytes([]byte(text)), Size: int64(len(text))})
		if err != nil {
			return "", err
		}
		defer func() { _ = in.Close() }()
		b, err := io.ReadAll(in)
		return string(b), err
	}
	if got, err := read(first); got != first || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// Another process removes a template: its contents are gone, and those of the other are not.
	if err := os.RemoveAll(folders[first]); err != nil {
		t.Fatal(err)
	}
	if got, err := read(first); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%q of a removed template, %v", got, err)
	}
	if got, err := read(both); got != both || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if c.HasContent(turnstone.DigestBytes([]byte(second))) {
		t.Error("contents are found after Close")
	}
}
