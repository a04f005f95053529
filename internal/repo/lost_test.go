package repo_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestLostSessions checks that nothing starts and nothing is deleted if the store exists and the
// sessions are lost.
func TestLostSessions(t *testing.T) {
	for what, lose := range map[string]func(path string) error{
		"gone":  os.Remove,
		"empty": func(path string) error { return os.Truncate(path, 0) },
	} {
		p := repotest.New(t)
		p.Turn(p.Session("s"), "main", treetest.Texts(map[string]string{"/a": "one"})...)
		if err := p.Repo.Close(); err != nil {
			t.Fatal(err)
		}
		if err := lose(p.Repo.Dir.Path("context.db")); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first time must not leave data that deceives the second
			x := repotest.Open(p.Repo.Dir)
			_, err := x.GC(t.Context(), turnstone.GCRequest{})
			if turnstone.KindOf(err) != turnstone.KindIntegrity || turnstone.HintOf(err) == "" {
				t.Errorf("%s: %v", what, err)
			}
			_ = x.Close()
		}
		if packs, _ := filepath.Glob(p.Repo.Dir.Path("store/blobs/packs/*")); len(packs) == 0 {
			t.Errorf("%s: no pack is left", what)
		}
	}
}

// TestFsckWithoutSessions checks that packs and objects are verified even if the database of
// sessions is damaged or lost.
func TestFsckWithoutSessions(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"lost":  os.Remove,
		"empty": func(path string) error { return os.Truncate(path, 0) },
		"text": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("this is no database", 1000)), 0o600)
		},
		"pages": func(path string) error { // all pages except the first, which identifies the file
			b, err := os.ReadFile(path)
			for i := 4096; i < len(b); i++ {
				b[i] ^= 0x5a
			}
			return errors.Join(err, os.WriteFile(path, b, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := repotest.New(t)
			ctx := t.Context()
			p.Turn(p.Session("s"), "main",
				treetest.Texts(map[string]string{"/a": repotest.Random(300<<10, 4)})...)
			if rep := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); !rep.OK() ||
				rep.Store.Objects == 0 {
				t.Fatalf("%+v", rep)
			}
			if err := p.Repo.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(p.Repo.Dir.Path("context.db")); err != nil {
				t.Fatal(err)
			}
			packs := ok[[]string](t)(filepath.Glob(p.Repo.Dir.Path("store/blobs/packs/*")))
			fsck := func() (db, pack bool, rep *turnstone.FsckReport) {
				x := repotest.Open(p.Repo.Dir)
				defer func() { _ = x.Close() }()
				rep = ok[*turnstone.FsckReport](t)(x.Fsck(ctx))
				for _, problem := range rep.Problems {
					db = db || strings.HasSuffix(problem.Where, "context.db")
					pack = pack || strings.Contains(problem.Where, "packs/")
				}
				return db, pack, rep
			}
			if db, pack, rep := fsck(); !db || pack || rep.OK() || rep.Store.Objects == 0 ||
				rep.Store.Packs != len(packs) {
				t.Errorf("%+v", rep)
			}
			for _, path := range packs {
				b := ok[[]byte](t)(os.ReadFile(path))
				for i := len(b) / 4; i < len(b)/2; i++ {
					b[i] ^= 0x5a
				}
				_ = os.Chmod(path, 0o600)
				if err := os.WriteFile(path, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if db, pack, rep := fsck(); !db || !pack {
				t.Errorf("%+v", rep)
			}
		})
	}
}
