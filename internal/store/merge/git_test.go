package merge

import (
	"bytes"
	"crypto/sha1" // git's names of blobs, and lines that differ
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// A repo is a git repository for merges.
type repo struct{ dir string }

func (r repo) git(t testing.TB, stdin string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "merge.directoryRenames=false", "-c",
		"merge.renames=true"}, args...)...)
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("git %s: %v\n%s%s", args, err, out, &stderr)
	}
	if err != nil {
		return string(out), 1
	}
	return string(out), 0
}

// fastImport writes a model as a commit in the format of git fast-import.
func fastImport(w *strings.Builder, m model, mark, parent int) {
	fmt.Fprintf(w, "commit refs/heads/m%d\nmark :%d\ncommitter T <t@example.com> 0 +0000\ndata 0\n",
		mark, mark)
	if parent != 0 {
		fmt.Fprintf(w, "from :%d\n", parent)
	}
	w.WriteString("deleteall\n")
	for _, p := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(w, "M %s inline %s\ndata %d\n%s\n", gitMode(m[p]), p,
			len(gitData(m[p])), gitData(m[p]))
	}
	w.WriteByte('\n')
}

func gitMode(th *thing) string {
	switch {
	case th.attr.Type == tree.Symlink:
		return "120000"
	case th.attr.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

func gitData(th *thing) string {
	if th.attr.Type == tree.Symlink {
		return th.attr.Target
	}
	return th.data
}

// merge merges models with git: the files of the result, or "conflict".
func (r repo) merge(t testing.TB, base, ours, theirs model) string {
	var in strings.Builder
	in.WriteString("feature done\n")
	fastImport(&in, base, 1, 0)
	fastImport(&in, ours, 2, 1)
	fastImport(&in, theirs, 3, 1)
	in.WriteString("done\n")
	r.git(t, in.String(), "fast-import", "--quiet", "--force")
	out, status := r.git(t, "", "merge-tree", "--write-tree", "m2", "m3")
	if status != 0 {
		return "conflict"
	}
	list, _ := r.git(t, "", "ls-tree", "-r", strings.TrimSpace(out))
	return list
}

// list returns a model as git ls-tree -r lists it.
func (m model) list() string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(m)) {
		if m[p].attr.Type == tree.Dir {
			continue // git has no empty directories
		}
		data := gitData(m[p])
		fmt.Fprintf(&b, "%s blob %x\t%s\n", gitMode(m[p]),
			sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(data), data)), p)
	}
	return b.String()
}

// gitLine returns a line that starts with a digest of text. Lines that differ in one character only
// may have the same hash in git (diffcore-delta.c), which then takes files without a common line for
// similar.
func gitLine(text string) string {
	return fmt.Sprintf("%.6x %s\n", sha1.Sum([]byte(text)), text)
}

// gitEdit makes a few changes with a unique interpretation: all lines differ.
func (m model) gitEdit(t *rapid.T, label string) model {
	m = m.copy()
	fresh := 0
	line := func() string {
		fresh++
		return gitLine(fmt.Sprintf("%s adds line number %d", label, fresh))
	}
	paths := rapid.SampledFrom([]string{"a", "b", "c", "d/a", "d/b", "d/c", "e/a", "e/f/a", "g"})
	for range rapid.IntRange(0, 4).Draw(t, label) {
		all := slices.Sorted(maps.Keys(m))
		op := rapid.IntRange(0, 8).Draw(t, "op")
		if len(all) == 0 || op == 0 {
			m.set(paths.Draw(t, "path"),
				&thing{attr: tree.Attr{Type: tree.File, Mode: 0o644}, data: line() + line()})
			continue
		}
		p := rapid.SampledFrom(all).Draw(t, "of")
		th := m[p]
		switch {
		case op == 1:
			m.remove(p)
		case op == 2 || op == 3:
			to := paths.Draw(t, "to")
			m.remove(p)
			m.set(to, th)
		case op == 4 && th.attr.Type == tree.File:
			th.attr.Mode ^= 0o111
		case op == 5:
			m.set(p, &thing{attr: tree.Attr{Type: tree.Symlink, Mode: 0o777,
				Target: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "target")}})
		case th.attr.Type == tree.File:
			lines := strings.SplitAfter(th.data, "\n")
			lines = lines[:len(lines)-1]
			at := rapid.IntRange(0, len(lines)).Draw(t, "at")
			end := min(len(lines), at+rapid.IntRange(0, 2).Draw(t, "cut"))
			th.data = strings.Join(lines[:at], "") + line() + strings.Join(lines[end:], "")
		}
	}
	return m
}

// replacesSource reports whether a side has a symlink in place of a file that the other side has
// removed and perhaps renamed. If both sides have a file at the rename's target, git 2.39 takes one of
// them and reports no conflict.
func replacesSource(base, side, other model) bool {
	for p, th := range side {
		if was := base[p]; was != nil && was.attr.Type == tree.File && th.attr.Type == tree.Symlink &&
			other[p] == nil {
			return true
		}
	}
	return false
}

