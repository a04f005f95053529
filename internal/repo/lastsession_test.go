package repo_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
)

func TestExpand(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	expand := func(ref, named string) string {
		t.Helper()
		got, err := p.Repo.Expand(ctx, ref, named)
		if err != nil {
			return "error: " + string(turnstone.KindOf(err))
		}
		return got
	}
	research, other := p.Session("research"), p.Session("other")
	p.Turn(research, "main")
	for _, ref := range []string{"-", "-@3", "@3", "-~1", "turn-1", "turn-1~2"} {
		if got := expand(ref, ""); got != "error: not_found" {
			t.Errorf("%s before any session was used: %s", ref, got)
		}
	}
	p.Repo.NoteUse(ctx, "research@fix/auth~2")
	for ref, want := range map[string]string{
		"-": "research", "-@3": "research@3", "-@fix/auth~2": "research@fix/auth~2",
		"@fix/auth": "research@fix/auth", "-~1": "research~1", "-~": "research~",
		"turn-1": "research@turn-1", "turn-12~3": "research@turn-12~3",
		"turn-1~":  "research@turn-1~",
		"research": "research", "research@-": "research@-", "other@turn-1": "other@turn-1",
		"t_123456": "t_123456", "turn-": "turn-", "turn-x": "turn-x", "Turn-1": "Turn-1",
		"--": "--", "": "",
	} {
		if got := expand(ref, ""); got != want {
			t.Errorf("%q: %q, want %q", ref, got, want)
		}
	}
	if got := expand("-", "other") + expand("turn-1", "s_"+string(other.ID)[2:]) +
		expand("-", "none"); got != "otherother@turn-1error: not_found" {
		t.Error(got)
	}
	for _, ref := range []string{"-", "-@1", "turn-1", string(p.Turn(other, "main").ID), "none",
		""} {
		if p.Repo.NoteUse(ctx, ref); expand("-", "") != "research" {
			t.Errorf("%s made another session the current one", ref)
		}
	}
	ok[turnstone.Session](t)(p.Repo.Rename(ctx, "research", "renamed"))
	if got := expand("-", ""); got != "renamed" {
		t.Error(got)
	}
	anonymous := p.Session("")
	p.Repo.NoteUse(ctx, string(anonymous.ID)+"@1")
	if expand("-@1", "") != string(anonymous.ID)+"@1" {
		t.Error(expand("-@1", ""))
	}
	ok[turnstone.Session](t)(p.Repo.RemoveSession(ctx, string(anonymous.ID)))
	for _, text := range []string{"", "../../etc/passwd", strings.Repeat("s", 1000), "renamed",
		string(anonymous.ID)} {
		if err := os.WriteFile(p.Repo.Dir.Path(fmt.Sprintf("last-session-%d", os.Getuid())),
			[]byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := expand("-", ""); got != "error: not_found" {
			t.Errorf("with %.20q in the file: %s", text, got)
		}
	}
}

// TestReferencesToNumbers checks that all spellings of a turn's number find the turn, and that a
// branch that an older program called turn-1 keeps its name.
func TestReferencesToNumbers(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	s := p.Session("s")
	first := p.Turn(s, "main")
	second := p.Turn(s, "main")
	ok[turnstone.Branch](t)(p.Repo.Fork(ctx, "s@1", "fix/auth"))
	third := p.Turn(s, "fix/auth")
	ok[turnstone.Tag](t)(p.Repo.Tag(ctx, "s@fix/auth", "v1/rc"))
	for ref, want := range map[string]turnstone.Turn{"s@1": first, "s@turn-1": first,
		"s@turn-2~1": first, "s@turn-2~": first, "s@fix/auth": third, "s@fix/auth~1": first,
		"s@v1/rc": third, "s": second} {
		if i := ok[*turnstone.TurnInfo](t)(p.Repo.Show(ctx, ref)); i.Turn.ID != want.ID {
			t.Errorf("%s: turn %d", ref, i.Turn.Number)
		}
	}
	for _, ref := range []string{"s@turn-9", "s@turn-99999999999999999999", "s@turn-0", "s@fix",
		"s@fix/", "s@/fix"} {
		if _, err := p.Repo.Show(ctx, ref); turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s: %v", ref, err)
		}
	}
	d := ok[*turnstone.StateDiff](t)(p.Repo.Diff(ctx, turnstone.DiffRequest{From: "s@turn-1",
		To: "turn-2"}))
	if d.From.Number != 1 || d.To.Number != 2 {
		t.Errorf("%+v %+v", d.From, d.To)
	}
	for _, name := range []string{"turn-7", "7", "t_x", "s_x", "a//b", "a/../b", "../x", "x.lock"} {
		_, err := p.Repo.Fork(ctx, "s@1", name)
		_, tagErr := p.Repo.Tag(ctx, "s@1", name)
		for _, err := range []error{err, tagErr} {
			if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := p.Repo.Rename(ctx, "s", "turn-7"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

// TestNoteUseInParallel checks that a reader beside writers finds a complete ID.
func TestNoteUseInParallel(t *testing.T) {
	p := repotest.New(t)
	ctx, stop := context.WithCancel(t.Context())
	names := []string{"a", "b", "c"}
	for _, n := range names {
		p.Session(n)
	}
	p.Repo.NoteUse(ctx, "a")
	var writers sync.WaitGroup
	for _, n := range names {
		writers.Go(func() {
			for ctx.Err() == nil {
				p.Repo.NoteUse(t.Context(), n)
			}
		})
	}
	for range 200 {
		got := ok[string](t)(p.Repo.Expand(t.Context(), "-", ""))
		if !strings.Contains("abc", got) {
			t.Errorf("%q", got)
		}
	}
	stop()
	writers.Wait()
	if left, _ := filepath.Glob(p.Repo.Dir.Path(".last-session-*")); len(left) > 0 {
		t.Error(left)
	}
}
