package executor

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/tree"
)

// TestLostSessions: with a store and without sessions nothing is begun, and above
// all nothing deleted.
func TestLostSessions(t *testing.T) {
	for what, lose := range map[string]func(path string) error{
		"gone":  os.Remove,
		"empty": func(path string) error { return os.Truncate(path, 0) },
	} {
		p := newPast(t)
		p.turn(p.session("s"), "main", texts(map[string]string{"/a": "one"})...)
		if err := p.x.Close(); err != nil {
			t.Fatal(err)
		}
		if err := lose(p.x.home.Path("context.db")); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first time leaves nothing that deceives the second
			x := New(p.x.home)
			if _, err := x.GC(t.Context(), GCRequest{}); turnstone.KindOf(err) != turnstone.Integrity || turnstone.HintOf(err) == "" {
				t.Errorf("%s: %v", what, err)
			}
			_ = x.Close()
		}
		if packs, _ := filepath.Glob(p.x.home.Path("store/blobs/packs/*")); len(packs) == 0 {
			t.Errorf("%s: no pack is left", what)
		}
	}
}

// TestGCPrunesImages: images of turns that are gone are removed, others stay.
func TestGCPrunesImages(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s, other := p.session("s"), p.session("other")
	p.turn(s, "main", texts(map[string]string{"/a": random(100<<10, 1)})...)
	p.turn(other, "main", texts(map[string]string{"/b": random(100<<10, 2)})...)
	for _, ref := range []string{"s@1", "other@1"} {
		cs, turn, st, err := p.x.resolveState(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		at := &branchPoint{cs: cs, parent: &turn, state: st}
		_, release, err := cs.images.Stack(ctx, tree.Ref{}, at.history(ctx))
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	count := func() int {
		all, _ := filepath.Glob(p.x.home.Path("images/images/*.json"))
		return len(all)
	}
	if n := count(); n != 2 {
		t.Fatalf("%d images", n)
	}
	if rep := ok[*GCReport](t)(p.x.GC(ctx, GCRequest{})); rep.Images != 0 || count() != 2 {
		t.Errorf("%+v", rep)
	}
	if _, err := p.x.RemoveSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if rep := ok[*GCReport](t)(p.x.GC(ctx, GCRequest{})); rep.Images != 1 || rep.Freed < 200<<10 || count() != 1 {
		t.Errorf("%+v, %d images", rep, count())
	}
}
