package document

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

func TestExcerpt(t *testing.T) {
	long := strings.Repeat("a", 500) + "FAULT" + strings.Repeat("b", 500)
	tests := []struct {
		name, line  string
		from, to    int
		text, caret string
	}{
		{"a part", "print(1/0)", 6, 9, "print(1/0)", "      ^~~"},
		{"an empty part", "fi", 0, 0, "fi", "^"},
		{"the end", "if true", 7, 7, "if true", "       ^"},
		{"outside", "x", -5, 99, "x", "^"},
		{"wrong order", "abc", 2, 1, "abc", "  ^"},
		{"an empty line", "", 0, 0, "", "^"},
		{"tabs", "\ta\tb", 3, 4, "    a   b", "        ^"},
		{"a marked tab", "a\tb", 1, 2, "a   b", " ^~~"},
		{"wide characters", "x 日本 y", 2, 8, "x 日本 y", "  ^~~~"},
		{"after wide characters", "日本 y", 7, 8, "日本 y", "     ^"},
		{"combining characters", "e\u0301x", 3, 4, "e\u0301x", " ^"},
		{"invalid UTF-8", "\xff\xfex", 2, 3, "\uFFFD\uFFFDx", "  ^"},
		{"control characters", "\x1b[31m\u202ex", 8, 9, "<U+001B>[31m<U+202E>x",
			"                    ^"},
		{"a long line", long, 500, 505, "…" + strings.Repeat("a", 40) + "FAULT" +
			strings.Repeat("b", 55) + "…", strings.Repeat(" ", 41) + "^~~~~"},
		{"the beginning of a long line", long, 0, 2000, strings.Repeat("a", 100) + "…",
			"^" + strings.Repeat("~", 99)},
		{"the end of a long line", long, 1005, 1005, "…" + strings.Repeat("b", 40),
			strings.Repeat(" ", 41) + "^"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text, caret := Excerpt(tt.line, tt.from, tt.to)
			if text != tt.text || caret != tt.caret {
				t.Errorf("got\n%q\n%q\nwant\n%q\n%q", text, caret, tt.text, tt.caret)
			}
		})
	}
}

func FuzzExcerpt(f *testing.F) {
	for _, s := range append(hostile, strings.Repeat("日", 300), strings.Repeat("\t", 300),
		strings.Repeat("\u0301", 5000)) {
		f.Add(s, 0, len(s))
		f.Add(s, len(s)/2, len(s)/2+1)
	}
	f.Fuzz(func(t *testing.T, line string, from, to int) {
		line, _, _ = strings.Cut(line, "\n")
		text, caret := Excerpt(line, from, to)
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\t\x1b\x00") {
			t.Errorf("%q shows %q", line, text)
		}
		if w := ansi.StringWidth(text); w > maxExcerpt+20 {
			t.Errorf("%d columns", w)
		}
		marked := strings.TrimLeft(caret, " ")
		if !strings.HasPrefix(marked, "^") || strings.Trim(marked[1:], "~") != "" ||
			len(caret) > maxExcerpt+20 {
			t.Errorf("%q is marked by %q", text, caret)
		}
	})
}

