package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		return v
	}
}

func wantKind(t *testing.T, what string, err error, kind turnstone.Kind) {
	t.Helper()
	if err == nil || turnstone.KindOf(err) != kind {
		t.Errorf("%s: %v, want kind %s", what, err, kind)
	}
}

func digest(s string) turnstone.Digest { return turnstone.DigestBytes([]byte(s)) }

// grow runs a turn on a branch from start to end.
func grow(t testing.TB, db *DB, s turnstone.Session, branch string,
	parents ...turnstone.TurnID) turnstone.Turn {
	t.Helper()
	req := StartTurn{Session: s.ID, Branch: branch, Kind: "run", Title: "grown"}
	if len(parents) > 0 {
		req.Parent = &parents[0]
	}
	if len(parents) > 1 {
		req.Second = &parents[1]
	}
	turn := must[turnstone.Turn](t)(db.Start(t.Context(), req))
	return finish(t, db, turn)
}

func finish(t testing.TB, db *DB, turn turnstone.Turn) turnstone.Turn {
	t.Helper()
	var head *turnstone.TurnID
	if p := turn.Parent(); p != "" {
		head = &p
	}
	_, _, err := db.Finish(t.Context(), Finish{Turn: turn.ID, Result: turnstone.ResultPassed,
		Record: digest("record " + string(turn.ID)),
		State:  digest("state " + string(turn.ID)), MoveBranch: true, ExpectedHead: head})
	if err != nil {
		t.Fatal(err)
	}
	return must[turnstone.Turn](t)(db.Turn(t.Context(), turn.ID))
}

func TestSessions(t *testing.T) { both(t, testSessions) }

func testSessions(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	a := must[turnstone.Session](t)(db.Create(ctx, "research"))
	_, err := db.Create(ctx, "research")
	wantKind(t, "the name again", err, turnstone.KindInvalid)
	if s := must[turnstone.Session](t)(db.Ensure(ctx, "research")); s != a {
		t.Errorf("ensure: %+v, want %+v", s, a)
	}
	anonymous := must[turnstone.Session](t)(db.Create(ctx, ""))
	for _, ref := range []string{string(anonymous.ID), string(anonymous.ID)[:18]} {
		if s, err := db.Find(ctx, ref); err != nil || s != anonymous {
			t.Errorf("find %s: %+v, %v", ref, s, err)
		}
	}
	_, err = db.Find(ctx, "reserch")
	if wantKind(t, "a misspelt name", err,
		turnstone.KindNotFound); !strings.Contains(turnstone.HintOf(err), "research") {
		t.Errorf("hint: %s", turnstone.HintOf(err))
	}
	_, err = db.Ensure(ctx, "s_0000000000000000")
	wantKind(t, "an ID is not made", err, turnstone.KindNotFound)
	if all := must[[]turnstone.Session](t)(db.List(ctx)); len(all) != 2 {
		t.Errorf("%d sessions", len(all))
	}
	named := must[turnstone.Session](t)(db.Rename(ctx, anonymous.ID, "kept"))
	if s := must[turnstone.Session](t)(db.Find(ctx, "kept")); s != named || s.ID != anonymous.ID {
		t.Errorf("renamed: %+v", s)
	}
	_, err = db.Rename(ctx, anonymous.ID, "research")
	wantKind(t, "renamed to a name that is used", err, turnstone.KindInvalid)
}

// TestAdd: an ID that is chosen makes one session, whatever is asked with it again.
func TestAdd(t *testing.T) { both(t, testAdd) }

