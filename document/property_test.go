package document

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yuin/goldmark/ast"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// outputOf returns the Output of a stream that was kept completely.
func outputOf(s string) Output {
	return Output{
		Head:   []byte(s),
		Size:   int64(len(s)),
		Lines:  int64(strings.Count(s, "\n")),
		Digest: turnstone.DigestBytes([]byte(s)),
	}
}

// cutOutputOf returns the Output of a stream of which head and tail bytes were kept.
func cutOutputOf(s string, head, tail int) Output {
	o := outputOf(s)
	if len(s) > head+tail {
		o.Head, o.Tail = []byte(s[:head]), []byte(s[len(s)-tail:])
	}
	return o
}

func testInfo() TurnInfo {
	return TurnInfo{
		ID:        "t_0123456789abcdefgh",
		Started:   time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Duration:  1234 * time.Millisecond,
		Template:  turnstone.DigestBytes([]byte("template")),
		Image:     "base",
		Substrate: "qemu",
		Isolation: "microvm (TCG)",
		Result:    turnstone.ResultPassed,
	}
}

// checkReceipt verifies a receipt's promises for any document that parses.
func checkReceipt(d *Document, results []StepResult, info TurnInfo) error {
	clean := d.Clean()
	receipt := d.Receipt(info, results)
	again, err := Parse("receipt.md", receipt)
	if err != nil {
		return fmt.Errorf("the receipt does not parse: %w\n%s", err, receipt)
	}
	if got := again.Clean(); !bytes.Equal(got, clean) {
		return fmt.Errorf("Clean(Receipt) = %q\nClean = %q\nreceipt %q", got, clean, receipt)
	}
	if err := sameSteps(d, again); err != nil {
		return fmt.Errorf("%w\n%s", err, receipt)
	}
	if got, want := outline(again), outline(d); got != want {
		return fmt.Errorf("the blocks of the receipt are\n%s\nnot\n%s\n%s", got, want, receipt)
	}
	if got := again.Receipt(info, results); !bytes.Equal(got, receipt) {
		return fmt.Errorf("the same results again give %q\nnot %q", got, receipt)
	}
	cleaned, err := Parse("clean.md", clean)
	if err != nil {
		return fmt.Errorf("the cleaned document does not parse: %w\n%q", err, clean)
	}
	return sameSteps(d, cleaned)
}

// outline returns the block structure of d without its results: the nesting of block kinds, and
// which lists are tight.
func outline(d *Document) string {
	p := &docParser{doc: d, src: d.Source, base: d.layout.front.end}
	p.blocks = parseBlocks(p.src[p.base:])
	var b strings.Builder
	var walk func(n ast.Node)
	walk = func(n ast.Node) {
		for c := n.FirstChild(); c != nil; c = c.NextSibling() {
			if kind, _ := p.marker(c); kind == beginMark {
				c, _, _ = p.findEnd(c)
				continue
			}
			if c.Type() != ast.TypeBlock {
				continue
			}
			b.WriteString("(" + c.Kind().String())
			if l, ok := c.(*ast.List); ok {
				fmt.Fprint(&b, l.IsTight, l.Start)
			}
			walk(c)
			b.WriteString(")")
		}
	}
	walk(p.blocks.root)
	return b.String()
}

func sameSteps(a, b *Document) error {
	if len(a.Steps) != len(b.Steps) {
		return fmt.Errorf("%d steps, then %d", len(a.Steps), len(b.Steps))
	}
	for i := range a.Steps {
		x, y := *a.Steps[i], *b.Steps[i]
		x.Line, y.Line = 0, 0
		if x != y {
			return fmt.Errorf("step %+v, then %+v", x, y)
		}
	}
	front := func(f FrontMatter) string {
		return fmt.Sprint(f.Image, f.Env, f.Files, f.Cwd, f.Timeout, f.Deterministic, f.Tier, f.Clock)
	}
	x, y := front(a.Front), front(b.Front)
	if x != y {
		return fmt.Errorf("front matter %s, then %s", x, y)
	}
	return nil
}

