package repo_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/copyout"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func TestFilesOfAState(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	s := p.Session("s")
	big := repotest.Random(3<<20, 1)
	files := append(treetest.Texts(map[string]string{"/workspace/out.csv": "a,b\n",
		"/workspace/big": big, "/workspace/dir/deep/x": "x", "/etc/passwd": "p"}),
		treetest.File{Path: "/workspace/link", Target: "out.csv"},
		treetest.File{Path: "/workspace/dir/evil", Target: "../../../../etc"},
		treetest.File{Path: "/workspace/dir/inside", Target: "deep/x"},
		treetest.File{Path: "/workspace/dir/pipe", Type: tree.FIFO},
		treetest.File{Path: "/workspace/dir/suid", Data: "s", Mode: 0o4755},
		treetest.File{Path: "/workspace/dir/\xff\xfe", Data: "bytes"},
		treetest.File{Path: "/workspace/loop", Target: "loop"})
	p.Turn(s, "main", files...)
	cat := func(name string) (string, error) {
		in, err := p.Repo.OpenFile(ctx, "s@1", name)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(in)
		return string(b), errors.Join(err, in.Close())
	}
	for name, want := range map[string]string{"/workspace/out.csv": "a,b\n", "out.csv": "a,b\n",
		"link": "a,b\n", "dir/../link": "a,b\n", "/workspace/big": big,
		"dir/evil/passwd": "p"} { // in the state, a symlink that leads to a file of the state
		if got, err := cat(name); err != nil || got != want {
			t.Errorf("%s: %.20q, %v", name, got, err)
		}
	}
	for name, kind := range map[string]turnstone.Kind{"none": turnstone.KindNotFound,
		"dir": turnstone.KindInvalid, "dir/pipe": turnstone.KindInvalid,
		"loop": turnstone.KindInvalid} {
		if _, err := cat(name); turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v, want %s", name, err, kind)
		}
	}
	var listed []string
	list := func(f turnstone.FileInfo) error {
		listed = append(listed,
			f.Path+" "+f.Type)
		return nil
	}
	if err := p.Repo.ListFiles(ctx, "s", "dir", true, list); err != nil {
		t.Fatal(err)
	}
	want := []string{"/workspace/dir/deep dir", "/workspace/dir/deep/x file",
		"/workspace/dir/evil symlink", "/workspace/dir/inside symlink",
		"/workspace/dir/pipe fifo", "/workspace/dir/suid file", "/workspace/dir/\xff\xfe file"}
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	dest := t.TempDir()
	var skipped []string
	if err := copyout.Copy(ctx, p.Repo, "s@1", "dir", dest,
		func(name, _ string) { skipped = append(skipped, filepath.Base(name)) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(skipped)
	if want := []string{"evil", "pipe", "suid"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "dir/inside")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if st, err := os.Lstat(filepath.Join(dest, "dir/suid")); err != nil || st.Mode() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "dir/\xff\xfe")); err != nil ||
		string(b) != "bytes" {
		t.Errorf("%q, %v", b, err)
	}
	if err := copyout.Copy(ctx, p.Repo, "s@1", "link", filepath.Join(dest, "renamed"),
		nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "renamed")); err != nil || string(b) != "a,b\n" {
		t.Errorf("%q, %v", b, err)
	}
}
