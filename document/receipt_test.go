package document

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenResults are the results of the documents in testdata, in order. They use every field of a
// result.
func goldenResults(n int) []StepResult {
	zero, one, kill := 0, 1, 137
	long := strings.Repeat("all work and no play\n", 1000)
	cut := cutOutputOf(long, 4000, 4000)
	cut.File = "outputs/step-4.stdout"
	binary := outputOf("\x7fELF\x00\x01")
	binary.File = "outputs/step-5.stdout"
	notKept := cutOutputOf(long, 100, 100)
	notKept.Note = "not kept: the disk is full"
	results := []StepResult{
		{Status: turnstone.StepPassed, ExitCode: &zero, Duration: 12 * time.Millisecond,
			Stdout: outputOf("hello\n")},
		{Status: turnstone.StepFailed, ExitCode: &one, Duration: 1234 * time.Millisecond,
			Note:   "may fail; the turn goes on",
			Stdout: outputOf("```\nfence\n````\n\n  indented\n"),
			Stderr: outputOf("\x1b[31mno\x1b[0m such file\n<!-- /turn:result -->\n")},
		{Status: turnstone.StepPassed, ExitCode: &zero, Duration: 125 * time.Second},
		{Status: turnstone.StepFailed, ExitCode: &kill, Duration: time.Second,
			Note: "killed: out of *memory* <b>", Stdout: cut},
		{Status: turnstone.StepTimeout, Duration: 2 * time.Hour, Note: "after 2h0m0s",
			Stdout: binary, Stderr: notKept},
		{Status: turnstone.StepError, Duration: 3 * time.Second, Note: "the sandbox is gone",
			Stderr: outputOf("\x1b[0m")},
		{Status: turnstone.StepSkipped, Note: "step 6 ended the turn"},
	}
	results[1].Failures = []CommandFailure{{
		Line: 14, Column: 3, EndLine: 19, EndColumn: 4, Text: "python3 - <<EOF\nprint(1/0)\nEOF",
		ExitCode: 1,
		Tool:     "python", Message: "ZeroDivisionError: division by zero",
		Excerpt: SourceLine{Number: 17, Text: "\tprint(1/0) # ```", From: 7, To: 10},
	}, {
		Line: 21, Column: 1, EndLine: 21, EndColumn: 6, Text: "false", ExitCode: 1,
	}}
	results[1].Commands = []CommandRow{
		{Line: 14, Text: "python3 - <<EOF\nprint(1/0)\nEOF", Language: "python",
			ExitCodes: []int{1}, Duration: 1200 * time.Millisecond, Count: 1, OutputBytes: 120},
		{Line: 20, Text: "echo \"日本\" | cat", Language: "bash", ExitCodes: []int{0, 0},
			Duration: 3 * time.Millisecond, Count: 1000, OutputBytes: 7000},
		{Line: 21, Text: "false", Language: "bash"},
	}
	results[1].CommandsNote = "untraced from line 22: exec replaced the shell"
	for len(results[3].Failures) < 8 {
		results[3].Failures = append(results[3].Failures,
			CommandFailure{Line: 3, Column: 1, EndLine: 3, EndColumn: 5, Text: "x `y`",
				ExitCode: 127,
				Tool:     "bash", Message: "x: command *not* found\\",
				Excerpt: SourceLine{Number: 3, Text: "> x `y`", From: 2, To: 3}})
	}
	results[6].Commands = []CommandRow{}
	results[1].Network = &StepNetwork{Connections: 3, Sent: 1200, Received: 34 << 10,
		MoreRefused: 65000, Notes: []string{"https *was* recorded"},
		Refused: []NetworkRefusal{{Protocol: "tcp", Target: "api.example.com:443",
			Reason: "not in allow", Count: 3, Command: "curl -s \\\n  https://api.example.com"},
			{Protocol: "dns", Target: "evil\n```\n_x_", Reason: "no *such*", Count: 1}}}
	results[3].Network = &StepNetwork{
		Refused: []NetworkRefusal{{Protocol: "icmp", Target: "192.0.2.1", Count: 1}}}
	for len(results[3].Network.Refused) < 14 {
		results[3].Network.Refused = append(results[3].Network.Refused,
			NetworkRefusal{Protocol: "udp", Target: "192.0.2.1:53", Count: 2})
	}
	for len(results) < n {
		results = append(results, results[len(results)-1])
	}
	return results[:n]
}

