package document

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// checkPositions verifies the position of every byte of every script of d.
func checkPositions(d *Document) (moved int, err error) {
	for _, s := range d.Steps {
		for i := 0; i <= len(s.Script); i++ {
			p := d.Position(s, i)
			if p.Offset < 0 || p.Offset > len(d.Source) {
				return moved, fmt.Errorf("step %d, byte %d of %q: offset %d", s.Index, i,
					s.Script, p.Offset)
			}
			if want := 1 + countEOLs(d.Source[:p.Offset]); p.Line != want {
				return moved, fmt.Errorf("step %d, byte %d of %q: line %d, want %d", s.Index, i,
					s.Script, p.Line, want)
			}
			if want := 1 + p.Offset - lineStart(d.Source, p.Offset); p.Column != want {
				return moved, fmt.Errorf("step %d, byte %d of %q: column %d, want %d", s.Index, i,
					s.Script, p.Column, want)
			}
			if i == len(s.Script) {
				continue
			}
			if p.Column != 1+i-strings.LastIndexByte(s.Script[:i], '\n')-1 {
				moved++
			}
			got, want := d.Source[p.Offset], s.Script[i]
			normalised := want == '\n' && got == '\r' || want == ' ' && got == '\t'
			if got != want && !normalised {
				return moved, fmt.Errorf("step %d, byte %d of %q: there is %q at offset %d",
					s.Index, i, s.Script, got, p.Offset)
			}
		}
	}
	return moved, nil
}

func TestPosition(t *testing.T) {
	tests := []struct {
		name, src string
		step      int
		of        string // the script's text whose beginning is searched
		line, col int
	}{
		{"plain", "# t\n\n```bash\na\nbc d\n```\n", 1, "d", 5, 4},
		{"after front matter", "---\nimage: base\n---\n```sh\na\nb\n```\n", 1, "b", 6, 1},
		{"in a quote", "> ```bash\n> a\n>\n> b c\n> ```\n", 1, "c", 4, 5},
		{"in a list", "- x\n\n  ```bash\n  a\n\n    b\n  ```\n", 1, "b", 6, 5},
		{"an indented fence", "  ```bash\n  a\n b\n  ```\n", 1, "b", 3, 2},
		{"CRLF", "x\r\n```bash\r\na\r\nbc\r\n```\r\n", 1, "c", 4, 2},
		{"lone CR", "```bash\ra\rbc\r```\r", 1, "c", 3, 2},
		{"the second step", "```bash\na\n```\n\n1. ```sh\n   b\n   ```\n", 2, "b", 6, 4},
		{"after a tab", ">\t```sh\n>\tx\n>\t```\n", 1, "x", 2, 3},
		{"after many lines", "```sh\n" + strings.Repeat("\n", 200) + "x\n```\n", 1, "x", 202, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse("a.md", []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			s := d.Steps[tt.step-1]
			p := d.Position(s, strings.Index(s.Script, tt.of))
			if p.Line != tt.line || p.Column != tt.col {
				t.Errorf("%d:%d, want %d:%d, in %q", p.Line, p.Column, tt.line, tt.col, s.Script)
			}
			if _, err := checkPositions(d); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPositionAtTheEnds(t *testing.T) {
	d, err := Parse("a.md", []byte("x\r\n```bash\r\nab\r\n```\r\n```sh\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	if p := d.Position(d.Steps[0], -5); p != (Position{12, 3, 1}) {
		t.Errorf("before the script: %+v", p)
	}
	if p := d.Position(d.Steps[0], 1000); p != (Position{16, 4, 1}) {
		t.Errorf("after the script: %+v", p)
	}
	if p := d.Position(d.Steps[1], 0); p.Line != 6 || p.Column != 1 {
		t.Errorf("an empty script: %+v", p)
	}
	if p := d.Position(&Step{Index: 1}, 0); p != (Position{}) {
		t.Errorf("a step of another document: %+v", p)
	}
}

// TestPositionOfEveryByte draws documents with steps in lists, quotes and tabs.
func TestPositionOfEveryByte(t *testing.T) {
	steps, moved := 0, 0
	// A short run draws a fifth of the documents; it repeats until there are enough steps.
	for round := 0; round == 0 || round < 20 && (steps < 50 || moved < 100); round++ {
		rapid.Check(t, func(t *rapid.T) {
			src := drawDocument(t)
			d, err := Parse("doc.md", src)
			if err != nil {
				return
			}
			n, err := checkPositions(d)
			if err != nil {
				t.Fatalf("%q: %v", src, err)
			}
			steps, moved = steps+len(d.Steps), moved+n
		})
	}
	t.Logf("%d steps, %d bytes that containers moved", steps, moved)
	if steps < 50 || moved < 100 {
		t.Error("too few to test anything")
	}
}

func FuzzPosition(f *testing.F) {
	addSeeds(f, func(src []byte) { f.Add(src) })
	f.Add([]byte("- ```sh\n\tx\n\t\ty\n  ```\n> - ```sh\r\n>   a\r\n>\tb\r\n>   ```"))
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 4096 {
			return // every byte is checked, in time that grows with the document
		}
		d, err := Parse("fuzz.md", src)
		if err != nil {
			return
		}
		if _, err := checkPositions(d); err != nil {
			t.Error(err)
		}
	})
}
