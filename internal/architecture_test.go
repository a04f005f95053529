package internal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitectureIsTrue compares docs/architecture.md with the packages: each has a row in its
// tables, and each path that it or docs/find.md names exists.
func TestArchitectureIsTrue(t *testing.T) {
	page, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	questions, err := os.ReadFile("../docs/find.md")
	if err != nil {
		t.Fatal(err)
	}
	page = append(page, questions...)
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		named[m[1]] = true
		if p := m[1]; strings.Contains(p, "/") && !strings.ContainsAny(p, " =@") {
			if _, err := os.Stat(filepath.Join("..", p)); err != nil {
				t.Errorf("docs/architecture.md names %s: %v", p, err)
			}
		}
	}
	for _, p := range packages(t) {
		n := name(p.ImportPath)
		helper := strings.HasSuffix(n, "test") || strings.Contains(n, "/internal/") || n == "examples" ||
			n == "internal/testhome"
		if n != "" && n != "internal" && !helper && !named[n] {
			t.Errorf("docs/architecture.md does not name %s", n)
		}
	}
}
