package turnstone

import (
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCheckName(t *testing.T) {
	for name, want := range map[string]struct{ session, branch bool }{
		"a": {true, true}, "main": {true, true}, "v1.2_rc-3": {true, true}, "0": {true, true},
		"Main":     {true, true},
		"fix/auth": {false, true}, "explore/oauth/2": {false, true}, "a/b.c": {false, true},
		strings.Repeat("a", 64): {true, true}, strings.Repeat("a", 65): {false, true},
		strings.Repeat("a/", 49) + "aa": {false, true}, strings.Repeat("a", 101): {false, false},
		"": {}, ".": {}, "..": {}, "/": {}, "/a": {}, "a/": {}, "a//b": {}, "a/../b": {},
		"a/.b": {}, "-a": {}, "a/-b": {}, "@": {}, "a@b": {},
		"a b": {}, "a\n": {}, "a\x00": {}, "a~1": {}, "a:b": {}, "a^": {}, "a?": {}, "a*": {},
		"a[": {}, `a\b`: {}, "a+b": {}, "ä": {}, "_a": {}, "a%2fb": {},
		"a..b": {true, false}, "a.": {true, false}, "a.lock": {true, false},
		"a.LOCK": {true, false}, "a.lock/b": {}, "a./b": {},
	} {
		for what, ok := range map[string]bool{NameOfSession: want.session, NameOfHome: want.session,
			NameOfBranch: want.branch, NameOfTag: want.branch} {
			err := CheckName(what, name)
			if (err == nil) != ok {
				t.Errorf("%s %q: %v", what, name, err)
			}
			if err != nil && (KindOf(err) != KindInvalid || HintOf(err) == "") {
				t.Errorf("%s %q: kind %s, hint %q", what, name, KindOf(err), HintOf(err))
			}
		}
	}
}

// nearNames are texts of which many are names and many are almost names.
func nearNames() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "B", "7", ".", "..", "/", "//", "-", "_", ".lock", ".LOCK",
			"@", "~", ":", "^", "\\", " ", "\n", "\x7f", "é", "{", "main", "HEAD"}), rapid.String())
	return rapid.Custom(
		func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(part, 0, 12).Draw(t, "parts"), "")
		})
}

// TestNamesStayInside: no name leads out of a folder, or to a folder with another meaning.
func TestNamesStayInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := nearNames().Draw(t, "name")
		for _, what := range []string{NameOfSession, NameOfHome, NameOfBranch, NameOfTag} {
			if CheckName(what, name) != nil {
				continue
			}
			if !filepath.IsLocal(name) || path.Clean(name) != name ||
				strings.ContainsAny(name, "@~:+%#?\\ \x00") || len(name) > MaxBranch {
				t.Fatalf("%s %q", what, name)
			}
		}
	})
}

// TestBranchNamesAreGits: git accepts every name of a branch.
func TestBranchNamesAreGits(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git")
	}
	checked := 0
	rapid.Check(t, func(t *rapid.T) {
		name := nearNames().Draw(t, "name")
		if CheckName(NameOfBranch, name) != nil || checked > 100 {
			return
		}
		checked++
		if err := exec.Command(git, "check-ref-format", "refs/heads/"+name).Run(); err != nil {
			t.Fatalf("git refuses %q", name)
		}
	})
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"main", "fix/auth", "a/../b", "a.lock", "turn-6",
		strings.Repeat("a/", 60)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckName(NameOfBranch, name) == nil && (!filepath.IsLocal(name) ||
			path.Clean(name) != name) {
			t.Errorf("%q", name)
		}
	})
}
