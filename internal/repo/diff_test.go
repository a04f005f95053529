package repo_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/copyout"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// Most tests compute alone, for long: under the race detector run those that start goroutines themselves.
//
//testrun:race own

func TestDiffOfStates(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	many := strings.Repeat("line\n", 20)
	before := append(treetest.Texts(map[string]string{"/a/same": "same",
		"/a/edited": many + "old\n" + many, "/a/gone": "gone\n", "/a/moved": "moved\n" + many,
		"/a/no-newline": "x", "/a/turns": "file\n", "/a/blob": "\x00old", "/a/we\"ird\n": "w\n",
		"/a/two words": "1\n"}),
		treetest.File{Path: "/a/mode", Data: "m", Mode: 0o644},
		treetest.File{Path: "/a/dev", Type: tree.Char, Major: 1, Minor: 3})
	after := append(treetest.Texts(map[string]string{"/a/same": "same",
		"/a/edited": many + "new\n" + many, "/a/came": "came\n", "/b/moved": "moved\n" + many,
		"/a/no-newline": "y", "/a/blob": "\x00newer", "/a/we\"ird\n": "w2\n",
		"/a/two words": "2\n"}),
		treetest.File{Path: "/a/mode", Data: "m", Mode: 0o755},
		treetest.File{Path: "/a/dev", Type: tree.Char, Major: 1, Minor: 5},
		treetest.File{Path: "/a/turns", Target: "same"})
	p.Turn(s, "main", before...)
	p.Turn(s, "main", after...)
	d := ok[*turnstone.StateDiff](t)(p.Repo.Diff(t.Context(), turnstone.DiffRequest{From: "s@1",
		To: "2", Stat: true, Text: true}))
	var got []string
	patch := ""
	for _, f := range d.Files {
		name := f.Path
		if f.OldPath != "" {
			name = f.OldPath + " -> " + f.Path
		}
		got = append(got, fmt.Sprintf("%s %s %v +%d -%d %v", f.Status, name, f.What, f.Plus,
			f.Minus, f.Binary))
		if f.Binary && !strings.Contains(f.Patch, "\nBinary files a/a/blob and b/a/blob differ\n") {
			t.Errorf("binary: %s", f.Patch)
		}
		if !f.Binary && f.Status != turnstone.ChangeRetyped {
			patch += f.Patch
		}
	}
	want := []string{
		`M /a/blob [content] +0 -0 true`, `A /a/came [] +1 -0 false`,
		`M /a/dev [device] +0 -0 false`, `M /a/edited [content] +1 -1 false`,
		`D /a/gone [] +0 -1 false`, `M /a/mode [mode] +0 -0 false`,
		`M /a/no-newline [content] +1 -1 false`, `T /a/turns [] +1 -1 false`,
		`M /a/two words [content] +1 -1 false`,
		"M /a/we\"ird\n [content] +1 -1 false", `A /b [] +0 -0 false`,
		`R /a/moved -> /b/moved [] +0 -0 false`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(d.Env) != 1 || d.Env[0].Name != "N" || d.Cwd != nil {
		t.Errorf("environment: %+v, %+v", d.Env, d.Cwd)
	}
	for _, line := range []string{"--- a/a/two words\t\n",
		"--- /dev/null\n+++ b/a/came\n@@ -0,0 +1,1 @@\n", "+++ /dev/null\n@@ -1,1 +0,0 @@\n"} {
		if !strings.Contains(patch, line) {
			t.Errorf("%q is not in\n%s", line, patch)
		}
	}
	// git accepts the patch, and the result is the second state.
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	if err := copyout.Copy(t.Context(), p.Repo, "s@1", "/a", dir+"/",
		func(string, string) {}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, patch)
	}
	for file, want := range map[string]string{"a/edited": many + "new\n" + many, "a/came": "came\n",
		"b/moved": "moved\n" + many, "a/no-newline": "y", "a/we\"ird\n": "w2\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a/gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a/gone: %v", err)
	}
}
