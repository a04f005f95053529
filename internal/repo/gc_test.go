package repo_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestWeekOfTurns runs gc on a history of a week, with a clock of the test.
func TestWeekOfTurns(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	s := p.Session("s")
	day := func(n int) time.Time { return time.Now().Add(time.Duration(n) * 24 * time.Hour) }
	for n := range 4 {
		p.Turn(s, "main", treetest.Texts(map[string]string{"/kept": fmt.Sprint("kept ", n),
			"/big": repotest.Random(2<<20, 3)})...)
	}
	ok[turnstone.Branch](t)(p.Repo.Fork(ctx, "s@2", "side"))
	side := p.Turn(s, "side", treetest.Texts(map[string]string{"/side": "only here",
		"/blob": repotest.Random(2<<20, 9)})...)
	anonymous := p.Turn(p.Session(""), "main",
		treetest.Texts(map[string]string{"/anonymous": "only here too"})...)
	folder := filepath.Join(p.Repo.Dir.Root, "turns", string(anonymous.ID))
	kept := filepath.Join(p.Repo.Dir.Root, "turns",
		string(ok[*turnstone.TurnInfo](t)(p.Repo.Show(ctx, "s@1")).Turn.ID))
	stray := filepath.Join(p.Repo.Dir.Root, "turns", string(turnstone.NewTurnID()))
	for _, dir := range []string{folder, kept, stray} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "receipt.md"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	only := func(text string) bool {
		return ok[bool](t)(p.CS.Store.Has(ctx, turnstone.DigestBytes([]byte(text))))
	}
	gc := func(now time.Time, dry bool) *turnstone.GCReport {
		t.Helper()
		rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx,
			turnstone.GCRequest{KeepAnonymous: 7 * 24 * time.Hour,
				KeepUnreachable: 30 * 24 * time.Hour, Now: now, DryRun: dry}))
		if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); len(r.Problems) > 0 {
			t.Fatalf("after gc: %+v", r.Problems)
		}
		return rep
	}
	rep := gc(day(0), false)
	if len(rep.Sessions)+len(rep.Turns)+rep.Store.Objects+rep.Folders != 0 || rep.Remain != 6 {
		t.Errorf("day 0: %+v", rep)
	}
	// The dry run reports exactly what gc then does.
	would := gc(day(8), true)
	if !only("only here too") {
		t.Fatal("a dry run deleted")
	}
	did := gc(day(8), false)
	if len(did.Sessions) != 1 || len(did.Turns) != 1 || did.Store.Objects == 0 ||
		did.Folders != 2 || only("only here too") {
		t.Errorf("day 8: %+v", did)
	}
	if len(would.Sessions) != 1 || would.Store.Objects != did.Store.Objects ||
		would.Folders != did.Folders || would.Remain != did.Remain || would.Objects != did.Objects {
		t.Errorf("announced %+v, did %+v", would, did)
	}
	for dir, there := range map[string]bool{folder: false, stray: false, kept: true} {
		if _, err := os.Stat(dir); (err == nil) != there {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := p.Repo.RemoveBranch(ctx, "s", "side"); err != nil {
		t.Fatal(err)
	}
	if gc(day(29), false); !only("only here") {
		t.Error("a turn of a removed branch was deleted too early")
	}
	did = gc(day(31), false)
	if len(did.Turns) != 1 || did.Turns[0].ID != side.ID || only("only here") || did.Freed < 1<<20 {
		t.Errorf("day 31: %+v", did)
	}
	for n := 1; n <= 4; n++ {
		in := ok[io.ReadCloser](t)(p.Repo.OpenFile(ctx, fmt.Sprintf("s@%d", n), "/kept"))
		if b, err := io.ReadAll(in); err != nil || string(b) != fmt.Sprint("kept ", n-1) {
			t.Errorf("turn %d: %q, %v", n, b, err)
		}
		_ = in.Close()
	}
	ok[turnstone.Session](t)(p.Repo.RemoveSession(ctx, "s"))
	if did = gc(day(31), false); did.Remain != 0 || did.Objects != 0 {
		t.Errorf("after all removals: %+v", did)
	}
}

// TestGCBesideTurns checks that turns can commit while gc runs repeatedly.
func TestGCBesideTurns(t *testing.T) {
	p := repotest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := p.Repo.GC(t.Context(),
				turnstone.GCRequest{Now: time.Now().Add(time.Hour)}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	s := p.Session("s")
	for n := range 15 {
		// Deleted data can be stored again.
		p.Turn(s, "main", treetest.Texts(map[string]string{"/a": fmt.Sprint(n % 3),
			"/b": fmt.Sprint(n)})...)
		if n%4 == 3 {
			ok[turnstone.Session](t)(p.Repo.RemoveSession(t.Context(), "s"))
			s = p.Session("s")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(t.Context())); len(r.Problems) > 0 {
		t.Errorf("%+v", r.Problems)
	}
}

// TestUsageOfTheSame checks that shared data counts for both sessions.
func TestUsageOfTheSame(t *testing.T) {
	p := repotest.New(t)
	files := map[string]string{}
	for i := range 50 {
		files[fmt.Sprintf("/dir%d/of/some/depth/file", i)] = fmt.Sprint(i)
	}
	for _, name := range []string{"a", "b", "c"} {
		p.Turn(p.Session(name), "main", treetest.Texts(files)...)
	}
	u := ok[*turnstone.Usage](t)(p.Repo.Usage(t.Context()))
	for _, su := range u.Sessions {
		if su.Unique < 0 || su.Shared < su.Unique || su.Unique+su.Shared != su.Logical ||
			su.Logical < u.Sessions[0].Logical-1000 {
			t.Errorf("%+v", su)
		}
	}
}

func TestFsckAndUsage(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	s, other := p.Session("s"), p.Session("other")
	p.Turn(s, "main", treetest.Texts(map[string]string{"/shared": repotest.Random(100<<10, 1),
		"/own": repotest.Random(200<<10, 2)})...)
	p.Turn(s, "main", treetest.Texts(map[string]string{"/shared": repotest.Random(100<<10, 1)})...)
	p.Turn(other, "main",
		treetest.Texts(map[string]string{"/shared": repotest.Random(100<<10, 1)})...)
	u := ok[*turnstone.Usage](t)(p.Repo.Usage(ctx))
	for _, su := range u.Sessions {
		want := map[string]int64{"s": 300 << 10, "other": 100 << 10}[su.Name]
		if su.Logical < want || su.Logical > want+20<<10 ||
			su.Unique+su.Shared != su.Logical ||
			su.Shared < 100<<10 || su.Shared > 110<<10 {
			t.Errorf("%+v", su)
		}
	}
	if u.Logical < 300<<10 || u.Logical > 330<<10 || u.Store.Bytes < u.Logical ||
		u.Store.Stored == 0 || u.Database == 0 {
		t.Errorf("%+v", u)
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); !r.OK() || r.Turns != 3 ||
		r.Sessions != 2 || r.Store.Objects == 0 {
		t.Errorf("%+v", r)
	}
	// One byte in the middle of each pack.
	packs, _ := filepath.Glob(filepath.Join(p.Repo.Dir.Root, "store/blobs/packs/*"))
	if len(packs) == 0 {
		packs, _ = filepath.Glob(filepath.Join(p.Repo.Dir.Root, "store/blobs/packs/*/*"))
	}
	if len(packs) == 0 {
		t.Fatal("no packs")
	}
	b := ok[[]byte](t)(os.ReadFile(packs[0]))
	b[len(b)/2] ^= 1
	if err := os.Chmod(packs[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); r.OK() || len(r.Problems) == 0 {
		t.Errorf("damage is not found: %+v", r)
	}
	// A pack is missing: fsck names the turns that need it.
	for _, pack := range packs {
		if err := os.Remove(pack); err != nil {
			t.Fatal(err)
		}
	}
	fresh := repotest.Open(p.Repo.Dir)
	defer func() { _ = fresh.Close() }()
	r := ok[*turnstone.FsckReport](t)(fresh.Fsck(ctx))
	named := 0
	for _, problem := range r.Problems {
		if strings.HasPrefix(problem.Where, "turn ") {
			named++
		}
	}
	if r.OK() || named != 3 {
		t.Errorf("%d turns are named: %+v", named, r.Problems)
	}
	if _, err := fresh.GC(ctx, turnstone.GCRequest{}); err == nil {
		t.Error("gc continues although needed data is missing")
	}
}

// TestGCPrunesImages checks that images of deleted turns are removed, and others stay.
func TestGCPrunesImages(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	s, other := p.Session("s"), p.Session("other")
	p.Turn(s, "main", treetest.Texts(map[string]string{"/a": repotest.Random(100<<10, 1)})...)
	p.Turn(other, "main", treetest.Texts(map[string]string{"/b": repotest.Random(100<<10, 2)})...)
	for _, ref := range []string{"s@1", "other@1"} {
		cs, turn, _, err := p.Repo.ResolveState(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		_, release, err := cs.Images.Stack(ctx, turnstone.TreeRef{}, cs.History(ctx, &turn, nil))
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	count := func() int {
		all, _ := filepath.Glob(p.Repo.Dir.Path("images/images/*.json"))
		return len(all)
	}
	if n := count(); n != 2 {
		t.Fatalf("%d images", n)
	}
	if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, turnstone.GCRequest{})); rep.Images != 0 ||
		count() != 2 {
		t.Errorf("%+v", rep)
	}
	if _, err := p.Repo.RemoveSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	// Images of anonymous sessions that expire are removed, too.
	p.Turn(p.Session(""), "main", treetest.Texts(map[string]string{"/c": "anonymous"})...)
	if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx,
		turnstone.GCRequest{DryRun: true})); rep.Images != 1 || rep.Freed < 100<<10 ||
		count() != 2 {
		t.Errorf("dry run: %+v, %d images", rep, count())
	}
	if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, turnstone.GCRequest{})); rep.Images != 1 ||
		rep.Freed < 200<<10 || count() != 1 {
		t.Errorf("%+v, %d images", rep, count())
	}
}

// TestGCDryRunCountsExpired checks that a dry run counts the images of turns that would be deleted.
func TestGCDryRunCountsExpired(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	turn := p.Turn(p.Session(""), "main",
		treetest.Texts(map[string]string{"/a": repotest.Random(100<<10, 1)})...)
	cs, at, _, err := p.Repo.ResolveState(ctx, string(turn.ID))
	if err != nil {
		t.Fatal(err)
	}
	_, release, err := cs.Images.Stack(ctx, turnstone.TreeRef{}, cs.History(ctx, &at, nil))
	if err != nil {
		t.Fatal(err)
	}
	later := turnstone.GCRequest{Now: time.Now().Add(time.Hour), DryRun: true}
	if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, later)); rep.Images != 0 ||
		len(rep.Turns) != 1 {
		t.Errorf("an image that is in use is announced: %+v", rep)
	}
	release()
	would := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, later))
	later.DryRun = false
	if did := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, later)); would.Images != 1 ||
		did.Images != 1 {
		t.Errorf("announced %+v, did %+v", would, did)
	}
}
