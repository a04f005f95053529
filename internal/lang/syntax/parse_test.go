package syntax

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// outline writes a script's commands for tables, one per line: depth, kind with stage, "$" inside a
// substitution, the text, and its words if they differ.
func outline(s *Script) string {
	var b strings.Builder
	for _, c := range s.Commands {
		for p := c.Parent; p >= 0; p = s.Commands[p].Parent {
			b.WriteString("  ")
		}
		b.WriteString(string(c.Kind))
		if c.Stage > 0 {
			fmt.Fprintf(&b, "/%d", c.Stage)
		}
		if c.Substituted {
			b.WriteString("$")
		}
		text := string(s.Source[c.Span.Start:c.Span.End])
		fmt.Fprintf(&b, " %q", text)
		if c.Kind == KindSimple && strings.Join(c.Words, " ") != text {
			fmt.Fprintf(&b, " %q", c.Words)
		}
		for _, h := range c.Heredocs {
			fmt.Fprintf(&b, " <<%d", h.FD)
			if h.String {
				b.WriteString("s")
			}
			if h.Verbatim {
				b.WriteString("v")
			}
			fmt.Fprintf(&b, "%q", s.Source[h.Span.Start:h.Span.End])
		}
		b.WriteString("\n")
	}
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "fault %d:%d %s\n", f.Span.Line, f.Span.Column, f.Message)
	}
	if s.Partial != "" {
		b.WriteString("partial " + s.Partial + "\n")
	}
	return b.String()
}