func testAdd(t *testing.T, place placer) {
	db := open(t, place(t))
	id := turnstone.NewSessionID()
	s := must[turnstone.Session](t)(db.Add(t.Context(), id, "work"))
	if s.ID != id || s.Name != "work" {
		t.Fatalf("%+v", s)
	}
	must[turnstone.Session](t)(db.Rename(t.Context(), id, "play"))
	if s = must[turnstone.Session](t)(db.Add(t.Context(), id, "work")); s.Name != "play" {
		t.Errorf("%+v", s)
	}
	_, err := db.Add(t.Context(), turnstone.NewSessionID(), "play")
	wantKind(t, "a name in use", err, turnstone.KindInvalid)
	for _, id := range []turnstone.SessionID{"", "s_1", "t_000000000000000000", "s_/../../../../../etc"} {
		_, err := db.Add(t.Context(), id, "")
		wantKind(t, string(id), err, turnstone.KindInvalid)
	}
	grow(t, db, s, Main)
	if all := must[[]turnstone.Session](t)(db.List(t.Context())); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, "A.b_c-9": true, "9": true,
		strings.Repeat("x", 64): true,
		"":                      false, ".a": false, "-a": false, "a b": false, "a@b": false,
		"a~1": false,
		"a:b": false, "a/b": false, "ä": false,
		strings.Repeat("x", 65): false, "t_abc": false, "s_abc": false, "a\n": false} {
		if err := CheckName("session", name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestNamesOfDigits: a number after "@" is a turn's number.
func TestNamesOfDigits(t *testing.T) {
	for _, what := range []string{"branch", "tag"} {
		if err := CheckName(what, "12"); turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(turnstone.HintOf(err), "number") {
			t.Errorf("%s 12: %v (%s)", what, err, turnstone.HintOf(err))
		}
		if err := CheckName(what, "12a"); err != nil {
			t.Errorf("%s 12a: %v", what, err)
		}
	}
}

func TestTurns(t *testing.T) { both(t, testTurns) }

func testTurns(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	one := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID, Kind: "run",
		Title: " a\n title " + strings.Repeat("ä", 200)}))
	if one.Number != 1 || len(one.Parents) != 0 || one.Branch != Main ||
		one.Status != turnstone.TurnRunning || len(one.Title) > maxTitle ||
		!strings.HasPrefix(one.Title, "a title ä") {
		t.Errorf("%+v", one)
	}
	if got := must[turnstone.Turn](t)(db.Turn(ctx, one.ID)); fmt.Sprint(got) != fmt.Sprint(one) {
		t.Errorf("read back:\n%+v, want\n%+v", got, one)
	}
	wantKind(t, "remove while it runs", db.Remove(ctx, s.ID), turnstone.KindUnavailable)
	_, err := db.Start(ctx, StartTurn{Session: s.ID, Parent: &one.ID})
	wantKind(t, "on a running turn", err, turnstone.KindUnavailable)
	_, err = db.Start(ctx, StartTurn{Session: s.ID, Branch: "none"})
	wantKind(t, "on no branch", err, turnstone.KindNotFound)
	_, err = db.Start(ctx, StartTurn{ID: "../../x", Session: s.ID})
	wantKind(t, "an ID that is a path", err, turnstone.KindInvalid)
	one = finish(t, db, one)
	if one.Status != turnstone.TurnDone || one.Result != turnstone.ResultPassed ||
		one.Ended.IsZero() || one.Interrupted() {
		t.Errorf("%+v", one)
	}
	if left := leasesOf(t, db); len(left) != 0 {
		t.Errorf("leases left: %v", left)
	}
	two := grow(t, db, s, Main)
	if two.Number != 2 || two.Parent() != one.ID {
		t.Errorf("%+v", two)
	}
	_, _, err = db.Finish(ctx, Finish{Turn: two.ID})
	wantKind(t, "finished twice", err, turnstone.KindInvalid)
	other := must[turnstone.Session](t)(db.Create(ctx, "other"))
	_, err = db.Start(ctx, StartTurn{Session: other.ID, Parent: &one.ID})
	wantKind(t, "a parent elsewhere", err, turnstone.KindInvalid)
	if err := db.Remove(ctx, s.ID); err != nil {
		t.Error(err)
	}
	_, err = db.Turn(ctx, one.ID)
	wantKind(t, "a removed turn", err, turnstone.KindNotFound)
}

func TestAbandon(t *testing.T) { both(t, testAbandon) }

func testAbandon(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	a := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{}))
	if err := db.Abandon(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if all := must[[]turnstone.Session](t)(db.List(ctx)); len(all) != 0 {
		t.Errorf("its anonymous session stays: %v", all)
	}
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	b := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID}))
	if err := db.Abandon(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	c := grow(t, db, s, Main)
	if c.Number != 1 || len(c.Parents) != 0 {
		t.Errorf("%+v", c)
	}
	// A number below one that is taken is not used again.
	b = must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID}))
	later := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID}))
	if err := db.Abandon(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	if d := grow(t, db, s, Main); later.Number != 3 || d.Number != 4 {
		t.Errorf("%d, %d", later.Number, d.Number)
	}
	if err := db.Abandon(ctx, later.ID); err != nil {
		t.Fatal(err)
	}
	if left := leasesOf(t, db); len(left) != 0 {
		t.Errorf("leases left: %v", left)
	}
}

func TestDiverging(t *testing.T) { both(t, testDiverging) }

