package document

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// Display limits of a stream. A longer stream is complete in its file.
const (
	maxShownBytes = 16 << 10
	maxShownLines = 200
	maxLineBytes  = 4 << 10
)

// A shown is an output in its displayed form.
type shown struct {
	text   string
	binary bool // text describes the output instead of showing it
	cut    bool // a part is missing
}

// Text returns the displayed form of o. It is valid UTF-8 with "\n" for line endings:
//
//   - Terminal escape sequences are removed. If carriage returns overwrite a line,
//     the last text remains; a backspace removes a character.
//   - Other control characters, and characters that are invisible or change the
//     direction of writing, are written as <U+202E>.
//   - Output that is not UTF-8, or contains NUL bytes, is shown as its size and digest.
//   - At most 16 KiB or 200 lines are shown: the first and the last, with a line
//     between them that counts what was cut; a line of more than 4 KiB is cut in the same way.
//
// Truncated reports that something other than control characters and overwritten text is missing.
// Text is safe for concurrent use and never fails: o may contain any bytes.
func (o Output) Text() (text string, truncated bool) {
	s := o.show()
	return s.text, s.cut || s.binary
}

func (o Output) show() shown {
	if o.Size <= 0 && len(o.Head) == 0 {
		return shown{}
	}
	head, tail, gap := o.parts()
	if isBinary(head) || isBinary(tail) {
		return shown{text: o.binaryNote(), binary: true}
	}
	ends := countLF(head)
	if gap > 0 {
		ends = max(o.Lines, ends+countLF(tail))
	}
	head, tail, gap = withoutMiddle(head, tail, gap)
	lines := appendLines(nil, head)
	cutFirst := -1 // index of the line that replaces the missing part
	if gap > 0 {
		cutFirst = len(lines)
		lines = append(lines, shownLine{raw: gap, ends: ends - countLF(head) - countLF(tail)})
		fromTail := appendLines(nil, tail)
		if len(fromTail) > 1 {
			// The rest of a line can begin inside an escape sequence.
			lines[cutFirst].raw += fromTail[0].raw
			lines[cutFirst].ends += fromTail[0].ends
			fromTail = fromTail[1:]
		}
		lines = append(lines, fromTail...)
	}
	return cutMiddle(lines, cutFirst)
}

// parts returns the kept bytes and the number of missing bytes between them. An incomplete
// character counts as missing.
func (o Output) parts() (head, tail []byte, gap int64) {
	kept := int64(len(o.Head)) + int64(len(o.Tail))
	if o.Size > kept {
		head, tail = trimLastPart(o.Head), trimFirstPart(o.Tail)
		return head, tail, o.Size - int64(len(head)) - int64(len(tail))
	}
	if len(o.Tail) == 0 {
		return o.Head, nil, 0
	}
	return slices.Concat(o.Head, o.Tail), nil, 0
}

// withoutMiddle drops lines that are too far from both ends to be shown, to save the time for their
// processing. It keeps one line more on each side than can be shown.
func withoutMiddle(head, tail []byte, gap int64) (newHead, newTail []byte, newGap int64) {
	const keep = maxShownLines/2 + 1
	size := int64(len(head)) + int64(len(tail)) + gap
	if gap == 0 {
		if countLF(head) <= 2*keep {
			return head, nil, 0
		}
		tail = head
	}
	at := 0
	for range keep {
		n := bytes.IndexByte(head[at:], '\n')
		if n < 0 {
			at = len(head)
			break
		}
		at += n + 1
	}
	head = head[:at]
	from := len(tail)
	for range keep + 1 { // the last line feed can be the last byte
		from = bytes.LastIndexByte(tail[:from], '\n')
		if from < 0 {
			break
		}
	}
	tail = tail[from+1:]
	return head, tail, size - int64(len(head)) - int64(len(tail))
}

func (o Output) binaryNote() string {
	size := max(o.Size, int64(len(o.Head)+len(o.Tail)))
	return fmt.Sprintf("[binary output: %s, %s]", exactSize(size), o.digest())
}

// digest returns the digest, computed if the output has none.
func (o Output) digest() turnstone.Digest {
	if o.Digest == "" && int64(len(o.Head)) == o.Size {
		return turnstone.DigestBytes(o.Head)
	}
	return o.Digest
}

// isBinary reports whether b is not text.
func isBinary(b []byte) bool { return bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) }

// trimFirstPart removes an incomplete character at the beginning of b.
func trimFirstPart(b []byte) []byte {
	for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	return b
}

