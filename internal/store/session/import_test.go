package session

import (
	"fmt"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

func TestImport(t *testing.T) { both(t, testImport) }

func testImport(t *testing.T, place placer) {
	ctx := t.Context()
	from, to := open(t, place(t)), open(t, place(t))
	s := must[turnstone.Session](t)(from.Create(ctx, "s"))
	t1 := grow(t, from, s, Main)
	must[turnstone.Branch](t)(from.Fork(ctx, t1, "b"))
	t2, t3 := grow(t, from, s, Main), grow(t, from, s, "b")
	grow(t, from, s, Main, t2.ID, t3.ID)
	must[turnstone.Tag](t)(from.Tag(ctx, t1, "tag"))
	g := must[*turnstone.Graph](t)(from.Graph(ctx, s.ID))
	if fresh, err := to.Import(ctx, g, ImportHistory{}); err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	if again := must[*turnstone.Graph](t)(to.Graph(ctx, s.ID)); fmt.Sprint(again) != fmt.Sprint(g) {
		t.Errorf("got\n%+v, want\n%+v", again, g)
	}
	if fresh, err := to.Import(ctx, g, ImportHistory{}); err != nil || fresh {
		t.Errorf("again: %v, %v", fresh, err)
	}
	if next := grow(t, to, s, Main); next.Number != 5 {
		t.Errorf("number %d", next.Number)
	}
	if fresh, err := to.Import(ctx, g, ImportHistory{}); err != nil || fresh {
		t.Errorf("when it has gone on here: %v, %v", fresh, err)
	}
	grow(t, from, s, Main)
	_, err := to.Import(ctx, must[*turnstone.Graph](t)(from.Graph(ctx, s.ID)), ImportHistory{})
	wantKind(t, "when both have gone on", err, turnstone.KindInvalid)

	third := open(t, place(t))
	must[turnstone.Session](t)(third.Create(ctx, "s"))
	_, err = third.Import(ctx, g, ImportHistory{})
	if wantKind(t, "the name is used", err,
		turnstone.KindInvalid); !strings.Contains(turnstone.HintOf(err), "--as") {
		t.Errorf("hint: %s", turnstone.HintOf(err))
	}
	for what, harm := range map[string]func(g *turnstone.Graph){
		"ID":         func(g *turnstone.Graph) { g.Session.ID = "s_../../x" },
		"name":       func(g *turnstone.Graph) { g.Session.Name = "a b" },
		"turn ID":    func(g *turnstone.Graph) { g.Turns[0].ID = "t_x" },
		"turn twice": func(g *turnstone.Graph) { g.Turns[0] = g.Turns[1] },
		"number":     func(g *turnstone.Graph) { g.Turns[0].Number = 1 << 40 },
		"cycle": func(g *turnstone.Graph) {
			g.Turns[3].Parents = []turnstone.TurnID{g.Turns[0].ID}
		},
		"own parent": func(g *turnstone.Graph) {
			g.Turns[0].Parents = []turnstone.TurnID{g.Turns[0].ID}
		},
		"three parents": func(g *turnstone.Graph) {
			g.Turns[0].Parents = []turnstone.TurnID{t1.ID,
				t2.ID, t3.ID}
		},
		"unknown parent": func(g *turnstone.Graph) {
			g.Turns[0].Parents = []turnstone.TurnID{turnstone.NewTurnID()}
		},
		"running":         func(g *turnstone.Graph) { g.Turns[0].Status = turnstone.TurnRunning },
		"result":          func(g *turnstone.Graph) { g.Turns[0].Result = "fine" },
		"digest":          func(g *turnstone.Graph) { g.Turns[0].Record = "sha256:../x" },
		"title":           func(g *turnstone.Graph) { g.Turns[0].Title = strings.Repeat("x", 300) },
		"title's lines":   func(g *turnstone.Graph) { g.Turns[0].Title = "a\nb" },
		"branch":          func(g *turnstone.Graph) { g.Branches[0].Name = "a@b" },
		"branch's path":   func(g *turnstone.Graph) { g.Branches[0].Name = "a/../../b" },
		"branch's slash":  func(g *turnstone.Graph) { g.Branches[0].Name = "/b" },
		"branch's lock":   func(g *turnstone.Graph) { g.Branches[0].Name = "fix/main.lock" },
		"branch as turn":  func(g *turnstone.Graph) { g.Branches[0].Name = "turn-6" },
		"session as turn": func(g *turnstone.Graph) { g.Session.Name = "turn-6" },
		"session's path":  func(g *turnstone.Graph) { g.Session.Name = "a/b" },
		"turn's branch":   func(g *turnstone.Graph) { g.Turns[0].Branch = "../x" },
		"tag's path":      func(g *turnstone.Graph) { g.Tags[0].Name = "v1/.." },
		"branch's head":   func(g *turnstone.Graph) { g.Branches[0].Head = turnstone.NewTurnID() },
		"branch twice":    func(g *turnstone.Graph) { g.Branches[0].Name = g.Branches[1].Name },
		"branch and tag":  func(g *turnstone.Graph) { g.Tags[0].Name = Main },
		"tag":             func(g *turnstone.Graph) { g.Tags[0].Turn = turnstone.NewTurnID() },
		"other session": func(g *turnstone.Graph) {
			g.Turns[0].Session = turnstone.NewSessionID()
		},
		"state no record": func(g *turnstone.Graph) { g.Turns[0].Record = "" },
	} {
		bad := must[*turnstone.Graph](t)(from.Graph(ctx, s.ID))
		bad.Session.Name = "other"
		harm(bad)
		_, err := third.Import(ctx, bad, ImportHistory{})
		wantKind(t, what, err, turnstone.KindInvalid)
	}
	if all := must[[]turnstone.Session](t)(third.List(ctx)); len(all) != 1 {
		t.Errorf("refused imports left something: %v", all)
	}
}
