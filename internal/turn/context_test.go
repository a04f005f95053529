package turn

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/sandboxes"
)

// A past is a state directory with turns that are made without machines.
type past struct {
	*repotest.Past
	t  *testing.T
	x  *Executor
	cs *repo.ContextStore
}

func newPast(t *testing.T) *past {
	t.Helper()
	x := New(&statedir.Dir{Root: t.TempDir()})
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	p := repotest.On(t, x.repo)
	return &past{Past: p, t: t, x: x, cs: p.CS}
}

// New returns an executor on h. Its options are those that the tests of a whole host set in the
// environment; its holder is this program: see TestMain.
func New(h *statedir.Dir) *Executor {
	return newExecutor(h, Options{Dir: h.Root, Store: os.Getenv("TURN_STORE"),
		Kernel: os.Getenv("TURN_KERNEL"), KernelModules: os.Getenv("TURN_KERNEL_MODULES"),
		Holder: sandboxes.Holder{Path: "/proc/self/exe", Args: []string{"turn", "sandbox", "hold"}}})
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

func texts(m map[string]string) []treetest.File { return treetest.Texts(m) }

func random(n int, seed byte) string { return repotest.Random(n, seed) }

func TestDiffOfStates(t *testing.T) {
	p := newPast(t)
	s := p.Session("s")
	many := strings.Repeat("line\n", 20)
	before := append(texts(map[string]string{"/a/same": "same", "/a/edited": many + "old\n" + many, "/a/gone": "gone\n", "/a/moved": "moved\n" + many,
		"/a/no-newline": "x", "/a/turns": "file\n", "/a/blob": "\x00old", "/a/we\"ird\n": "w\n", "/a/two words": "1\n"}),
		treetest.File{Path: "/a/mode", Data: "m", Mode: 0o644}, treetest.File{Path: "/a/dev", Type: tree.Char, Major: 1, Minor: 3})
	after := append(texts(map[string]string{"/a/same": "same", "/a/edited": many + "new\n" + many, "/a/came": "came\n", "/b/moved": "moved\n" + many,
		"/a/no-newline": "y", "/a/blob": "\x00newer", "/a/we\"ird\n": "w2\n", "/a/two words": "2\n"}),
		treetest.File{Path: "/a/mode", Data: "m", Mode: 0o755}, treetest.File{Path: "/a/dev", Type: tree.Char, Major: 1, Minor: 5},
		treetest.File{Path: "/a/turns", Target: "same"})
	p.Turn(s, "main", before...)
	p.Turn(s, "main", after...)
	d := ok[*repo.StateDiff](t)(p.x.Diff(t.Context(), repo.DiffRequest{From: "s@1", To: "2", Stat: true, Text: true}))
	var got []string
	patch := ""
	for _, f := range d.Files {
		got = append(got, fmt.Sprintf("%s %v +%d -%d %v", f, f.What, f.Plus, f.Minus, f.Binary))
		if f.Binary && !strings.Contains(f.Patch, "\nBinary files a/a/blob and b/a/blob differ\n") {
			t.Errorf("binary: %s", f.Patch)
		}
		if !f.Binary && f.Status != repo.Retyped {
			patch += f.Patch
		}
	}
	want := []string{
		`M /a/blob [content] +0 -0 true`, `A /a/came [] +1 -0 false`, `M /a/dev [device] +0 -0 false`, `M /a/edited [content] +1 -1 false`,
		`D /a/gone [] +0 -1 false`, `M /a/mode [mode] +0 -0 false`, `M /a/no-newline [content] +1 -1 false`, `T /a/turns [] +1 -1 false`,
		`M /a/two words [content] +1 -1 false`,
		"M /a/we\"ird\n [content] +1 -1 false", `A /b [] +0 -0 false`, `R /a/moved -> /b/moved [] +0 -0 false`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(d.Env) != 1 || d.Env[0].Name != "N" || d.Cwd != nil {
		t.Errorf("environment: %+v, %+v", d.Env, d.Cwd)
	}
	for _, line := range []string{"--- a/a/two words\t\n", "--- /dev/null\n+++ b/a/came\n@@ -0,0 +1,1 @@\n", "+++ /dev/null\n@@ -1,1 +0,0 @@\n"} {
		if !strings.Contains(patch, line) {
			t.Errorf("%q is not in\n%s", line, patch)
		}
	}
	// git takes the patch, and what comes out is the second state.
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	if err := p.x.CopyOut(t.Context(), "s@1", "/a", dir+"/", func(string, string) {}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, patch)
	}
	for file, want := range map[string]string{"a/edited": many + "new\n" + many, "a/came": "came\n", "b/moved": "moved\n" + many, "a/no-newline": "y", "a/we\"ird\n": "w2\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a/gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a/gone: %v", err)
	}
}

