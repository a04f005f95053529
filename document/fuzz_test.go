package document

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

func addSeeds(f *testing.F, add func(src []byte)) {
	files, err := filepath.Glob("testdata/*.md")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		add(src)
	}
	for _, src := range []string{
		"", "---\n---\n", "\ufeff---\r\nimage: x\r\n---\r\n```sh\r\n```", "- ```sh\n\t\tx\n  ```\n",
		">\t```sh\n>\tx\n> ```", "> - 1. ```sh\n>      x\n>      ```\n",
		"```sh\r```\r", "```sh {name=a}\n```\n<!-- turn:result step=1 name=a source=b -->\n" +
			"<!-- /turn:result -->\n",
		"---\nturn:\n  frontmatter: added\n---\n", "-\n\n  ```sh\n  ```\n", "<!--\n```sh\n```",
		"[a]: b\n===\n",
	} {
		add([]byte(src))
	}
}

func FuzzParse(f *testing.F) {
	addSeeds(f, func(src []byte) { f.Add(src) })
	f.Fuzz(func(t *testing.T, src []byte) {
		d, err := Parse("fuzz.md", src)
		if err != nil {
			if es, ok := err.(SyntaxErrors); !ok || len(es) == 0 || es[0].Line < 1 ||
				es[0].Column < 1 || strings.Contains(es[0].Msg, "\n") {
				t.Fatalf("%#v", err)
			}
			return
		}
		for _, s := range d.Steps {
			if strings.ContainsAny(s.Script, "\x00") || s.Line < 1 || !isShell(s.Language) ||
				nameFault(s.Name) != "" {
				t.Errorf("%+v", s)
			}
		}
		if clean, err := Parse("clean.md", d.Clean()); err != nil {
			t.Errorf("Clean does not parse: %v\n%q", err, d.Clean())
		} else if err := sameSteps(d, clean); err != nil {
			t.Error(err)
		}
	})
}

func FuzzReceiptRoundTrip(f *testing.F) {
	addSeeds(f, func(src []byte) {
		for _, s := range []string{"hello\n", "```\n<!-- /turn:result -->\n", "\x00",
			"a\rb\x1b[1m\n\n> x\n"} {
			f.Add(src, []byte(s), "note\n-->")
		}
	})
	f.Fuzz(func(t *testing.T, src, out []byte, note string) {
		d, err := Parse("fuzz.md", src)
		if err != nil {
			return
		}
		results := make([]StepResult, len(d.Steps))
		for i := range results {
			results[i] = StepResult{Status: turnstone.StepFailed, Note: note,
				Stdout: outputOf(string(out)), Stderr: cutOutputOf(string(out), 5, 5)}
			results[i].Stdout.File = note
		}
		info := testInfo()
		info.Error = note
		if err := checkReceipt(d, results, info); err != nil {
			t.Error(err)
		}
	})
}

// benchDocument returns a document with n steps of 20 lines, separated by prose.
func benchDocument(n int) []byte {
	var b strings.Builder
	b.WriteString("---\nimage: python\n---\n")
	for range n {
		b.WriteString("## Heading\n\nSome *prose* of a line or two, with `code` and a " +
			"[link](https://example.org).\n\n- a list\n- of items\n\n```bash\n")
		b.WriteString(strings.Repeat("printf '%s\\n' \"$PATH\" | tr : '\\n' | sort\n", 20))
		b.WriteString("```\n\n")
	}
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B) {
	src := benchDocument(100)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("bench.md", src); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReceipt(b *testing.B) {
	d, err := Parse("bench.md", benchDocument(100))
	if err != nil {
		b.Fatal(err)
	}
	results := make([]StepResult, len(d.Steps))
	for i := range results {
		results[i] = StepResult{Status: turnstone.StepPassed,
			Stdout: outputOf(strings.Repeat("\x1b[32mok\x1b[0m some line of output\n", 200))}
	}
	b.SetBytes(int64(len(d.Receipt(testInfo(), results))))
	b.ReportAllocs()
	for b.Loop() {
		d.Receipt(testInfo(), results)
	}
}
