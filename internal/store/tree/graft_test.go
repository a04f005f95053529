package tree_test

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// below returns the part of a listing below dir, relative to it, and the rest. Only paths and what
// the FS hash has without links are compared.
func below(list map[string]string, dir string) (in, out map[string]string) {
	in, out = map[string]string{}, map[string]string{}
	for p, line := range list {
		line, _, _ = strings.Cut(line, " links")
		if rest, ok := strings.CutPrefix(p, dir); ok && (rest == "" || rest[0] == '/') {
			in[rest] = line
		} else {
			out[p] = line
		}
	}
	return in, out
}

func graft(t testing.TB, s *treetest.Store, base turnstone.TreeRef, path string,
	sub *tree.Root) turnstone.TreeRef {
	t.Helper()
	ref, err := tree.Graft(t.Context(), s, base, path, sub)
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.NewVerifier(s).Verify(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	return ref
}

func sub(t testing.TB, s *treetest.Store, ref turnstone.TreeRef, path string) *tree.Root {
	t.Helper()
	r, err := tree.Sub(t.Context(), s, ref, path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestGraftAndBack checks for any two trees, one of which is grafted into the other, that the parts
// are found again, that everything else is as it was, and that Ungraft returns the same tree.
func TestGraftAndBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := treetest.NewStore()
		base := treetest.Make(t, s, treetest.Files().Draw(rt, "base")...)
		home := treetest.Make(t, s, treetest.Files().Draw(rt, "home")...)
		root, err := tree.GetRoot(t.Context(), s, home)
		if err != nil {
			rt.Fatal(err)
		}
		dirs := []string{"/missing", "/missing/too"}
		err = tree.Walk(t.Context(), s, base, "/", func(p string, e *tree.Entry) error {
			if e.Type == tree.Dir && p != "/" {
				dirs = append(dirs, p)
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
		at := rapid.SampledFrom(dirs).Draw(rt, "path")
		both := graft(t, s, base, at, root)
		again, err := tree.PutRoot(t.Context(), s, sub(t, s, both, at))
		if err != nil || again != home {
			rt.Fatalf("the home is %v, not %v (%v)", again, home, err)
		}
		_, before := below(whole(t, s, base), at)
		_, after := below(whole(t, s, both), at)
		if !strings.HasPrefix(at, "/missing") && !slices.Equal(slices.Sorted(maps.Keys(before)),
			slices.Sorted(maps.Keys(after))) {
			rt.Fatalf("at %s: %v became %v", at, before, after)
		}
		back, err := tree.Ungraft(t.Context(), s, both, base, at)
		if err != nil {
			rt.Fatal(err)
		}
		if err := tree.NewVerifier(s).Verify(t.Context(), back); err != nil {
			rt.Fatal(err)
		}
		if !strings.HasPrefix(at, "/missing") && back != base {
			rt.Fatalf("at %s: %v", at, lines(diff(t, s, base, back)))
		}
	})
}

// TestGraftDividesLinks checks files with names on both sides of a home.
func TestGraftDividesLinks(t *testing.T) {
	s := treetest.NewStore()
	base := treetest.Make(t, s, treetest.File{Path: "/usr/a", Data: "x"},
		treetest.File{Path: "/root/a", Link: "/usr/a"}, treetest.File{Path: "/usr/b", Link: "/usr/a"})
	home := treetest.Make(t, s, treetest.File{Path: "/mine", Data: "m"})
	root, err := tree.GetRoot(t.Context(), s, home)
	if err != nil {
		t.Fatal(err)
	}
	both := graft(t, s, base, "/root", root)
	if got := lines(diff(t, s, base, both)); !slices.Equal(got, []string{"- /root/a links(/root/a /usr/a /usr/b → )",
		"+ /root/mine", "~ /usr/a links(/root/a /usr/a /usr/b → /usr/a /usr/b)",
		"~ /usr/b links(/root/a /usr/a /usr/b → /usr/a /usr/b)"}) {
		t.Errorf("%q", got)
	}
	// A turn made a link across the border, and another of the file outside.
	ended := treetest.Make(t, s, treetest.File{Path: "/usr/a", Data: "x"},
		treetest.File{Path: "/usr/b", Data: "x"}, treetest.File{Path: "/root/mine", Data: "m"},
		treetest.File{Path: "/out", Link: "/root/mine"})
	kept := sub(t, s, ended, "/root")
	if len(kept.Links) != 0 {
		t.Errorf("the home has the links %v", kept.Links)
	}
	back, err := tree.Ungraft(t.Context(), s, ended, base, "/root")
	if err != nil {
		t.Fatal(err)
	}
	r, err := tree.GetRoot(t.Context(), s, back)
	if err != nil || len(r.Links) != 0 {
		t.Errorf("files that are no longer one are linked: %v, %v", r.Links, err)
	}
	if _, err := tree.Lookup(t.Context(), s, back, "/out"); err != nil {
		t.Error(err)
	}
	if _, err := tree.Lookup(t.Context(), s, back, "/root/a"); err != nil {
		t.Error(err)
	}
}

func TestGraftRefuses(t *testing.T) {
	s := treetest.NewStore()
	base := treetest.Make(t, s, treetest.File{Path: "/file", Data: "x"},
		treetest.File{Path: "/link", Target: "/dir"}, treetest.File{Path: "/dir/"})
	empty, err := tree.Empty(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/file", "/file/below", "/link", "/link/below"} {
		if _, err := tree.Graft(t.Context(), s, base, path, empty); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/", "", "/dir/..", "."} {
		if _, err := tree.Graft(t.Context(), s, base, path, empty); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := tree.Sub(t.Context(), s, base, "/file"); !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
	if _, err := tree.Sub(t.Context(), s, base, "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
