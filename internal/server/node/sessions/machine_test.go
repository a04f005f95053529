package sessions

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/turntest"
)

// TestMachineSession runs a turn of a client in a machine, and runs it again over the wire, whole and
// canceled. The session is the client's from its first moment, and no other client may use it.
func TestMachineSession(t *testing.T) {
	x, err := executor.Open(t.Context(), executor.Options{Dir: turntest.Home(t).Root})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	store, err := owners.Open(filepath.Join(t.TempDir(), "owners"))
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, x: x, store: store, dir: t.TempDir(), mine: caller(), other: caller()}
	service := s.serve(x)
	name := "client-" + strings.ToLower(string(turnstone.NewTurnID()))
	doc, err := document.Parse("a.md", []byte("```bash\necho one | tee f\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	turn, err := x.Run(store.Limit(t.Context(), s.mine, owners.Write),
		executor.Request{Document: doc, Session: name}, nil)
	if turnstone.KindOf(err) == turnstone.KindUnavailable {
		t.Skip(err)
	}
	if err != nil || turn.Result != turnstone.ResultPassed {
		t.Fatalf("%+v %v", turn, err)
	}
	mine, other := s.remote(service, s.mine), s.remote(service, s.other)
	defer func() {
		if _, err := mine.RemoveSession(context.Background(), name); err != nil {
			t.Error(err)
		}
	}()
	// another client cannot add a turn, nor run this one again
	refused, err := x.Run(store.Limit(t.Context(), s.other, owners.Write),
		executor.Request{Document: doc, Session: name}, nil)
	if refused != nil || turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%+v %v", refused, err)
	}
	if _, err := other.Replay(t.Context(), name+"@1", executor.ReplayOptions{}, nil); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Error(err)
	}
	w := &teller{}
	again, err := mine.Replay(t.Context(), name+"@1", executor.ReplayOptions{}, w)
	if err != nil || !again.Same || again.FSHash != turn.FSHash {
		t.Fatalf("%+v %v", again, err)
	}
	if told := strings.Join(w.told, "\n"); !strings.Contains(told, "started step-1 1") ||
		!strings.Contains(told, `step-1 1 "one\n"`) || !strings.Contains(told, "finished step-1 passed") {
		t.Error(told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	canceled, err := mine.Replay(ctx, name+"@1", executor.ReplayOptions{}, &ender{end: cancel})
	if canceled == nil && err == nil || canceled != nil && canceled.Turn.Result == turnstone.ResultPassed {
		t.Errorf("%+v %v", canceled, err)
	}
}
