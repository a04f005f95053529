package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOutput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "doc.md")
	link := filepath.Join(dir, "link.md")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(path, []byte("old"), 0o600))
	check(os.Chmod(path, 0o604))
	check(os.Symlink("doc.md", link))

	o, err := NewOutput(link)
	check(err)
	o.Old = []byte("old")
	check(o.Write([]byte("new")))
	got, err := os.ReadFile(path)
	check(err)
	info, err := os.Stat(path)
	check(err)
	if string(got) != "new" || info.Mode().Perm() != 0o604 {
		t.Errorf("got %q with mode %v", got, info.Mode())
	}
	if _, err := os.Readlink(link); err != nil {
		t.Errorf("the link is gone: %v", err)
	}

	// Another user's edit wins.
	if err := o.Write([]byte("newer")); err == nil {
		t.Error("a changed file was overwritten")
	}
	if got, _ := os.ReadFile(path); string(got) != "new" {
		t.Errorf("got %q", got)
	}
	entries, err := os.ReadDir(dir)
	check(err)
	if len(entries) != 2 {
		t.Errorf("stray files: %v", entries)
	}
}

// A new file has the mode of any new file.
func TestOutputNewFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new.md")
	o, err := NewOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	plain := path + ".plain"
	f, err := os.Create(plain)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	a, _ := os.Stat(path)
	b, _ := os.Stat(plain)
	if a.Mode() != b.Mode() {
		t.Errorf("mode %v, a file made by others has %v", a.Mode(), b.Mode())
	}
}
