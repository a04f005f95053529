package turn

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/wire"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// TestLostSessions: with a store and without sessions nothing is begun, and above
// all nothing deleted.
func TestLostSessions(t *testing.T) {
	for what, lose := range map[string]func(path string) error{
		"gone":  os.Remove,
		"empty": func(path string) error { return os.Truncate(path, 0) },
	} {
		p := newPast(t)
		p.Turn(p.Session("s"), "main", texts(map[string]string{"/a": "one"})...)
		if err := p.x.Close(); err != nil {
			t.Fatal(err)
		}
		if err := lose(p.x.home.Path("context.db")); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first time leaves nothing that deceives the second
			x := New(p.x.home)
			if _, err := x.GC(t.Context(), repo.GCRequest{}); turnstone.KindOf(err) != turnstone.KindIntegrity || turnstone.HintOf(err) == "" {
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
	s, other := p.Session("s"), p.Session("other")
	p.Turn(s, "main", texts(map[string]string{"/a": random(100<<10, 1)})...)
	p.Turn(other, "main", texts(map[string]string{"/b": random(100<<10, 2)})...)
	for _, ref := range []string{"s@1", "other@1"} {
		cs, turn, st, err := p.x.repo.ResolveState(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		at := &branchPoint{cs: cs, parent: &turn, state: st}
		_, release, err := cs.Images.Stack(ctx, tree.Ref{}, at.history(ctx))
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
	if rep := ok[*repo.GCReport](t)(p.x.GC(ctx, repo.GCRequest{})); rep.Images != 0 || count() != 2 {
		t.Errorf("%+v", rep)
	}
	if _, err := p.x.RemoveSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	// Of anonymous sessions, too, that are about to go.
	p.Turn(p.Session(""), "main", texts(map[string]string{"/c": "anonymous"})...)
	if rep := ok[*repo.GCReport](t)(p.x.GC(ctx, repo.GCRequest{DryRun: true})); rep.Images != 1 || rep.Freed < 100<<10 || count() != 2 {
		t.Errorf("dry run: %+v, %d images", rep, count())
	}
	if rep := ok[*repo.GCReport](t)(p.x.GC(ctx, repo.GCRequest{})); rep.Images != 1 || rep.Freed < 200<<10 || count() != 1 {
		t.Errorf("%+v, %d images", rep, count())
	}
}

// TestGCDryRunCountsExpired: the images of turns that would go count in a dry run.
func TestGCDryRunCountsExpired(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	turn := p.Turn(p.Session(""), "main", texts(map[string]string{"/a": random(100<<10, 1)})...)
	cs, at, st, err := p.x.repo.ResolveState(ctx, string(turn.ID))
	if err != nil {
		t.Fatal(err)
	}
	_, release, err := cs.Images.Stack(ctx, tree.Ref{}, (&branchPoint{cs: cs, parent: &at, state: st}).history(ctx))
	if err != nil {
		t.Fatal(err)
	}
	later := repo.GCRequest{Now: time.Now().Add(time.Hour), DryRun: true}
	if rep := ok[*repo.GCReport](t)(p.x.GC(ctx, later)); rep.Images != 0 || len(rep.Turns) != 1 {
		t.Errorf("an image that is in use is announced: %+v", rep)
	}
	release()
	would := ok[*repo.GCReport](t)(p.x.GC(ctx, later))
	later.DryRun = false
	if did := ok[*repo.GCReport](t)(p.x.GC(ctx, later)); would.Images != 1 || did.Images != 1 {
		t.Errorf("announced %+v, did %+v", would, did)
	}
}

// TestGCSweepsCaptures: what a turn wrote that was killed goes, but not what its
// receipt names, and nothing of one that runs.
func TestGCSweepsCaptures(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s := p.Session("s")
	done := p.Turn(s, "main", texts(map[string]string{"/a": "one"})...)
	folder := func(id turnstone.TurnID) string {
		dir := ok[string](t)(p.x.home.MkdirAll("turns", string(id)))
		for name, text := range map[string]string{"receipt.md": "the whole is in $TURN_HOME/turns/" + string(id) + "/step-1.stdout", "receipt.md.new": "x", ".receipt.md.123": "x",
			"step-1.stdout": "named", "step-2.stdout": "cut off", "step-2.stderr": "cut off", "other": "x"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	names := func(dir string) (all []string) {
		for _, e := range ok[[]os.DirEntry](t)(os.ReadDir(dir)) {
			all = append(all, e.Name())
		}
		return all
	}
	// One is killed: another handle of the database that is closed without an end.
	db := ok[*session.DB](t)(session.Open(ctx, p.x.home.Path("context.db")))
	killed := ok[turnstone.Turn](t)(db.Start(ctx, session.StartTurn{Session: s.ID,
		Kind: string(turnstone.TurnKindRun)}))
	runs := ok[turnstone.Turn](t)(p.cs.DB.Start(ctx, session.StartTurn{Session: s.ID,
		Kind: string(turnstone.TurnKindRun)}))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	of := map[string]string{"done": folder(done.ID), "killed": folder(killed.ID), "runs": folder(runs.ID), "replay": folder(turnstone.NewTurnID()), "replay that runs": folder(turnstone.NewTurnID())}
	lock := ok[*os.File](t)(repo.LockFolder(of["replay that runs"], syscall.LOCK_EX))
	defer func() { _ = lock.Close() }()
	all := []string{".receipt.md.123", "other", "receipt.md", "receipt.md.new", "step-1.stdout", "step-2.stderr", "step-2.stdout"}
	some := []string{"other", "receipt.md", "step-1.stdout"}
	for _, dry := range []bool{true, false} {
		if rep := ok[*repo.GCReport](t)(p.x.GC(ctx, repo.GCRequest{KeepAnonymous: time.Hour, KeepUnreachable: time.Hour, DryRun: dry})); rep.Captures != 8 || rep.Folders != 0 {
			t.Errorf("dry run %v: %+v", dry, rep)
		}
		for what, dir := range of {
			want := all
			if !dry && (what == "killed" || what == "replay") {
				want = some
			}
			if got := names(dir); !slices.Equal(got, want) {
				t.Errorf("dry run %v, %s: %q", dry, what, got)
			}
		}
	}
	// However old it looks, the folder of a turn that runs stays.
	rep := ok[*repo.GCReport](t)(p.x.GC(ctx, repo.GCRequest{Now: time.Now().Add(10 * time.Hour), KeepUnreachable: time.Hour * 1000}))
	if _, err := os.Stat(of["replay that runs"]); err != nil || rep.Folders != 1 {
		t.Errorf("%v, %+v", err, rep)
	}
}

// TestFsckWithoutSessions: packs and objects are checked also when the database of
// sessions is damaged, or lost.
func TestFsckWithoutSessions(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"lost":  os.Remove,
		"empty": func(path string) error { return os.Truncate(path, 0) },
		"text": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("this is no database", 1000)), 0o600)
		},
		"pages": func(path string) error { // all but the first, which says what it is
			b, err := os.ReadFile(path)
			for i := 4096; i < len(b); i++ {
				b[i] ^= 0x5a
			}
			return errors.Join(err, os.WriteFile(path, b, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPast(t)
			ctx := t.Context()
			p.Turn(p.Session("s"), "main", texts(map[string]string{"/a": random(300<<10, 4)})...)
			if rep := ok[*repo.FsckReport](t)(p.x.Fsck(ctx)); !rep.OK() || rep.Store.Objects == 0 {
				t.Fatalf("%+v", rep)
			}
			if err := p.x.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(p.x.home.Path("context.db")); err != nil {
				t.Fatal(err)
			}
			packs := ok[[]string](t)(filepath.Glob(p.x.home.Path("store/blobs/packs/*")))
			fsck := func() (db, pack bool, rep *repo.FsckReport) {
				x := New(p.x.home)
				defer func() { _ = x.Close() }()
				rep = ok[*repo.FsckReport](t)(x.Fsck(ctx))
				for _, problem := range rep.Problems {
					db = db || strings.HasSuffix(problem.Where, "context.db")
					pack = pack || strings.Contains(problem.Where, "packs/")
				}
				return db, pack, rep
			}
			if db, pack, rep := fsck(); !db || pack || rep.OK() || rep.Store.Objects == 0 || rep.Store.Packs != len(packs) {
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

// TestReceiptIsSynced: the receipt and what it names are made durable, and when that
// fails, or a receipt cannot be written at all, it is said.
func TestReceiptIsSynced(t *testing.T) {
	x := New(&statedir.Dir{Root: t.TempDir()})
	var synced []string
	x.repo.Fault = func(op string) error {
		if op == "turns.sync" {
			synced = append(synced, op)
			return syscall.EIO
		}
		return nil
	}
	told := &tellings{}
	r := &run{x: x, plan: &plan.Plan{}, doc: parse(t, "# A turn\n\n```bash\ntrue\n```\n"), obs: told, clock: newStopwatch()}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now(), Result: turnstone.ResultPassed}
	r.openFolder()
	defer r.closeFolder()
	r.plan.Host.Limits.Output = 1 << 20
	r.openSteps()
	running := r.steps.Start(r.doc.Steps[0])
	_, _ = running.Begin().Out.Write([]byte(random(300<<10, 1)))
	running.End(&wire.StepEnd{})
	if err := r.steps.Sync(); err != nil {
		t.Error(err)
	}
	if _, err := repo.LockFolder(r.dir, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("the folder of a turn that runs is not locked: %v", err)
	}
	r.checkpoint()
	if len(told.said) != 0 || len(synced) != 0 {
		t.Errorf("%q, %q", told.said, synced)
	}
	r.keepReceipt()
	if len(told.said) != 1 || !strings.Contains(told.said[0], "input/output error") {
		t.Errorf("%q", told.said)
	}
	if err := os.Remove(filepath.Join(r.dir, "step-1.stdout")); err != nil {
		t.Fatal(err)
	}
	if r.keepReceipt(); len(told.said) != 2 || !strings.Contains(told.said[1], "step-1.stdout") {
		t.Errorf("a file that is gone: %q", told.said)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	r.checkpoint()
	r.checkpoint()
	if len(told.said) != 3 || !strings.Contains(told.said[2], "no such file") {
		t.Errorf("%q", told.said)
	}
}

// tellings is an observer that hears what is said beside the steps.
type tellings struct {
	observer
	said []string
}

func (o *tellings) Preparing(what string) { o.said = append(o.said, what) }
