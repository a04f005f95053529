package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFuzzTestsAreListed: docs/fuzzing.md lists each fuzz test of the module below its package, and
// no other.
func TestFuzzTestsAreListed(t *testing.T) {
	root := ".."
	doc, err := os.ReadFile(filepath.Join(root, "docs", "fuzzing.md"))
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(doc), "\n## Results")
	var listed []string
	for _, m := range regexp.MustCompile("(?:`([a-z0-9/]+)`|root): ((?:`Fuzz[A-Za-z]+`(?:, )?)+)").
		FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile(`Fuzz[A-Za-z]+`).FindAllString(m[2], -1) {
			listed = append(listed, filepath.Join(m[1], name))
		}
	}
	found := fuzzTests(t, root)
	for _, name := range listed {
		if !slices.Contains(found, name) {
			t.Errorf("docs/fuzzing.md lists %s, which is not there", name)
		}
	}
	for _, name := range found {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/fuzzing.md does not list %s", name)
		}
	}
}

// fuzzTests returns the fuzz tests of the module, as folders and names.
func fuzzTests(t *testing.T, root string) (found []string) {
	t.Helper()
	fuzz := regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z]+)\(f \*testing\.F\)`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		in, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range fuzz.FindAllSubmatch(b, -1) {
			found = append(found, filepath.Join(in, string(m[1])))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
