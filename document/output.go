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
)

// What is shown of one stream. The whole of a longer one is in its file.
const (
	maxShownBytes = 16 << 10
	maxShownLines = 200
	maxLineBytes  = 4 << 10
)

// A shown is an output as the receipt shows it.
type shown struct {
	text   string
	binary bool // text names the output and does not hold it
	cut    bool // a part is left out
}

// Text returns what is shown of o. It is valid UTF-8 with "\n" for line endings:
//
//   - Terminal escape sequences are removed. Of a line that was overwritten with
//     carriage returns, the last writing stays; a backspace takes one character back.
//   - Other control characters, and characters that are invisible or turn the
//     direction of writing, are written as <U+202E>.
//   - Output that is not UTF-8, or holds NUL bytes, is named by size and digest.
//   - At most 16 KiB or 200 lines are shown: the first and the last, with a line
//     between that counts what was cut; a line of more than 4 KiB is cut the same way.
//
// Truncated says that something other than control characters and overwritten
// text is missing. Text is safe for concurrent use, and never fails: o may hold
// what an attacker likes.
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
	cutFirst := -1 // the line that stands for what is not here
	if gap > 0 {
		cutFirst = len(lines)
		lines = append(lines, shownLine{raw: gap, ends: ends - countLF(head) - countLF(tail)})
		fromTail := appendLines(nil, tail)
		if len(fromTail) > 1 {
			// What is left of a line can begin inside an escape sequence.
			lines[cutFirst].raw += fromTail[0].raw
			lines[cutFirst].ends += fromTail[0].ends
			fromTail = fromTail[1:]
		}
		lines = append(lines, fromTail...)
	}
	return cutMiddle(lines, cutFirst)
}

// parts returns the kept bytes, and how many are missing between them. A
// character of which a part is missing counts as missing.
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

// withoutMiddle drops lines that are too far from both ends to be shown, before
// they cost time: one more on each side stays than can be shown.
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

// digest returns the digest, also of an output that was made without one.
func (o Output) digest() turnstone.Digest {
	if o.Digest == "" && int64(len(o.Head)) == o.Size {
		return turnstone.DigestBytes(o.Head)
	}
	return o.Digest
}

// isBinary reports whether b is anything but text.
func isBinary(b []byte) bool { return bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) }

// trimFirstPart cuts off the rest of a character at the beginning of b.
func trimFirstPart(b []byte) []byte {
	for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	return b
}

// trimLastPart cuts off the beginning of a character at the end of b.
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

// A shownLine is one line of output, as it was and as it is shown.
type shownLine struct {
	text string // with its "\n", if it has one
	raw  int64  // bytes of the output that it stands for
	ends int64  // line feeds of the output that it stands for
	cut  bool   // text is not the whole line
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

// showLine makes one line readable. Each line is read by itself, so that a
// sequence without an end cannot hide the lines below it.
func showLine(line string) string {
	if isPlain(line) {
		return line
	}
	// The library takes bytes of a character for the end of a sequence here and
	// there; what is left of such a character is not text.
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

// isHidden reports whether r is better shown by its number: control characters,
// format characters (they turn the direction of writing, or have no width:
// "Trojan Source", CVE-2021-42574), separators that look like line endings, and
// what Unicode says should be drawn as nothing.
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

// cutMiddle joins lines, without those in the middle that are too many. The line
// at index gap, if it is not negative, stands for bytes that nobody kept.
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

// exactSize returns a size for people, with the count of bytes.
func exactSize(n int64) string {
	if n < 1<<10 {
		return plural(n, "byte")
	}
	return fmt.Sprintf("%s (%d bytes)", turnstone.Bytes(n).Human(), n)
}

// oneLine makes s a line of at most limit bytes without hidden characters.
func oneLine(s string, limit int) string {
	if len(s) > 4*limit {
		s = s[:4*limit]
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	return shorten(showLine(s), limit)
}