func testDiverging(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	base := grow(t, db, s, Main)
	a := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID}))
	b := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID}))
	// A tag has the name that b's branch would get.
	must[turnstone.Tag](t)(db.Tag(ctx, base, fmt.Sprintf("main-%d", b.Number)))
	end := func(x turnstone.Turn) (string, bool) {
		name, diverged, err := db.Landing(ctx, x.ID, x.Branch, &base.ID)
		if err != nil {
			t.Fatal(err)
		}
		branch, really, err := db.Finish(ctx, Finish{Turn: x.ID, Result: turnstone.ResultPassed,
			Record: digest("r"), MoveBranch: true, ExpectedHead: &base.ID})
		if err != nil || branch != name || really != diverged {
			t.Fatalf("%s %v, %v; said before: %s %v", branch, really, err, name, diverged)
		}
		return branch, diverged
	}
	if branch, diverged := end(a); branch != Main || diverged {
		t.Errorf("the first: %s, %v", branch, diverged)
	}
	branch, diverged := end(b)
	if want := fmt.Sprintf("main-%d-2", b.Number); branch != want || !diverged {
		t.Errorf("the second: %s, %v; want %s", branch, diverged, want)
	}
	if got := must[turnstone.Turn](t)(db.Resolve(ctx, "s@"+branch)); got.ID != b.ID ||
		got.Branch != branch {
		t.Errorf("%+v", got)
	}
	// Also for a branch that is deleted by then; and names stay short enough.
	long := strings.Repeat("l", turnstone.MaxBranch)
	must[turnstone.Branch](t)(db.Fork(ctx, base, long))
	c := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID, Branch: long}))
	wantKind(t, "deleting a branch in use", db.DeleteBranch(ctx, s.ID, long),
		turnstone.KindUnavailable)
	if err := db.SetHead(ctx, s.ID, long, base.ID, a.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "a head that moved", db.SetHead(ctx, s.ID, long, base.ID, a.ID),
		turnstone.KindUnavailable)
	if branch, diverged := end(c); !diverged || CheckName("branch", branch) != nil {
		t.Errorf("%s, %v", branch, diverged)
	}
}

func TestResolve(t *testing.T) { both(t, testResolve) }

func testResolve(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	s := must[turnstone.Session](t)(db.Create(ctx, "research"))
	t1 := grow(t, db, s, Main)
	t2 := grow(t, db, s, Main)
	must[turnstone.Branch](t)(db.Fork(ctx, t1, "explore"))
	t3 := grow(t, db, s, "explore")
	must[turnstone.Tag](t)(db.Tag(ctx, t1, "v1"))
	t4 := grow(t, db, s, Main, t2.ID, t3.ID) // a merge
	empty := must[turnstone.Session](t)(db.Create(ctx, "empty"))
	for ref, want := range map[string]turnstone.Turn{
		"research": t4, "research~1": t2, "research~": t2, "research~~": t1,
		"research~1~1": t1, "research~0": t4,
		"research@1": t1, "research@3": t3, "research@3~1": t1,
		"research@main": t4, "research@main~2": t1,
		"research@explore": t3, "research@explore~1": t1, "research@v1": t1,
		string(t3.ID): t3, string(t3.ID) + "~1": t1, string(s.ID) + "@2": t2, string(s.ID): t4,
		"research@" + string(t2.ID): t2,
	} {
		if got, err := db.Resolve(ctx, ref); err != nil || got.ID != want.ID {
			t.Errorf("%s: turn %d, %v; want %d", ref, got.Number, err, want.Number)
		}
	}
	for ref, want := range map[string]turnstone.Turn{"explore": t3, "2": t2, "main~1": t2, "v1": t1,
		"research@3": t3, "research": t4, string(t1.ID): t1} {
		if got, err := db.ResolveIn(ctx, s.ID, ref); err != nil || got.ID != want.ID {
			t.Errorf("in research, %s: turn %d, %v; want %d", ref, got.Number, err, want.Number)
		}
	}
	for ref, kind := range map[string]turnstone.Kind{
		"": turnstone.KindInvalid, "~1": turnstone.KindInvalid, "research@": turnstone.KindInvalid,
		"research~x": turnstone.KindInvalid, "research~-1": turnstone.KindInvalid,
		"research~99999999999999999999": turnstone.KindInvalid,
		"research@9":                    turnstone.KindNotFound,
		"research@0":                    turnstone.KindNotFound,
		"research@none":                 turnstone.KindNotFound,
		"research~3":                    turnstone.KindNotFound,
		"@1":                            turnstone.KindNotFound, "none": turnstone.KindNotFound,
		"t_":    turnstone.KindNotFound,
		"t_abc": turnstone.KindNotFound, "t_zzzzzzzz": turnstone.KindNotFound,
		empty.Name: turnstone.KindNotFound, "research@explore@1": turnstone.KindNotFound,
		"research@%":              turnstone.KindNotFound,
		strings.Repeat("~", 2000): turnstone.KindInvalid, "t_' OR 1=1": turnstone.KindNotFound,
	} {
		_, err := db.Resolve(ctx, ref)
		wantKind(t, fmt.Sprintf("%.30q", ref), err, kind)
	}
	_, err := db.Resolve(ctx, "research@explor")
	if !strings.Contains(turnstone.HintOf(err), "explore") {
		t.Errorf("hint: %s", turnstone.HintOf(err))
	}
	// IDs of the same moment have a common prefix.
	if _, err := db.Resolve(ctx,
		string(t1.ID)[:8]); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a beginning of several: %v", err)
	}
	if got, err := db.Resolve(ctx, string(t1.ID)[:19]); err != nil || got.ID != t1.ID {
		t.Errorf("a beginning: %+v, %v", got, err)
	}
}