// trimLastPart removes an incomplete character at the end of b.
func trimLastPart(b []byte) []byte {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// A shownLine is a line of output in its original and displayed form.
type shownLine struct {
	text string // with its "\n", if it has one
	raw  int64  // bytes of the output that the line represents
	ends int64  // line feeds of the output that the line represents
	cut  bool   // text is incomplete
}

func appendLines(dst []shownLine, b []byte) []shownLine {
	for line := range bytes.Lines(b) {
		text, ended := bytes.CutSuffix(line, []byte("\n"))
		l := shownLine{raw: int64(len(line))}
		l.text, l.cut = shortenLine(showLine(string(text)))
		if ended {
			l.text += "\n"
			l.ends = 1
		}
		dst = append(dst, l)
	}
	return dst
}

// showLine makes a line readable. It processes each line separately, so that a sequence without an
// end cannot hide the lines below.
func showLine(line string) string {
	if isPlain(line) {
		return line
	}
	// The library sometimes takes bytes of a character for the end of a sequence; the rest of such
	// a character is not valid UTF-8.
	line = strings.ToValidUTF8(ansi.Strip(line), "")
	last := ""
	for part := range strings.SplitSeq(line, "\r") {
		if part != "" {
			last = part
		}
	}
	var b strings.Builder
	for _, r := range backspaced(last) {
		if isHidden(r) {
			fmt.Fprintf(&b, "<U+%04X>", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isPlain(s string) bool {
	for i := range len(s) {
		if (s[i] < ' ' && s[i] != '\t') || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// backspaced applies backspaces as a terminal shows them when text follows.
func backspaced(s string) string {
	if !strings.Contains(s, "\b") {
		return s
	}
	out := make([]rune, 0, len(s))
	for _, r := range s {
		switch {
		case r != '\b':
			out = append(out, r)
		case len(out) > 0:
			out = out[:len(out)-1]
		}
	}
	return string(out)
}

// isHidden reports whether r is displayed as its number: control characters, format characters
// (which change the direction of writing or have no width: "Trojan Source", CVE-2021-42574),
// separators that look like line endings, and characters that Unicode defines as invisible.
func isHidden(r rune) bool {
	switch {
	case r == '\t':
		return false
	case r < 0x7f:
		return r < ' '
	case r == '\uFE0E' || r == '\uFE0F': // text and emoji style
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp,
		unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// shortenLine cuts a long line in the middle.
func shortenLine(s string) (string, bool) {
	if len(s) <= maxLineBytes {
		return s, false
	}
	head, tail := maxLineBytes*3/4, len(s)-maxLineBytes/4
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return fmt.Sprintf("%s […%d bytes cut…] %s", s[:head], tail-head, s[tail:]), true
}

// cutMiddle joins lines and omits the middle if there are too many. The line at index gap, if not
// negative, represents bytes that were not kept.
func cutMiddle(lines []shownLine, gap int) shown {
	if gap < 0 && fits(lines) {
		cut := slices.ContainsFunc(lines, func(l shownLine) bool { return l.cut })
		return shown{text: joinLines(lines), cut: cut}
	}
	end := len(lines)
	if gap >= 0 {
		end = gap
	}
	first := 0
	for size := 0; first < end && first < maxShownLines/2; first++ {
		if size += len(lines[first].text); size > maxShownBytes/2 {
			break
		}
	}
	last := len(lines)
	for size := 0; last-1 > max(first-1, gap) && len(lines)-last < maxShownLines/2; last-- {
		if size += len(lines[last-1].text); size > maxShownBytes/2 {
			break
		}
	}
	var raw, ends int64
	for _, l := range lines[first:last] {
		raw, ends = raw+l.raw, ends+l.ends
	}
	note := fmt.Sprintf("[… %s, %s cut …]\n", plural(raw, "byte"), plural(ends, "line"))
	before := joinLines(lines[:first])
	if before != "" && !strings.HasSuffix(before, "\n") {
		before += "\n"
	}
	return shown{text: before + note + joinLines(lines[last:]), cut: true}
}

func fits(lines []shownLine) bool {
	size := 0
	for _, l := range lines {
		size += len(l.text)
	}
	return size <= maxShownBytes && len(lines) <= maxShownLines
}

func joinLines(lines []shownLine) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.text)
	}
	return b.String()
}

func countLF(b []byte) int64 { return int64(bytes.Count(b, []byte("\n"))) }

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// exactSize returns a readable size with the exact number of bytes.
func exactSize(n int64) string {
	if n < 1<<10 {
		return plural(n, "byte")
	}
	return fmt.Sprintf("%s (%d bytes)", turnstone.Bytes(n).Human(), n)
}

// oneLine returns s as a line of at most limit bytes without hidden characters.
func oneLine(s string, limit int) string {
	if len(s) > 4*limit {
		s = s[:4*limit]
	}
	s = brief.Line(strings.ToValidUTF8(s, "\uFFFD"))
	return brief.Clip(showLine(s), limit)
}