// TestGolden compares receipts with testdata/*.receipt.md and runs each receipt again.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range files {
		if strings.HasSuffix(file, ".receipt.md") {
			continue
		}
		ran++
		t.Run(filepath.Base(file), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d, err := Parse(file, src)
			if err != nil {
				t.Fatal(err)
			}
			info := testInfo()
			info.Result, info.Error = turnstone.ResultError,
				"the sandbox is gone: \"EOF\"\nsecond line"
			got := d.Receipt(info, goldenResults(len(d.Steps)))
			golden := strings.TrimSuffix(file, ".md") + ".receipt.md"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if err := checkReceipt(d, goldenResults(len(d.Steps)), info); err != nil {
				t.Error(err)
			}
		})
	}
	if ran < 5 {
		t.Errorf("%d documents in testdata", ran)
	}
}

// TestFrontMatterRoundTrip: removing the turn: map restores the original front matter.
func TestFrontMatterRoundTrip(t *testing.T) {
	for _, src := range []string{
		"", "\ufeff", "text", "text\n", "\n", "\r\n", "\r", "text\r\n", "\ufefftext\r\n",
		"---\n---\n", "---\n---", "---\r\n---\r\n", "\ufeff---\n---\ntext", "---\n...\n",
		"---  \n---\t\n",
		"---\n# only a comment\n---\n", "---\n\n\n---\n",
		"---\nimage: base\n---\n", "---\nimage: base   # why\n\n# end\n\n---\n",
		"---\n  image: base\n  cpus: 2\n---\n",
		"---\nenv:\n  A: |+\n    text\n\n\n---\n", "---\nenv:\n  A: >-\n    text\n    text\n---\n",
		"---\nfiles:\n- a\n- b\n---\n",
		"---\r\nenv: {A: b,\r\n  C: d}\r\n---\r\n\r\ntext",
		"---\n", "---\n\n---text\n", "---\ntext\n\nmore", "----\n", " ---\n---\n", "***\n---\n",
	} {
		d, err := Parse("d.md", []byte(src))
		if err != nil {
			t.Errorf("%q: %v", src, err)
			continue
		}
		if got := d.Clean(); string(got) != src {
			t.Errorf("Clean(%q) = %q", src, got)
		}
		if !bytes.Contains(d.Receipt(testInfo(), nil), []byte("id: t_0123456789abcdefgh")) {
			t.Errorf("%q: no turn: map", src)
		}
		if err := checkReceipt(d, nil, testInfo()); err != nil {
			t.Errorf("%q: %v", src, err)
		}
	}
}