func TestHistory(t *testing.T) { both(t, testHistory) }

func testHistory(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	t1 := grow(t, db, s, Main)
	must[turnstone.Branch](t)(db.Fork(ctx, t1, "b"))
	t2 := grow(t, db, s, Main)
	t3 := grow(t, db, s, "b")
	t4 := grow(t, db, s, Main)
	t5 := grow(t, db, s, Main, t4.ID, t3.ID)
	t6 := grow(t, db, s, "b", t3.ID, t4.ID) // criss-cross
	t7 := grow(t, db, s, "b")
	var got []int
	for x, err := range db.History(ctx, t5) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, x.Number)
	}
	if want := []int{5, 4, 3, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("history: %v, want %v", got, want)
	}
	for x, err := range db.History(ctx, t7) { // the sequence may be left early
		if err != nil || x.ID != t7.ID {
			t.Error(x, err)
		}
		break
	}
	for _, c := range []struct{ a, b, base turnstone.Turn }{
		{t2, t3, t1}, {t4, t3, t1}, {t5, t4, t4}, {t5, t3, t3}, {t5, t6, t4}, {t5, t7, t4},
		{t1, t1, t1}, {t1, t7, t1},
	} {
		for _, pair := range [][2]turnstone.Turn{{c.a, c.b}, {c.b, c.a}} {
			base, found, err := db.MergeBase(ctx, pair[0], pair[1])
			if err != nil || !found || base.ID != c.base.ID {
				t.Errorf("base of %d and %d: %d, %v, %v; want %d", pair[0].Number, pair[1].Number,
					base.Number, found, err, c.base.Number)
			}
		}
	}
	other := must[turnstone.Session](t)(db.Create(ctx, "o"))
	if _, found, err := db.MergeBase(ctx, t7, grow(t, db, other, Main)); found || err != nil {
		t.Errorf("of two sessions: %v, %v", found, err)
	}
	none := ""
	root := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID,
		Parent: (*turnstone.TurnID)(&none)}))
	if len(root.Parents) != 0 {
		t.Errorf("a second root: %v", root.Parents)
	}
	if _, found, err := db.MergeBase(ctx, t7, root); found || err != nil {
		t.Errorf("of two roots: %v, %v", found, err)
	}
	g := must[*turnstone.Graph](t)(db.Graph(ctx, s.ID))
	if len(g.Turns) != 8 || g.Turns[0].ID != root.ID || len(g.Branches) != 2 ||
		g.Branches[0].Name != Main {
		t.Errorf("%+v", g)
	}
}

func TestTags(t *testing.T) { both(t, testTags) }

func testTags(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	t1, t2 := grow(t, db, s, Main), grow(t, db, s, Main)
	first := must[turnstone.Tag](t)(db.Tag(ctx, t1, "good"))
	if again := must[turnstone.Tag](t)(db.Tag(ctx, t1, "good")); again != first {
		t.Errorf("%+v, then %+v", first, again)
	}
	_, err := db.Tag(ctx, t2, "good")
	wantKind(t, "moving a tag", err, turnstone.KindInvalid)
	_, err = db.Tag(ctx, t2, "main")
	wantKind(t, "a branch's name", err, turnstone.KindInvalid)
	_, err = db.Fork(ctx, t2, "good")
	wantKind(t, "a tag's name", err, turnstone.KindInvalid)
	wantKind(t, "another tag", db.Untag(ctx, s.ID, "goof"), turnstone.KindNotFound)
	if err := db.Untag(ctx, s.ID, "good"); err != nil {
		t.Error(err)
	}
	if all := must[[]turnstone.Tag](t)(db.Tags(ctx, s.ID)); len(all) != 0 {
		t.Errorf("%v", all)
	}
}

// TestWeek is a week of sessions and gc, with its own clock.
func TestWeek(t *testing.T) { both(t, testWeek) }

