package syntax

import (
	"testing"
	"time"
)

func addSeeds(f *testing.F) {
	for _, e := range ruleExamples {
		f.Add([]byte(e.src))
	}
	for _, src := range []string{
		"", "a | b && c", "for i in a; do b; done", "case a in b) c;; esac",
		"cat <<A <<-'B'\n$(x)\nA\n\tb\n\tB\n", "x=$(a `b \\`c\\``)",
		"((a+$(b)))", "[[ -n $(a) ]]", "f() { a; }", "coproc a { b; }", "a \\\nb", "! ! a",
		"for; do\n", "a\r\nb", "\x00\xff", "cat <<E\nx",
		"bash -c \"python -c \\\"'x'\\\"\"", "a=(1 $(2) [3]=4)", "${a:-$(b)}${c/$(d)/e}",
		"select x in a; do b; done",
		"time -p a | b", "<<< a", "{a}>b c", "$'\\'' $\"a\"", "let a=1 b++",
	} {
		f.Add([]byte(src))
	}
}

// FuzzParse checks the properties of every script. Embedded code goes through its grammars too.
func FuzzParse(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		checkScript(t, Parse(src))
		checkScript(t, ParseAs(src, "sh"))
	})
}

// FuzzCheckless covers all of Check except starting bash: the parser's verdict on the script, and
// bash's messages, which a script can forge.
func FuzzCheckless(f *testing.F) {
	f.Add([]byte("a\nfi\n"),
		"/dev/fd/3: line 2: syntax error near unexpected token `fi'\n/dev/fd/3: line 2: `fi'\n", 2)
	f.Add([]byte("if a"), "x: line 99999999999999999999: y", 0)
	f.Add([]byte(""), "/dev/fd/3: line 7: syntax error: unexpected end of file", -1)
	f.Add([]byte("\xff\n"), "/dev/fd/3: line 0: warning: x\n\x1b]0;", 1)
	f.Fuzz(func(t *testing.T, src []byte, said string, at int) {
		fault := checkFault(src, said, &shellFault{at: at, message: said})
		if sp := fault.Span; sp.Start < 0 || sp.End < sp.Start || sp.End > len(src) ||
			sp.Line < 1 || sp.Column < 1 {
			t.Errorf("%+v of %d bytes", sp, len(src))
		}
		for _, c := range fault.Message {
			if c < ' ' || c == 0x7f {
				t.Errorf("message %q", fault.Message)
			}
		}
	})
}

// FuzzCode passes any text to each grammar. The tree-sitter grammars are C.
func FuzzCode(f *testing.F) {
	languages := []string{"python", "javascript", "json", "ruby", "jq", "awk", "bash"}
	for i, src := range []string{
		"def f(a):\n\tif a:\n  return f'{a!r:>{b}}'\n\"\"\"", "x = `a${b}`; /a/g; <a>{b}</a>",
		`{"a": [1, null, "\u0000"]}`,
		"puts <<~A, %w(a b)\n #{x}\nA\n", `.a[] | "\(.b)" as $x | reduce .[] as $i (0; . + $i)`,
		"BEGIN { while ((getline l < f) > 0) a[l]++ }\n/x/,/y/ { print $NF | \"sort\" }",
		"for ((;;)); do cat <<-A; done\n\tA\n",
	} {
		f.Add(uint8(i), []byte(src))
	}
	f.Fuzz(func(t *testing.T, language uint8, src []byte) {
		//wait: no check needs the faults of a parse that had no time
		b := &budget{until: time.Now().Add(maxParse), grammars: maxGrammar}
		faults, _ := parseCode(languages[int(language)%len(languages)], src, b)
		for _, fault := range faults {
			if fault.start < 0 || fault.end < fault.start ||
				fault.end > len(src) || fault.message == "" {
				t.Errorf("%+v of %d bytes", fault, len(src))
			}
		}
	})
}