func TestSourceLine(t *testing.T) {
	d, err := Parse("d.md", []byte("one\ntwo\r\n> thrée\rfour\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line, column, endLine, endColumn int
		want                             SourceLine
	}{
		{1, 1, 1, 4, SourceLine{1, "one", 0, 3}},
		{2, 2, 2, 3, SourceLine{2, "two", 1, 2}},
		{3, 3, 4, 2, SourceLine{3, "> thrée", 2, 8}},
		{4, 9, 4, 3, SourceLine{4, "four", 4, 4}},
		{4, -1, 0, 0, SourceLine{4, "four", 0, 0}},
		{5, 1, 5, 1, SourceLine{}}, {0, 1, 1, 1, SourceLine{}}, {99, 1, 99, 1, SourceLine{}},
	} {
		if got := d.SourceLine(tt.line, tt.column, tt.endLine, tt.endColumn); got != tt.want {
			t.Errorf("%+v is %+v", tt, got)
		}
	}
}

func TestFailureLines(t *testing.T) {
	failure := func(n int) CommandFailure {
		return CommandFailure{Line: n, Column: 3, Text: "psql -c 'x\ny'", ExitCode: 2, Tool: "psql",
			Message: "no *x*",
			Excerpt: SourceLine{Number: n + 1, Text: "y'", From: 0, To: 1}}
	}
	tests := []struct {
		name     string
		failures []CommandFailure
		want     string
	}{
		{"none", nil, "**failed**"},
		{"all that can be said", []CommandFailure{failure(14)},
			"**failed**\\\nline 14, column 3: `psql -c 'x …` exited 2 · psql: no \\*x\\* (line " +
				"15)\n```text\n15 | y'\n   | ^\n```"},
		{"nothing but the command",
			[]CommandFailure{{Line: 1, Column: 1, ExitCode: 1, Text: "false"}},
			"**failed**\\\nline 1, column 1: `false` exited 1"},
		{"not even that", []CommandFailure{{Line: 1, Column: 1, ExitCode: 1, Tool: "x"}},
			"**failed**\\\nline 1, column 1: exited 1"},
		{"two without an excerpt", []CommandFailure{{Line: 1, Column: 1, Text: "a", ExitCode: 1},
			{Line: 2, Column: 1, Text: "b", ExitCode: 2}},
			"**failed**\\\nline 1, column 1: `a` exited 1\\\nline 2, column 1: `b` exited 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(appendFailures([]string{"**failed**"}, tt.failures),
				"\n")
			if got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
	many := make([]CommandFailure, 7)
	if got := appendFailures([]string{"**failed**"}, many); len(got) != 7 ||
		got[6] != "and 2 more failing commands" {
		t.Errorf("seven failures: %q", got)
	}
}

func TestCommandTable(t *testing.T) {
	rows := make([]CommandRow, maxCommandRows+3)
	for i := range rows {
		rows[i] = CommandRow{Line: i, Text: strings.Repeat("日`", 100), Language: "bash",
			ExitCodes: make([]int, 100), Count: 1}
	}
	got := appendCommands([]string{"```"}, StepResult{Commands: rows})
	if len(got) != 1+1+1+1+maxCommandRows+1+1 || got[len(got)-2] != "[… 3 commands cut …]" {
		t.Errorf("%d lines, at the end %q", len(got), got[len(got)-2:])
	}
	width := strings.Index(got[3], "language")
	for i, line := range got[4 : 4+maxCommandRows] {
		if at := strings.Index(line, "bash"); ansi.StringWidth(line[:at]) != width {
			t.Fatalf("row %d: %q", i, line)
		}
	}
}

func drawText(t *rapid.T, label string) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(hostile), 0, 4).Draw(t, label), "")
}

// TestHostileFailures: for any document, the text of a failing command or of the table stays in its
// place.
func TestHostileFailures(t *testing.T) {
	checked := 0
	rapid.Check(t, func(t *rapid.T) {
		d, err := Parse("doc.md", drawDocument(t))
		if err != nil {
			return
		}
		results := drawResults(t, len(d.Steps))
		for i := range results {
			r := &results[i]
			for range rapid.IntRange(0, 7).Draw(t, "failures") {
				f := CommandFailure{Line: 3, Column: 1, Text: drawText(t, "command"), ExitCode: 1,
					Tool: drawText(t, "tool"), Message: drawText(t, "message")}
				f.Excerpt = SourceLine{Number: rapid.IntRange(0, 5).Draw(t, "line"),
					Text: drawText(t, "source"), From: rapid.IntRange(-1, 30).Draw(t, "from"),
					To: rapid.IntRange(-1, 90).Draw(t, "to")}
				r.Failures = append(r.Failures, f)
				r.Commands = append(r.Commands, CommandRow{Line: -1, Text: drawText(t, "row"),
					Language: drawText(t, "language"), ExitCodes: []int{0, -1}, OutputBytes: -1})
				checked++
			}
			r.CommandsNote = drawText(t, "note")
		}
		if err := checkReceipt(d, results, testInfo()); err != nil {
			t.Fatal(err)
		}
	})
	least := 50
	if testing.Short() { // a fifth of the documents are drawn
		least = 1
	}
	if checked < least {
		t.Errorf("only %d failures", checked)
	}
}

// TestFailuresAreReplaced: a second run removes all results of the first run.
func TestFailuresAreReplaced(t *testing.T) {
	d, err := Parse("d.md", []byte("1. > ```bash\n   > boom\n   > ```\n"))
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	failed := StepResult{Status: turnstone.StepFailed, ExitCode: &one,
		Commands: []CommandRow{{Line: 2, Text: "boom"}},
		Failures: []CommandFailure{{Line: 2, Column: 6, Text: "boom", ExitCode: 127, Tool: "bash",
			Message: "boom: command not found", Excerpt: d.SourceLine(2, 6, 2, 10)}}}
	first := d.Receipt(testInfo(), []StepResult{failed})
	want := "   > ```text\n   > 2 |    > boom\n   >   |      ^~~~\n   > ```\n"
	if !strings.Contains(string(first), want) {
		t.Fatalf("no excerpt in\n%s", first)
	}
	again, err := Parse("r.md", first)
	if err != nil {
		t.Fatal(err)
	}
	passed := []StepResult{{Status: turnstone.StepPassed}}
	want = string(d.Receipt(testInfo(), passed))
	if got := string(again.Receipt(testInfo(), passed)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func ExampleExcerpt() {
	text, caret := Excerpt("\tprint(1/0)", 7, 10)
	fmt.Println("17 | " + text)
	fmt.Println("   | " + caret)
	// Output:
	// 17 |     print(1/0)
	//    |           ^~~
}