func TestCommands(t *testing.T) {
	tests := []struct{ name, src, want string }{
		{"empty", "", ""},
		{"comment", "# a\n", ""},
		{"simple", "echo a  b\n", `simple "echo a  b" ["echo" "a" "b"]`},
		{"several", "a; b & c\nd", `simple "a"|simple "b"|simple "c"|simple "d"`},
		{"redirections", ">f a 2>&1 b <g", `simple ">f a 2>&1 b <g" ["a" "b"]`},
		{"only a redirection", ">f", `simple ">f" []`},
		{"assignments", "a=1 b+=2", `simple "a=1 b+=2"`},
		{"assignments before a program", "a=1 b=$c d", `simple "a=1 b=$c d"`},
		{"not and time", "! a; time b; time -p c", `simple "a"|simple "b"|simple "c"`},
		{"pipeline", "a | b |& c",
			`pipeline "a | b |& c"|  simple/1 "a"|  simple/2 "b"|  simple/3 "c"`},
		{"pipeline that is not", "! a | b", `pipeline "a | b"|  simple/1 "a"|  simple/2 "b"`},
		{"list", "a && b || c", `list "a && b || c"|  simple "a"|  simple "b"|  simple "c"`},
		{"list of pipelines", "a | b && c &",
			`list "a | b && c"|  pipeline "a | b"|    simple/1 "a"|    simple/2 "b"|  simple "c"`},
		{"for", "for i in $(a) b; do c; done <f",
			`for "for i in $(a) b; do c; done <f"|  simple$ "a"|  simple "c"`},
		{"for with an expression", "for ((i=$(a);i<3;i++)); do b; done",
			`for "for ((i=$(a);i<3;i++)); do b; done"|  simple$ "a"|  simple "b"`},
		{"select", "select x in a; do b; done", `for "select x in a; do b; done"|  simple "b"`},
		{"while and until", "while a; do b; done; until c; do d; done",
			`while "while a; do b; done"|  simple "a"|  simple "b"|while "until c; do d; done"|  simple "c"|  simple "d"`},
		{"if", "if a; then b; elif c; then d; else e; fi",
			`if "if a; then b; elif c; then d; else e; fi"|  simple "a"|  simple "b"|  simple "c"|  simple "d"|  simple "e"`},
		{"case", "case $(a) in b|$(c)) d;; *) e; f;; esac",
			`case "case $(a) in b|$(c)) d;; *) e; f;; esac"|  simple$ "a"|  simple$ "c"|  simple "d"|  simple "e"|  simple "f"`},
		{"group and subshell", "{ a; } >f; (b)",
			`group "{ a; } >f"|  simple "a"|subshell "(b)"|  simple "b"`},
		{"function", "f() { a; }; function g (b)",
			`function "f() { a; }"|  group "{ a; }"|    simple "a"|function "function g (b)"|  subshell "(b)"|    simple "b"`},
		{"arithmetic", "((i += $(a)))", `arithmetic "((i += $(a)))"|  simple$ "a"`},
		{"test", "[[ -n $(a) && ( ! b = $(c) ) ]]",
			`test "[[ -n $(a) && ( ! b = $(c) ) ]]"|  simple$ "a"|  simple$ "c"`},
		{"coproc", "coproc x { a; }", `coproc "coproc x { a; }"|  group "{ a; }"|    simple "a"`},
		{"declarations", "export A=$(a) B; declare -a c=(1 2); let x=1+2",
			`simple "export A=$(a) B"|  simple$ "a"|simple "declare -a c=(1 2)"|simple "let x=1+2"`},
		{"substitutions", "echo \"$(a `b`)\" <(c) ${x:-$(d)} $((1+$(e)))",
			"simple \"echo \\\"$(a `b`)\\\" <(c) ${x:-$(d)} $((1+$(e)))\"|  simple$ \"a `b`\"|   " +
				" simple$ \"b\"|  simple$ \"c\"|  simple$ \"d\"|  simple$ \"e\""},
		{"backquotes in backquotes", "echo `a \\`b c\\``",
			"simple \"echo `a \\\\`b c\\\\``\"|  simple$ \"a \\\\`b c\\\\`\" [\"a\" \"`b c\\\\`\"]|  " +
				"  simple$ \"b c\""},
		{"a loop in a substitution", "x=$(for i in a; do b; done)",
			`simple "x=$(for i in a; do b; done)"|  for$ "for i in a; do b; done"|    simple$ "b"`},
		{"backslash and newline", "a b\\\nc 'd\\\ne' \"f\\\ng\" \\\n h",
			`simple "a b\\\nc 'd\\\ne' \"f\\\ng\" \\\n h" ["a" "bc" "'d\\\ne'" "\"fg\"" "h"]`},
		{"quotes are kept", `echo 'a' "b $c" \d $'e\n'`, `simple "echo 'a' \"b $c\" \\d $'e\\n'"`},
		{"not UTF-8", "a \xff\xfe; b", `simple "a \xff\xfe"|simple "b"`},
		{"NUL", "a\x00b; c", `simple "a\x00b"|simple "c"`},
		{"CRLF", "a b\r\nc\r\n", `simple "a b\r"|simple "c\r"`},
		{"bytes and columns", "echo é; b", `simple "echo é"|simple "b"`},
		{"here-documents", "cat <<A <<'B' | g 3<<-C\na $(x) \nA\nb\nB\n\tc\n\tC\nd",
			`pipeline "cat <<A <<'B' | g 3<<-C"|  simple/1 "cat <<A <<'B'" ["cat"] <<0"a $(x) \n" <<0v"b\n"|  simple/2 "g 3<<-C" ["g"] <<3"\tc\n"|    simple$ "x"|simple "d"`},
		{"a here-document without expansions", "cat <<A\nb\nA\n",
			`simple "cat <<A" ["cat"] <<0v"b\n"`},
		{"an empty here-document", "cat <<A\nA\nb", `simple "cat <<A" ["cat"]|simple "b"`},
		{"a here-document in a loop", "while a; do cat <<A; done\nb\nA\n",
			`while "while a; do cat <<A; done"|  simple "a"|  simple "cat <<A" ["cat"] <<0v"b\n"`},
		{"here-documents of one line", "cat <<A; cat <<B; c\na\nA\nb\nB\nd",
			`simple "cat <<A" ["cat"] <<0v"a\n"|simple "cat <<B" ["cat"] <<0v"b\n"|simple "c"|simple "d"`},
		{"here-string", "cat <<<'a b' 4<<< $c",
			`simple "cat <<<'a b' 4<<< $c" ["cat"] <<0sv"a b" <<4s"$c"`},
		{"a here-document that never ends", "a\ncat <<'E F'\nb\n",
			`simple "a"|simple "cat <<'E F'" ["cat"] <<0v"b\n"`},
		{"an extended pattern", "shopt -s extglob\nls !(a|b)",
			`simple "shopt -s extglob"|simple "ls !(a|b)"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Parse([]byte(tt.src))
			checkScript(t, s)
			want := strings.ReplaceAll(tt.want, "|  ", "\n  ")
			want = splitTop(want)
			if got := strings.TrimSuffix(outline(s), "\n"); got != want {
				t.Errorf("%q:\n%s\nwant\n%s", tt.src, got, want)
			}
		})
	}
}

// splitTop breaks an expected outline before commands of the top level.
func splitTop(s string) string {
	for _, k := range []Kind{KindSimple, KindPipeline, KindList, KindFor, KindWhile, KindIf,
		KindCase, KindGroup, KindSubshell, KindFunction, KindArithmetic, KindTest, KindCoprocess} {
		s = strings.ReplaceAll(s, "|"+string(k)+" ", "\n"+string(k)+" ")
	}
	return s
}

// checkScript checks the properties of every script.
func checkScript(t *testing.T, s *Script) {
	t.Helper()
	lines := newLineIndex(s.Source)
	span := func(what string, sp Span) bool {
		if sp.Start < 0 || sp.End < sp.Start || sp.End > len(s.Source) ||
			sp != lines.span(sp.Start, sp.End) {
			t.Errorf("%s: bad span %+v of %d bytes", what, sp, len(s.Source))
			return false
		}
		return true
	}
	at := 0
	continued := bytes.Contains(s.Source, []byte("\\\n"))
	for i, c := range s.Commands {
		what := fmt.Sprintf("command %d (%s)", i, c.Kind)
		if c.ID != i || c.Parent >= i || c.Parent < -1 || c.Kind == "" || c.Language == "" {
			t.Errorf("%s: ID %d, parent %d, language %q", what, c.ID, c.Parent, c.Language)
			continue
		}
		if !span(what, c.Span) {
			continue
		}
		if c.Span.Start < at {
			t.Errorf("%s begins at %d, before the one before it", what, c.Span.Start)
		}
		at = c.Span.Start
		if c.Parent >= 0 && !inside(s, c.Span, c.Parent) {
			t.Errorf("%s at %d-%d is not inside its parent", what, c.Span.Start, c.Span.End)
		}
		if len(c.Words) > 0 && !continued &&
			!bytes.Contains(s.Source[c.Span.Start:c.Span.End], []byte(c.Words[0])) {
			t.Errorf("%s: %q does not stand in %q", what, c.Words[0],
				s.Source[c.Span.Start:c.Span.End])
		}
		for _, h := range c.Heredocs {
			span(what+" here-document", h.Span)
		}
		for _, e := range c.Embedded {
			span(what+" "+e.Language, e.Span)
			for _, f := range e.Faults {
				span(what+" "+e.Language+" fault", f.Span)
			}
		}
	}
	for _, f := range s.Faults {
		span("fault", f.Span)
	}
}

// inside reports whether a span is in a command or in a here-document of the command or its
// ancestors.
func inside(s *Script, sp Span, parent int) bool {
	for p := parent; p >= 0; p = s.Commands[p].Parent {
		c := s.Commands[p]
		if p == parent && c.Span.Start <= sp.Start && sp.End <= c.Span.End {
			return true
		}
		for _, h := range c.Heredocs {
			if h.Span.Start <= sp.Start && sp.End <= h.Span.End {
				return true
			}
		}
	}
	return false
}

func TestSpans(t *testing.T) {
	s := Parse([]byte("a\n  é b | c\nd"))
	want := []Span{
		{0, 1, 1, 1, 1, 2}, {4, 12, 2, 3, 2, 11}, {4, 8, 2, 3, 2, 7},
		{11, 12, 2, 10, 2, 11}, {13, 14, 3, 1, 3, 2},
	}
	want[1].EndColumn, want[3].Column, want[3].EndColumn = 11, 10, 11
	for i, c := range s.Commands {
		if i >= len(want) || c.Span != want[i] {
			t.Errorf("command %d: %+v", i, c.Span)
		}
	}
	if len(s.Commands) != len(want) {
		t.Errorf("%d commands", len(s.Commands))
	}
}

func TestProgram(t *testing.T) {
	for src, want := range map[string]string{
		"echo a": "echo", "'ec'ho a": "echo", `\ls`: "ls", "$x a": "", "a=1": "",
		"export a": "export", "x=1 y": "y", "e*": "", `"a b" c`: "a b",
	} {
		if got := Parse([]byte(src)).Commands[0].Program; got != want {
			t.Errorf("%s: program %q, want %q", src, got, want)
		}
	}
}

func TestPOSIX(t *testing.T) {
	// For sh, "function" is followed by an ordinary word.
	s := ParseAs([]byte("echo a &> f; x"), "sh")
	checkScript(t, s)
	if len(s.Commands) == 0 {
		t.Fatal("no commands")
	}
	if got := outline(ParseAs([]byte("a=(1 2)\nb\n"), "sh")); !strings.Contains(got, `simple "b"`) {
		t.Errorf("what follows an array in sh is lost:\n%s", got)
	}
}