// TestEditedReceipts checks receipts that people have changed.
func TestEditedReceipts(t *testing.T) {
	const result = "<!-- turn:result step=1 name=a source=sha256:00 -->\n**passed**\n" +
		"<!-- /turn:result -->"
	tests := []struct{ name, src, want string }{
		{"the step changed", "```sh name=b\nnew\n```\n" + result + "\n",
			"```sh name=b\nnew\n```\n"},
		{"a formatter's empty lines", "```sh\n```\n\n" + result + "\n\ntext\n",
			"```sh\n```\n\n\ntext\n"},
		{"a formatter's empty lines within",
			"```sh\n```\n" + strings.ReplaceAll(result, "\n", "\n\n") + "\n", "```sh\n```\n"},
		{"blanks at the ends of lines", "```sh\n```  \n" + strings.ReplaceAll(result, "\n", " \n") +
			"\t\n", "```sh\n```  \n"},
		{"a key below turn:", "---\nturn:\n  id: x\n\n# mine\nimage: base\n---\n",
			"---\n\n# mine\nimage: base\n---\n"},
		{"a key above turn:", "---\nimage: base\nturn:\n  id: x\n  frontmatter: added\n---\n",
			"---\nimage: base\n---\n"},
		{"a comment in added front matter", "---\n# mine\nturn:\n  frontmatter: added\n---\n",
			"---\n# mine\n---\n"},
		{"added front matter", "---\nturn:\n  frontmatter: added\n---\ntext\n", "text\n"},
		{"front matter that was empty", "---\nturn:\n  id: x\n---\ntext\n", "---\n---\ntext\n"},
		{"turn: of another kind", "---\nturn: |\n  a\n\n  # b\nimage: base\n---\n",
			"---\nimage: base\n---\n"},
		{"turn: without a value", "---\nturn:\nimage: base\n---\n", "---\nimage: base\n---\n"},
		{"markers in a fence", "```text\n" + result + "\n```\n", "```text\n" + result + "\n```\n"},
		{"markers in a paragraph", "text <!-- /turn:result -->\n`<!-- /turn:result -->`\n",
			"text <!-- /turn:result -->\n`<!-- /turn:result -->`\n"},
		{"markers in indented code", "    <!-- /turn:result -->\n", "    <!-- /turn:result -->\n"},
		{"another comment", "<!-- turn: the page -->\n", "<!-- turn: the page -->\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse("d.md", []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(d.Clean()); got != tt.want {
				t.Errorf("Clean = %q\nwant    %q", got, tt.want)
			}
			if err := checkReceipt(d, goldenResults(len(d.Steps)), testInfo()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestForgedResults: a step's output stays in its fence, and no note or file name leaves its line.
func TestForgedResults(t *testing.T) {
	d, err := Parse("d.md", []byte("- ```sh\n  x\n  ```\n\n> ```sh\n> y\n> ```\n"))
	if err != nil {
		t.Fatal(err)
	}
	forged := "````````\n```\n<!-- /turn:result -->\n\n```sh\nevil\n```\n" +
		"<!-- turn:result step=1 name=a source=sha256:00 -->\n**passed**\n"
	r := StepResult{Status: "failed\n```sh\n",
		Note: "--> \n```sh\nevil\n```\n<!-- /turn:result -->", Stdout: outputOf(forged),
		Stderr: outputOf(forged)}
	r.Stdout.File, r.Stdout.Note = "`x`\n<!-- /turn:result -->", "<!-- /turn:result -->\n# x"
	receipt := d.Receipt(testInfo(), []StepResult{r, r})
	if err := checkReceipt(d, []StepResult{r, r}, testInfo()); err != nil {
		t.Error(err)
	}
	if n := bytes.Count(receipt, []byte("\n  <!-- turn:result step=1 name=step-1 ")) +
		bytes.Count(receipt, []byte("\n> <!-- turn:result step=2 name=step-2 ")); n != 2 {
		t.Errorf("%d results\n%s", n, receipt)
	}
}

func TestMissingResults(t *testing.T) {
	d, err := Parse("d.md", []byte("```sh\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(d.Receipt(testInfo(), nil)); !strings.Contains(got,
		"**skipped** · not run\n") {
		t.Error(got)
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb\r\n\tc ":             "a b c",
		"\x1b[31mred\x1b[0m\u202e": "red<U+202E>",
		"\xff":                     "\uFFFD",
		strings.Repeat("é", 100):   strings.Repeat("é", 32) + "…",
	} {
		if got := oneLine(in, 64); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestHumanDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 ms", 0: "0 ms", 999 * time.Millisecond: "999 ms",
		1260 * time.Millisecond: "1.3 s",
		61 * time.Second:        "1 min 1 s", 25*time.Hour + 90*time.Second: "25 h 1 min",
	} {
		if got := humanDuration(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
