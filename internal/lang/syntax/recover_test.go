package syntax

import (
	"strings"
	"testing"
)

// TestRecover: a part of a script that the first parser rejects is recovered.
func TestRecover(t *testing.T) {
	tests := []struct {
		name, src string
		found     []string // lines of the outline, without their indentation
		partial   bool
	}{
		{"bash takes it", "! ! a\nb | c",
			[]string{`simple "a"`, `pipeline "b | c"`, `simple/2 "c"`}, false},
		{"before and after", "a\nfor; do\nb x\n(c)\n",
			[]string{`simple "a"`, `simple "b x"`, `subshell "(c)"`, `simple "c"`}, true},
		{"a quote that never ends", "a\nb 'c", []string{`simple "a"`}, true},
		{"a loop that never ends", "a\nwhile b; do\nc | d\n",
			[]string{`simple "a"`, `simple "b"`, `pipeline "c | d"`}, true},
		{"a stray end", "a\nfi\nb\n", []string{`simple "a"`, `simple "b"`}, true},
		{"nothing but faults", ") ) )", nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Parse([]byte(tt.src))
			checkScript(t, s)
			var got []string
			for line := range strings.Lines(outline(s)) {
				got = append(got, strings.TrimSpace(line))
			}
			for _, want := range tt.found {
				if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+want+"\n") {
					t.Errorf("no %s in\n%s", want, strings.Join(got, "\n"))
				}
			}
			if (s.Partial != "") != tt.partial || (len(s.Faults) > 0) != tt.partial {
				t.Errorf("partial %q, faults %v", s.Partial, s.Faults)
			}
		})
	}
}

// TestHostile parses texts that were made to be slow, deep or large. The times are for a slow
// machine under load: unbounded work takes hours, or crashes.
func TestHostile(t *testing.T) {
	n := 100_000
	tests := []struct {
		name, src string
		whole     bool // the text is parsed completely
	}{
		{"5,000 parentheses", strings.Repeat("(", 5000) + "a" + strings.Repeat(")", 5000), true},
		{"100,000 parentheses", strings.Repeat("(", n) + "a" + strings.Repeat(")", n), false},
		{"substitutions", strings.Repeat("$(", n) + "a" + strings.Repeat(")", n), false},
		{"quoted substitutions", strings.Repeat(`"$(`, n), false},
		{"loops", strings.Repeat("if x; then ( ", n/5), false},
		{"groups", strings.Repeat("{ ", n), false},
		{"functions", strings.Repeat("a()", n), false},
		{"parameters", strings.Repeat("${a:-", n), false},
		{"arithmetic", ": $((" + strings.Repeat("(", n), false},
		{"a long sum", ": $((" + strings.Repeat("1+", n) + "1))", true},
		{"a long list", strings.Repeat("a&&", n) + "a", true},
		{"a long pipeline", strings.Repeat("a|", n/10) + "a", true},
		{"10 MB of commands", strings.Repeat("a;\n", 10<<20/3), false},
		{"10 MB in a word", strings.Repeat("a", 10<<20), true},
		{"a line of 1 MB", strings.Repeat("echo a b; ", 1<<20/10), true},
		{"here-documents without end", strings.Repeat("cat <<E\n", n), true},
		{"here-documents of a line", strings.Repeat("cat <<E;", n/10) + "\n", false},
		{"a quote without end", "echo '" + strings.Repeat("a b\n", n), false},
		{"backquotes", strings.Repeat("`", n+1), false},
		{"stray words", strings.Repeat(") fi ", n/5), false},
		{"NUL", strings.Repeat("\x00", 1<<20), true},
		{"not UTF-8", strings.Repeat("\xff", 1<<20), true},
		{"redirections", strings.Repeat(">a ", n), true},
		{"prefixes", strings.Repeat("env ", n), true},
		{"python", "python3 -c '" + strings.Repeat("(", 1<<19) + "'", true},
		{"python's blocks", "python3 - <<'E'\n" + strings.Repeat("if x:\n", n/5) + "E\n", true},
		{"javascript", "node -e '" + strings.Repeat("`${", n) + "'", true},
		{"ruby", "ruby -e '" + strings.Repeat("<<A;", n) + "'", true},
		{"json", "cat >a.json <<'E'\n" + strings.Repeat("[", n) + "\nE\n", true},
		{"jq", "jq '" + strings.Repeat("[", maxSmallCode-10) + "'", true},
		{"awk", "awk '{x=" + strings.Repeat("(", maxSmallCode-10) + "'", true},
		{"much python", strings.Repeat("python -c 'x'\n", n/5), true},
		{"shell in shell", strings.Repeat("bash -c \"", 20) + "x" + strings.Repeat("\"", 20), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Parse([]byte(tt.src))
			checkScript(t, s)
			if tt.whole && s.Partial != "" || !tt.whole && s.Partial == "" {
				t.Errorf("%d commands, partial %q", len(s.Commands), s.Partial)
			}
		})
	}
	if s := Parse(make([]byte, maxScript+1)); s.Partial == "" || len(s.Commands) > 0 {
		t.Error("a script that is too large was parsed")
	}
}