func testWeek(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	db.now = func() time.Time { return now }
	rule := Rule{Anonymous: 7 * 24 * time.Hour, Unreachable: 3 * 24 * time.Hour}
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	var kept []turnstone.TurnID
	var side, loose turnstone.Turn
	for day := range 10 {
		now = now.Add(24 * time.Hour)
		kept = append(kept, grow(t, db, s, Main).ID)
		anonymous := must[turnstone.Session](t)(db.Create(ctx, ""))
		grow(t, db, anonymous, Main)
		switch day {
		case 1: // a branch that will be deleted; and a turn that left no state
			must[turnstone.Branch](t)(db.Fork(ctx, must[turnstone.Turn](t)(db.Turn(ctx, kept[0])),
				"side"))
			side = grow(t, db, s, "side")
			loose = must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID}))
			if _, _, err := db.Finish(ctx, Finish{Turn: loose.ID, Result: turnstone.ResultError,
				Record: digest("loose")}); err != nil {
				t.Fatal(err)
			}
		case 2:
			if err := db.DeleteBranch(ctx, s.ID, "side"); err != nil {
				t.Fatal(err)
			}
		}
		would := must[Expired](t)(db.Expired(ctx, rule))
		gone := must[Expired](t)(db.Prune(ctx, rule))
		if fmt.Sprint(would) != fmt.Sprint(gone) {
			t.Errorf("day %d: %v was announced, %v went", day, would, gone)
		}
		wantSessions := min(1, max(0, day-7)) // the anonymous session of eight days ago
		if len(gone.Sessions) != wantSessions {
			t.Errorf("day %d: %d sessions went, want %d", day, len(gone.Sessions), wantSessions)
		}
		_, err := db.Turn(ctx, side.ID)
		if old := day >= 5; day >= 1 && old != (turnstone.KindOf(err) == turnstone.KindNotFound) {
			t.Errorf("day %d: the turn of the deleted branch: %v", day, err)
		}
		_, err = db.Turn(ctx, loose.ID)
		if old := day >= 5; day >= 1 && old != (turnstone.KindOf(err) == turnstone.KindNotFound) {
			t.Errorf("day %d: the turn without a state: %v", day, err)
		}
	}
	for _, id := range kept {
		if _, err := db.Turn(ctx, id); err != nil {
			t.Error(err)
		}
	}
	// A running turn keeps its ancestors; so does a tag, also in an anonymous session.
	old := grow(t, db, s, Main)
	must[turnstone.Branch](t)(db.Fork(ctx, old, "x"))
	head := grow(t, db, s, "x")
	running := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Session: s.ID, Branch: "main",
		Parent: &head.ID}))
	if err := db.DeleteBranch(ctx, s.ID, "x"); err != nil {
		t.Fatal(err)
	}
	anonymous := must[turnstone.Session](t)(db.Create(ctx, ""))
	must[turnstone.Tag](t)(db.Tag(ctx, grow(t, db, anonymous, Main), "keep"))
	now = now.Add(1000 * time.Hour)
	gone := must[Expired](t)(db.Prune(ctx, rule))
	for _, x := range gone.Turns {
		if x.ID == head.ID || x.ID == running.ID || x.Session == anonymous.ID {
			t.Errorf("went: %+v", x)
		}
	}
	if _, err := db.Find(ctx, string(anonymous.ID)); err != nil {
		t.Error(err)
	}
	finish(t, db, running)
}

// TestFreeName: the name for a turn that came second is unused and not reserved for turns.
func TestFreeName(t *testing.T) { both(t, testFreeName) }

func testFreeName(t *testing.T, place placer) {
	ctx := t.Context()
	db := open(t, place(t))
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	base := rapid.StringMatching(`[a-z][a-z0-9._/-]{0,110}|turn`).Filter(func(s string) bool {
		return CheckName("branch", s) == nil
	})
	rapid.Check(t, func(t *rapid.T) {
		b, n := base.Draw(t, "base"), rapid.IntRange(1, 1<<31).Draw(t, "number")
		name, err := freeName(ctx, db.sql, s.ID, b, n)
		if err == nil {
			err = CheckName("branch", name)
		}
		if err != nil {
			t.Fatalf("%q: %q: %v", b, name, err)
		}
	})
	// the last branch is from an older program
	for _, b := range []string{"turn", strings.Repeat("a/", 49) + "bb",
		strings.Repeat("a", 97) + "..."} {
		if name, err := freeName(ctx, db.sql, s.ID, b, 6); err != nil ||
			CheckName("branch", name) != nil {
			t.Errorf("%q: %q, %v", b, name, err)
		}
	}
}
