package diagnose

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

// find searches stderr for a single step's script, whose first command of the given program failed.
func find(t *testing.T, src, program, stderr string) ([]Step, []Finding) {
	t.Helper()
	steps := []Step{{Path: runDir + "/1.sh", Dir: workspace, Script: syntax.Parse([]byte(src))}}
	f := Failure{Command: -1, ExitCode: 1, Stderr: []byte(stderr)}
	for i, c := range steps[0].Script.Commands {
		if c.Program == program && f.Command < 0 {
			f.Command = i
		}
	}
	found := Steps(steps).Find(0, f)
	check(t, steps, found)
	return steps, found
}

func TestFind(t *testing.T) {
	const trace = "Traceback (most recent call last):\n  File \"%\", line 2, in <module>\n    " +
		"x()\nNameError: no\n"
	named := func(name string) string { return strings.ReplaceAll(trace, "%", name) }
	bare := strings.ReplaceAll(named("<string>"), "    x()\n", "")
	tests := []struct{ name, script, program, stderr, want string }{
		{"control characters and colours", "nope\n", "",
			"\x1b[31m/run/turn/1.sh: line 1: nope: \x07command\u202e not\x00 found\x1b[0m\n",
			`bash: nope: command not found at "nope"`},
		{"a long message", "nope\n", "", "/run/turn/1.sh: line 1: nope: " +
			strings.Repeat("日", 500), `bash: nope: ` + strings.Repeat("日", 97) + `… at "nope"`},
		{"invalid UTF-8", "nope\n", "", "/run/turn/1.sh: line 1: \xff\xfe nope\n",
			`bash: ` + "\uFFFD\uFFFD" + ` nope at "nope"`},
		{"only the last 64 KiB", "a1\nb1\n", "", "/run/turn/1.sh: line 1: a1: no\n" +
			strings.Repeat("y\n", 40<<10) + "/run/turn/1.sh: line 2: b1: no\n",
			`bash: b1: no at "b1"`},
		{"a line beyond the end", "a1\n", "",
			"/run/turn/1.sh: line 77: syntax error: unexpected end of file\n",
			`bash: syntax error: unexpected end of file at ""`},
		{"a line that is no number", "a1\n", "",
			"/run/turn/1.sh: line 99999999999999999999: what\n", `bash: what at ""`},
		{"another script's line", "a1\n", "", "/run/turn/2.sh: line 1: a1: no\n", ""},
		{"an inner bash of that name", "x=1\n", "", "bash: line 1: x: no\n", ""},
		{"two that could be meant", "python3 -c 'a\nx()'; python3 -c 'b\nx()'\n", "", bare, ""},
		{"one of them failed", "python3 -c 'a\nx()'; python3 -c 'b\nx()'\n", "python3", bare,
			`python: NameError: no at "x()"`},
		{"the quotation tells", "python3 -c 'a\ny()'; python3 -c 'b\nx()'\n", "", named("<string>"),
			`python: NameError: no at "x()"`},
		{"another command's code is not meant", "python3 -c 'a\nx()'\nmake all\n", "make", bare,
			`python: NameError: no at "make all"`},
		{"a library's file of the same name",
			"cat > index.js <<'E'\na\nb\nE\nnode index.js\n", "node",
			"Error: no\n    at f (/workspace/node_modules/d/index.js:2:1)\n    at " +
				"/workspace/index.js:1:1\n", `node: Error: no at "a"`},
		{"a file whose text is another", "cat > a.py <<'E'\na\nb\nE\npython3 a.py\n", "python3",
			named("/workspace/a.py"), `python: NameError: no at "python3 a.py"`},
		{"the later of two writings",
			"cat > a.py <<'E'\na\nx()\nE\ncat > a.py <<'E'\nb\n x()\nE\npython3 a.py\n", "python3",
			named("/workspace/a.py"), `python: NameError: no at "x()"`},
		{"written only afterwards", "python3 a.py\ncat > a.py <<'E'\na\nx()\nE\n", "python3",
			named("/workspace/a.py"), `python: NameError: no at "python3 a.py"`},
		{"tabs that the shell takes off", "node - <<-'E'\n\ta\n\t  b.c\n\tE\n", "node",
			"[stdin]:2\n  b.c\n    ^\n\nTypeError: no\n    at [stdin]:2:5\n",
			`node: TypeError: no at "c"`},
		{"a warning is said last", "cat <<E\nx\n", "",
			"/run/turn/1.sh: line 1: cat: no\n/run/turn/1.sh: line 3: warning: here-document at line " +
				"1 delimited by end-of-file (wanted `E')\n", `bash: cat: no at "cat"`},
		{"nothing", "false\n", "false", "", ""},
		{"nothing that is known", "false\n", "false", "hello\nworld: x\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			steps, found := find(t, tt.script, tt.program, tt.stderr)
			got := ""
			if len(found) > 0 {
				f := found[0]
				got = f.Tool + ": " + f.Message + ` at "` +
					string(steps[f.Step].Script.Source[f.Span.Start:f.Span.End]) + `"`
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s\nof %+v", got, tt.want, found)
			}
		})
	}
}