// hostile are pieces of output and of notes that try to escape.
var hostile = []string{
	"hello\n", "", "\n", "no newline", "```\n", "````\n", "```bash\nrm -rf /\n```\n", "~~~\n",
	"<!-- /turn:result -->\n", "<!-- turn:result step=1 name=step-1 source=sha256:00 -->\n", "-->",
	"---\n", "...\n",
	"\r\n", "a\rb\n", "\x00", "\xff\xfe", "\x1b[31mred\x1b[0m\n", "\x1b]0;title\x07",
	"\x1b]0;never ends", "\x1b[", "\u202egnp.exe\n",
	"é", "\u2028", "# heading\n", "> quote\n", "- item\n", "\ttab\n", "   spaces\n", "|a|b|\n",
	"\\", "`", "``", strings.Repeat("`", 30) + "\n",
	"[x]: /url\n", "<div>\n", "===\n", "\b\b", "\u0085", "turn:\n",
}

func drawOutput(t *rapid.T, label string) Output {
	s := strings.Join(rapid.SliceOfN(rapid.SampledFrom(hostile), 0, 8).Draw(t, label), "")
	if rapid.IntRange(0, 9).Draw(t, label+" repeat") == 0 {
		s = strings.Repeat(s, 1000)
	}
	head := rapid.IntRange(0, 100).Draw(t, label+" head")
	o := cutOutputOf(s, head, rapid.IntRange(0, 100).Draw(t, label+" tail"))
	if rapid.Bool().Draw(t, label+" file") {
		o.File = rapid.SampledFrom(hostile).Draw(t, label+" file name")
	}
	o.Note = rapid.SampledFrom(hostile).Draw(t, label+" note")
	return o
}

func drawResults(t *rapid.T, n int) []StepResult {
	results := make([]StepResult, n)
	for i := range results {
		code := rapid.IntRange(0, 255).Draw(t, "exit")
		results[i] = StepResult{
			Status: rapid.SampledFrom([]turnstone.Status{turnstone.StepPassed,
				turnstone.StepFailed, turnstone.StepTimeout, turnstone.StepSkipped,
				turnstone.StepError}).Draw(t, "status"),
			ExitCode: &code,
			Duration: time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "duration")),
			Note:     rapid.SampledFrom(hostile).Draw(t, "note"),
			Stdout:   drawOutput(t, "stdout"),
			Stderr:   drawOutput(t, "stderr"),
		}
	}
	return results
}

// blockLines are the lines that documents are drawn from, without line endings.
var blockLines = []string{
	"", "text", "```bash", "```sh name=x", "```", "````", "````bash skip", "~~~sh", "~~~",
	"```python", "    indented", "\tindented",
	"echo hi", "# heading", "***", "---", "===", "<!-- comment", "-->", "<!-- one line -->",
	"<div>", "</div>", "<pre>", "</pre>",
	"[x]: /url", "[y]:", "\u00e9\xff", "- ", "1.", "* a", "\x0c", "| a | b |", "  text", " ```",
	"   ```sh", "echo \tx",
	"image: base", "turn: {}", "&amp;",
}

var containers = []string{"", "", "> ", ">", "- ", "  ", "1. ", "   ", "\t", ">\t", "-\t", "10) ",
	"    ", " > ", "* "}

// drawNoise draws lines in containers that continue for a while: mostly text that has a meaning
// only by accident.
func drawNoise(t *rapid.T) []string {
	var lines []string
	prefix := ""
	for range rapid.IntRange(0, 25).Draw(t, "lines") {
		switch rapid.IntRange(0, 5).Draw(t, "container") {
		case 0:
			prefix = rapid.SampledFrom(containers).Draw(t, "first") +
				rapid.SampledFrom(containers).Draw(t, "second")
		case 1: // a container continues with blanks instead of its marker
			prefix = strings.Map(func(r rune) rune {
				if strings.ContainsRune("-*10.)", r) {
					return ' '
				}
				return r
			}, prefix)
		}
		lines = append(lines, prefix+rapid.SampledFrom(blockLines).Draw(t, "line"))
	}
	return lines
}

