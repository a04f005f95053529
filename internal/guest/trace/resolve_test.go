package trace

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// resolved runs a script and returns, for each record, its words and the source of its resolved
// command.
func resolved(t *testing.T, script string) (result, *syntax.Script) {
	t.Helper()
	res := traced(t, script)
	s := syntax.Parse([]byte(script))
	Resolve(s, res.report)
	return res, s
}

func source(s *syntax.Script, i int) string {
	if i < 0 {
		return ""
	}
	sp := s.Commands[i].Span
	return string(s.Source[sp.Start:sp.End])
}

func TestResolve(t *testing.T) {
	const script = `echo a; echo a
f() {
  echo "in $1"
  [ "$1" = x ] || return 2
}
f x && f y || true
for i in 1 2; do echo "loop $i"; echo "loop $i"; done
echo "$(echo   spaced;   echo two)" tail | tr a-z A-Z | cat
if false; then :; elif (exit 3); then :; else echo else; fi
while read -r l; do
  echo "l $l"
done <<E
1
E
eval 'echo a'
( cd / && ls -d . )
x=$(
  echo deep
)
case $x in deep) echo \
  continued;; esac
{ echo g; } >/dev/null
[[ a == a ]] && ((1)) && ! false
echo a b \
   c
`
	res, s := resolved(t, script)
	seen := make(map[int]int)
	for _, r := range res.report.Records {
		seen[r.Command]++
		src := source(s, r.Command)
		first, _, _ := strings.Cut(r.Words, " ")
		first, _, _ = strings.Cut(first, "$(")
		if r.Kind == syntax.KindSimple && r.Command >= 0 && !strings.HasPrefix(src, first) {
			t.Errorf("%s %q is resolved to %q", r.Kind, r.Words, src)
		}
		if r.Command >= 0 && s.Commands[r.Command].Kind != r.Kind {
			t.Errorf("%s %q is resolved to a %s", r.Kind, r.Words, s.Commands[r.Command].Kind)
		}
		if r.Command < 0 && r.Kind != syntax.KindIf && r.Words != "echo a" {
			t.Errorf("%s %q, line %d, is not resolved", r.Kind, r.Words, r.Line)
		}
	}
	if seen[-1] != 2 { // the commands of eval, and the "if" that bash makes of elif
		t.Errorf("%d records are not resolved, want 2", seen[-1])
	}
	// Every command that ran has a record; the others have none.
	for i, c := range s.Commands {
		ran := source(s, i) != ":" && !(c.Kind == syntax.KindGroup && c.Parent >= 0 &&
			s.Commands[c.Parent].Kind == syntax.KindFunction)
		if ran != (seen[i] > 0) {
			t.Errorf("command %d, %q: ran %v, has %d records", i, source(s, i), ran, seen[i])
		}
	}
}

func TestResolveOrder(t *testing.T) {
	res, s := resolved(t, "echo a; echo b; echo a\nfor i in 1 2; do echo c; echo d; echo c; done\n")
	var starts []int
	for _, r := range res.find("echo c") {
		starts = append(starts, s.Commands[r.Command].Span.Column)
	}
	if len(starts) != 4 || starts[0] == starts[1] || starts[0] != starts[2] ||
		starts[1] != starts[3] {
		t.Errorf("columns of the same words in a loop: %v", starts)
	}
	a := res.find("echo a")
	if len(a) != 2 || a[0].Command == a[1].Command {
		t.Errorf("the same words twice on a line: %+v", a)
	}
}

func TestResolveForeign(t *testing.T) {
	const script = `alias greet='echo aliased'
shopt -s expand_aliases
greet
echo 'echo sourced' > s.sh
. ./s.sh
eval "echo evaluated"
trap 'echo trapped' EXIT
`
	res, s := resolved(t, script)
	for _, words := range []string{"echo aliased", "echo sourced", "echo evaluated",
		"echo trapped"} {
		if r := res.one(t, words); r.Command != -1 {
			t.Errorf("%q is resolved to %q", words, source(s, r.Command))
		}
	}
}

func TestResolveTrap(t *testing.T) {
	res, s := resolved(t, `same() { echo in same; }; echo twice; `+
		`trap 'echo twice; same; kill -0 $$' EXIT
`)
	twice := res.find("echo twice")
	if len(twice) != 2 || source(s, twice[0].Command) != "echo twice" || twice[1].Command != -1 ||
		!twice[1].Flags.Trap {
		t.Errorf("%+v", twice)
	}
	if r := res.one(t, "echo in same"); source(s, r.Command) != "echo in same" || !r.Flags.Trap {
		t.Errorf("in a function that a trap calls: %+v", r)
	}
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		words []string
		text  string
		cut   bool
		want  bool
	}{
		{[]string{"echo", "a"}, "echo a", false, true},
		{[]string{"echo", "a"}, "echo ab", false, false},
		{[]string{"echo", "$(ls  -l)", "x"}, "echo $(ls -l) x", false, true},
		{[]string{"echo", "$(ls  -l)", "x"}, "echo $(ls -l) y", false, false},
		{[]string{"echo", "`a`", "m", "$(b)"}, "echo `a` m $(b)", false, true},
		{[]string{"echo", "abc"}, "echo a", true, true},
		{[]string{"echo", "abc"}, "echo x", true, false},
		{[]string{"a=(1 2)"}, "a=(1   2)", false, true},
		{[]string{"x\\\ny"}, "xy", false, true},
		{nil, "", false, true},
	} {
		if got := newPattern(c.words).match(c.text, c.cut); got != c.want {
			t.Errorf("%q against %q: %v", c.words, c.text, got)
		}
	}
}