func TestFilesOfAState(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s := p.Session("s")
	big := random(3<<20, 1)
	files := append(texts(map[string]string{"/workspace/out.csv": "a,b\n", "/workspace/big": big, "/workspace/dir/deep/x": "x", "/etc/passwd": "p"}),
		treetest.File{Path: "/workspace/link", Target: "out.csv"}, treetest.File{Path: "/workspace/dir/evil", Target: "../../../../etc"},
		treetest.File{Path: "/workspace/dir/inside", Target: "deep/x"},
		treetest.File{Path: "/workspace/dir/pipe", Type: tree.FIFO}, treetest.File{Path: "/workspace/dir/suid", Data: "s", Mode: 0o4755},
		treetest.File{Path: "/workspace/dir/\xff\xfe", Data: "bytes"}, treetest.File{Path: "/workspace/loop", Target: "loop"})
	p.Turn(s, "main", files...)
	cat := func(name string) (string, error) {
		in, err := p.x.OpenFile(ctx, "s@1", name)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(in)
		return string(b), errors.Join(err, in.Close())
	}
	for name, want := range map[string]string{"/workspace/out.csv": "a,b\n", "out.csv": "a,b\n", "link": "a,b\n", "dir/../link": "a,b\n", "/workspace/big": big,
		"dir/evil/passwd": "p"} { // in the state, that leads to the state's own
		if got, err := cat(name); err != nil || got != want {
			t.Errorf("%s: %.20q, %v", name, got, err)
		}
	}
	for name, kind := range map[string]turnstone.Kind{"none": turnstone.KindNotFound, "dir": turnstone.KindInvalid, "dir/pipe": turnstone.KindInvalid, "loop": turnstone.KindInvalid} {
		if _, err := cat(name); turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v, want %s", name, err, kind)
		}
	}
	var listed []string
	list := func(f repo.FileInfo) error { listed = append(listed, f.Path+" "+f.Type); return nil }
	if err := p.x.ListFiles(ctx, "s", "dir", true, list); err != nil {
		t.Fatal(err)
	}
	want := []string{"/workspace/dir/deep dir", "/workspace/dir/deep/x file", "/workspace/dir/evil symlink", "/workspace/dir/inside symlink",
		"/workspace/dir/pipe fifo", "/workspace/dir/suid file", "/workspace/dir/\xff\xfe file"}
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	dest := t.TempDir()
	var skipped []string
	if err := p.x.CopyOut(ctx, "s@1", "dir", dest, func(name, _ string) { skipped = append(skipped, filepath.Base(name)) }); err != nil {
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
	if b, err := os.ReadFile(filepath.Join(dest, "dir/\xff\xfe")); err != nil || string(b) != "bytes" {
		t.Errorf("%q, %v", b, err)
	}
	if err := p.x.CopyOut(ctx, "s@1", "link", filepath.Join(dest, "renamed"), nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "renamed")); err != nil || string(b) != "a,b\n" {
		t.Errorf("%q, %v", b, err)
	}
}

func parse(t testing.TB, src string) *document.Document {
	t.Helper()
	d, err := document.Parse("test.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return d
}