// drawBlocks draws whole blocks, nested up to a depth: steps, other code, prose, comments, lists
// and quotes.
func drawBlocks(t *rapid.T, depth int) []string {
	var lines []string
	for range rapid.IntRange(1, 4).Draw(t, "blocks") {
		switch kind := rapid.IntRange(0, 7).Draw(t, "block"); {
		case kind <= 2:
			lines = append(lines, drawFence(t)...)
		case kind == 3:
			lines = append(lines,
				rapid.SampledFrom([]string{"text", "# heading", "<!-- comment -->", "***",
					"    code", "[x]: /url", "\u00e9\xff"}).Draw(t, "prose"))
		case kind <= 5 && depth > 0:
			mark := rapid.SampledFrom([]string{"- ", "* ", "1. ", "10)  ", "+   "}).Draw(t, "mark")
			for i, line := range drawBlocks(t, depth-1) {
				switch {
				case i == 0:
					line = mark + line
				case line != "" || rapid.Bool().Draw(t, "blanks"):
					line = strings.Repeat(" ", len(mark)) + line
				}
				lines = append(lines, line)
			}
		case depth > 0:
			for _, line := range drawBlocks(t, depth-1) {
				mark := rapid.SampledFrom([]string{"> ", "> ", ">", " > "}).Draw(t, "quote")
				lines = append(lines, mark+line)
			}
		}
		if rapid.Bool().Draw(t, "empty line") {
			lines = append(lines, "")
		}
	}
	return lines
}

func drawFence(t *rapid.T) []string {
	fence := strings.Repeat(rapid.SampledFrom([]string{"`", "~"}).Draw(t, "fence"),
		rapid.IntRange(3, 5).Draw(t, "length"))
	indent := strings.Repeat(" ", rapid.IntRange(0, 3).Draw(t, "indent"))
	info := rapid.SampledFrom([]string{"bash", "bash", "sh skip", " bash  {timeout=5s}", "python",
		""}).Draw(t, "info")
	lines := []string{indent + fence + info}
	for range rapid.IntRange(0, 3).Draw(t, "script") {
		lines = append(lines,
			rapid.SampledFrom([]string{"", "echo hi", "\tx", "  y", "```", "~~~", "> z", "- w",
				"<!-- /turn:result -->", " "}).Draw(t, "command"))
	}
	return append(lines, rapid.SampledFrom([]string{"", " ", "   "}).Draw(t,
		"indent of the end")+fence)
}

func drawDocument(t *rapid.T) []byte {
	eols := rapid.SampledFrom([][]string{{"\n"}, {"\r\n"}, {"\r"}, {"\n", "\r\n", "\r"}}).Draw(t,
		"eols")
	var b strings.Builder
	b.WriteString(rapid.SampledFrom([]string{"", "", "", "\ufeff", "---\n---\n",
		"---\r\nimage: base # why\r\n---\r\n", "---\n  cpus: 2\n  env: {A: b}\n...\n",
		"---\n"}).Draw(t, "front"))
	var lines []string
	if rapid.IntRange(0, 3).Draw(t, "noise") == 0 {
		lines = drawNoise(t)
	} else {
		lines = drawBlocks(t, 3)
	}
	for _, line := range lines {
		b.WriteString(line + rapid.SampledFrom(eols).Draw(t, "eol"))
	}
	s := b.String()
	if rapid.Bool().Draw(t, "no final newline") {
		s = strings.TrimRight(s, "\r\n")
	}
	return []byte(s)
}

// TestReceiptKeepsTheAuthorsBytes is the format's promise: for any document and any output of its
// steps, a run changes only results.
func TestReceiptKeepsTheAuthorsBytes(t *testing.T) {
	drawn, withSteps, nested := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		src := drawDocument(t)
		drawn++
		d, err := Parse("doc.md", src)
		if err != nil {
			return
		}
		if !bytes.Equal(d.Clean(), src) && !bytes.Contains(src, []byte("turn:")) {
			t.Fatalf("Clean = %q of %q", d.Clean(), src)
		}
		if len(d.Steps) > 0 {
			withSteps++
		}
		for _, l := range d.layout.steps {
			if l.prefix != "" {
				nested++
			}
		}
		info := testInfo()
		info.Error = rapid.SampledFrom(hostile).Draw(t, "error")
		if err := checkReceipt(d, drawResults(t, len(d.Steps)), info); err != nil {
			t.Fatalf("%q: %v", src, err)
		}
	})
	t.Logf("%d documents, %d valid with steps, %d nested steps", drawn, withSteps, nested)
	if withSteps < drawn/10 || nested < drawn/20 {
		t.Error("too few to test anything")
	}
}
