package turn_test

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/replay"
)

// frozen runs a receipt again.
func (w *world) frozen(text string, req plan.Request) (*turnstone.FrozenReport, error) {
	w.t.Helper()
	cs := ok[*repo.ContextStore](w.t)(w.host.Context(w.t.Context()))
	return replay.Frozen(w.t.Context(), w.Runner, cs, replay.FrozenRequest{Name: "receipt.md",
		Source: []byte(text), Request: req}, nil)
}

// TestFrozen checks that a receipt of the same results is the same, that each kind of difference is
// named with its step, and that the new run is in no session.
func TestFrozen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside, set := outside(t)
	set("before\n")
	doc := "# D\n\n```bash name=a continue-on-error\ncat " + outside + "\ntest $(cat " + outside +
		") = before\n```\n\n```bash name=b\ncp " + outside + " copy; seq 9000\n```\n"
	first := w.run(t.Context(), plan.Request{}, doc, nil)
	sessions := len(ok[[]turnstone.SessionInfo](t)(w.host.Repo.Sessions(t.Context())))
	again := ok[*turnstone.FrozenReport](t)(w.frozen(first.Receipt, plan.Request{}))
	if !again.Same || again.Of != first.ID || len(again.Differences) != 0 {
		t.Errorf("%+v", again.Differences)
	}
	for _, c := range []struct {
		name, old, new, want string
	}{
		{"an exit code", "exit 0", "exit 3", "a: exit code; b: exit code"},
		{"a status", "**passed**", "**failed**", "a: status; b: status"},
		{"an output", "text\nbefore\n", "text\nafter\n", "a: stdout"},
		{"the result", "result: passed", "result: failed", ": result"},
		{"the files", "fs: sha256:", "fs: sha256:0", ""},
		{"a script", "seq 9000\n", "seq 9001\n", "b: script; b: stdout"},
	} {
		text := unsigned(first.Receipt)
		if !strings.Contains(text, c.old) {
			t.Fatalf("%s: the receipt has no %q\n%s", c.name, c.old, text)
		}
		rep, err := w.frozen(strings.ReplaceAll(text, c.old, c.new), plan.Request{})
		if c.name == "the files" { // no digest
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := parts(rep); got != c.want || rep.Same != (c.want == "") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	set("after\n")
	rep := ok[*turnstone.FrozenReport](t)(w.frozen(first.Receipt, plan.Request{}))
	if got := parts(rep); got != ": fs; a: status; a: exit code; a: stdout" {
		t.Errorf("%q", got)
	}
	if d := rep.Differences[3].Diff; !strings.Contains(d, "-before\n+after\n") {
		t.Errorf("%q", d)
	}
	if n := len(ok[[]turnstone.SessionInfo](t)(w.host.Repo.Sessions(t.Context()))); n != sessions {
		t.Errorf("%d sessions, there were %d", n, sessions)
	}
}

// unsigned returns a receipt without its evidence: an edited receipt is refused with it.
func unsigned(receipt string) string {
	text, _, _ := strings.Cut(receipt, "\n<!-- turn:evidence")
	return text
}

// parts lists what differs.
func parts(rep *turnstone.FrozenReport) string {
	var all []string
	for _, d := range rep.Differences {
		all = append(all, d.Step+": "+d.What)
	}
	return strings.Join(all, "; ")
}

// TestFrozenLongOutput checks that an output differs whose shown parts and size are equal.
func TestFrozenLongOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside, set := outside(t)
	var long string
	lines := strings.Split(strings.Repeat("line\n", 5000), "\n")
	for i, want := range []string{"", "step-1: stdout"} {
		if i == 1 {
			lines[2500] = "LINE"
		}
		set(strings.Join(lines, "\n"))
		text := "```bash\ncat " + outside + "\n```\n"
		if i == 0 {
			long = w.run(t.Context(), plan.Request{}, text, nil).Receipt
		}
		rep := ok[*turnstone.FrozenReport](t)(w.frozen(long, plan.Request{}))
		if got := parts(rep); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		old := strings.NewReplacer(" · "+string(rep.Turn.Steps[0].StdoutInfo.Digest), "").
			Replace(unsigned(rep.Turn.Receipt)) // of an older program
		if rep := ok[*turnstone.FrozenReport](t)(w.frozen(old, plan.Request{})); !rep.Same {
			t.Errorf("%q", parts(rep))
		}
	}
}

// TestFrozenInASession checks what a receipt that began on another turn needs, and that a signed
// receipt that was edited is refused.
func TestFrozenInASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.passes(plan.Request{Session: "s"}, "echo one > f", "")
	second := w.passes(plan.Request{Session: "s"}, "cat f", "one\n")
	w.passes(plan.Request{Session: "s"}, "echo three > f", "")
	if rep := ok[*turnstone.FrozenReport](t)(w.frozen(second.Receipt,
		plan.Request{Session: "s"})); !rep.Same {
		t.Errorf("%q", parts(rep))
	}
	if rep := ok[*turnstone.FrozenReport](t)(w.frozen(second.Receipt,
		plan.Request{Grant: []string{"session"}})); !rep.Same {
		t.Errorf("%q", parts(rep))
	}
	for name, c := range map[string]struct {
		text string
		req  plan.Request
		kind turnstone.Kind
		says string
	}{
		"not granted":     {second.Receipt, plan.Request{}, turnstone.KindInvalid, "session: s"},
		"another session": {second.Receipt, plan.Request{Session: "x"}, turnstone.KindInvalid, "not of"},
		"unknown parent": {strings.Replace(unsigned(second.Receipt), "parent: t_0", "parent: t_1", 1),
			plan.Request{Session: "s"}, turnstone.KindNotFound, "not here"},
		"edited": {strings.Replace(second.Receipt, "one\n", "two\n", 1),
			plan.Request{Session: "s"}, turnstone.KindInvalid, "not the text that was signed"},
		"no receipt": {"```bash\ntrue\n```\n", plan.Request{}, turnstone.KindInvalid, "no receipt"},
		"invalid":    {"```bash\ntrue\n", plan.Request{}, turnstone.KindInvalid, "not closed"},
	} {
		rep, err := w.frozen(c.text, c.req)
		if rep != nil || turnstone.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v (%s)", name, err, turnstone.HintOf(err))
		}
	}
}