// TestReplacedSource checks that no file is lost where git loses one.
func TestReplacedSource(t *testing.T) {
	file := func(name string) *thing {
		var data strings.Builder
		for n := range 8 {
			data.WriteString(gitLine(fmt.Sprintf("%s has line number %d", name, n)))
		}
		return &thing{attr: tree.Attr{Type: tree.File, Mode: 0o644}, data: data.String()}
	}
	base, ours, theirs := model{}, model{}, model{}
	base.set("one", file("one"))
	base.set("two", file("two"))
	ours.set("to", file("one")) // renamed
	ours.set("two", file("two"))
	theirs.set("one", &thing{attr: tree.Attr{Type: tree.Symlink, Mode: 0o777, Target: "x"}})
	theirs.set("to", file("two")) // renamed
	w := treetest.NewStore()
	res, err := Trees(t.Context(), w, base.put(t, w), ours.put(t, w), theirs.put(t, w), Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := describe(res.Conflicts)
	if !slices.Equal(got, []string{"one delete/modify", "to rename/add"}) {
		t.Errorf("the conflicts are %q", got)
	}
}

// If git merges, this package merges to the same files; if git does not, this package does not.
// Directory renames are excluded. With a replaced source of a rename there may be a conflict where git
// reports none: see replacesSource.
func TestTreesAsGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	r := repo{t.TempDir()}
	r.git(t, "", "init", "-q", "-b", "none")
	clean, conflicts := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		base := model{}
		for i, p := range []string{"a", "b", "d/a", "d/b", "e/f/a"} {
			if !rapid.Bool().Draw(rt, p) {
				continue
			}
			var data strings.Builder
			for n := range 8 {
				data.WriteString(gitLine(fmt.Sprintf("file %d has line number %d", i, n)))
			}
			base.set(p, &thing{attr: tree.Attr{Type: tree.File, Mode: 0o644}, data: data.String()})
		}
		ours, theirs := base.gitEdit(rt, "ours"), base.gitEdit(rt, "theirs")
		w := treetest.NewStore()
		res, err := Trees(t.Context(), w, base.put(t, w), ours.put(t, w),
			theirs.put(t, w), Options{})
		if err != nil {
			rt.Fatal(err)
		}
		got := "conflict"
		if len(res.Conflicts) == 0 {
			got = load(t, w, res.Tree).list()
			clean++
		} else {
			conflicts++
		}
		mayLose := replacesSource(base, ours, theirs) || replacesSource(base, theirs, ours)
		if want := r.merge(t, base, ours, theirs); got != want && !(mayLose && got == "conflict") {
			rt.Fatalf("-- base\n%s\n-- ours\n%s\n-- theirs\n%s\n-- got %q\n%s\n-- git\n%s", base,
				ours, theirs, describe(res.Conflicts), got, want)
		}
	})
	if clean == 0 || conflicts == 0 {
		t.Errorf("%d clean, %d with conflicts: it shows little", clean, conflicts)
	}
}

// Similarity equals git's.
func TestSimilarityAsGit(t *testing.T) {
	r := repo{t.TempDir()}
	r.git(t, "", "init", "-q", "-b", "none")
	rapid.Check(t, func(rt *rapid.T) {
		line := rapid.Map(rapid.IntRange(0, 30), func(n int) string {
			return strings.Repeat(fmt.Sprint(n, " "), n+1) + "\n"
		})
		one := strings.Join(rapid.SliceOfN(line, 1, 12).Draw(rt, "one"), "")
		two := strings.Join(rapid.SliceOfN(line, 1, 12).Draw(rt, "two"), "")
		if one == two {
			rt.Skip("the same")
		}
		var in strings.Builder
		in.WriteString("feature done\n")
		file := func(p, data string) model {
			return model{p: &thing{attr: tree.Attr{Type: tree.File, Mode: 0o644}, data: data}}
		}
		fastImport(&in, file("from", one), 1, 0)
		fastImport(&in, file(path.Join("d", "to"), two), 2, 1)
		in.WriteString("done\n")
		r.git(t, in.String(), "fast-import", "--quiet", "--force")
		out, _ := r.git(t, "", "diff", "-M01%", "--raw", "m1", "m2")
		want := 0
		if fields := strings.Fields(out); len(fields) > 4 && strings.HasPrefix(fields[4], "R") {
			_, _ = fmt.Sscanf(fields[4], "R%d", &want)
		}
		large := int64(max(len(one), len(two)))
		got := int(common(chunks([]byte(one)), chunks([]byte(two))) * 100 / large)
		if got != want {
			rt.Fatalf("%d%%, git says %d%%\n%q\n%q\n%s", got, want, one, two, out)
		}
	})
}