// TestLaterWriting: the second write is the one found above.
func TestLaterWriting(t *testing.T) {
	src := "cat > a.py <<'E'\na\nx()\nE\ncat > a.py <<'E'\nb\n x()\nE\npython3 a.py\n"
	_, found := find(t, src, "python3", "  File \"a.py\", line 2\n    x()\nSyntaxError: no\n")
	if len(found) != 1 || found[0].Span.Line != 7 || found[0].Span.Column != 2 {
		t.Errorf("%+v", found)
	}
}

// TestReceipt goes from a traceback to the receipt: the position in a script becomes a position in
// the document, below a list item.
func TestReceipt(t *testing.T) {
	d, err := document.Parse("d.md",
		[]byte("# Title\n\n1. Run:\n   ```bash\n   set -e\n   python3 - <<'EOF'\n   import sys\n "+
			"  print(1/0)\n   EOF\n   ```\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := d.Steps[0]
	script := syntax.Parse([]byte(s.Script))
	command := 0
	for i, c := range script.Commands {
		if c.Program == "python3" {
			command = i
		}
	}
	found := Steps([]Step{{Script: script}}).Find(0, Failure{Command: command, ExitCode: 1,
		Stderr: []byte("Traceback (most recent call last):\n  File \"<stdin>\", line 2, in " +
			"<module>\n    print(1/0)\n          ~^~\nZeroDivisionError: division by zero\n")})
	if len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	span := script.Commands[command].Span
	from, to := d.Position(s, span.Start), d.Position(s, span.End)
	fault, end := d.Position(s, found[0].Span.Start), d.Position(s, found[0].Span.End)
	failure := document.CommandFailure{
		Line: from.Line, Column: from.Column, EndLine: to.Line, EndColumn: to.Column,
		Text: s.Script[span.Start:span.End], ExitCode: 1, Tool: found[0].Tool,
		Message: found[0].Message,
		Excerpt: d.SourceLine(fault.Line, fault.Column, end.Line, end.Column),
	}
	one := 1
	receipt := string(d.Receipt(document.TurnInfo{},
		[]document.StepResult{{Status: turnstone.StepFailed, ExitCode: &one,
			Failures: []document.CommandFailure{failure}}}))
	want := "   line 6, column 4: `python3 - <<'EOF'"
	for _, want := range []string{want,
		"` exited 1 · python: ZeroDivisionError: division by zero (line 8)\n   ```text\n   8 |   " +
			" print(1/0)\n     |          ^~~\n   ```\n"} {
		if !strings.Contains(receipt, want) {
			t.Errorf("no\n%s\nin\n%s", want, receipt)
		}
	}
}
