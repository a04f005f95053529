package syntax

import (
	"bytes"
	"sort"

	sh "mvdan.cc/sh/v3/syntax"
)

// A source is a text that a shell parser reads: the script, a part of it, or code inside it.
type source struct {
	data  []byte
	base  int   // position of data in the script, if outer is nil
	outer *code // the code that data belongs to, for code inside code
	depth int   // depth of code inside code; 0 for the script
}

// place returns the position in the script of an offset of the source.
func (s *source) place(at int) int {
	if s.outer == nil {
		return s.base + at
	}
	return s.outer.place(at)
}

// placeEnd returns the position of an end: after the previous byte, because a backslash may precede
// the next byte.
func (s *source) placeEnd(start, end int) int {
	if end <= start {
		return s.place(start)
	}
	return s.place(end-1) + 1
}

// code is a program's code in a word or its standard input.
type code struct {
	in         *source
	start, end int       // in the source, without the enclosing quotes
	data       []byte    // the program's input; expansions are unexpanded
	from       []segment // origin of data, by rising at
	exact      bool      // it contains nothing that the shell expands
	verbatim   bool      // data is the bytes from start to end
	limit      int       // if not 0: upper bound for the ends of its parts in the source
}

// A segment means that the bytes of data from at on are in the source from src on.
type segment struct{ at, src int }

// place returns the position of a code byte in the script.
func (c *code) place(at int) int {
	if at >= len(c.data) {
		return c.in.place(c.end)
	}
	i := sort.Search(len(c.from), func(i int) bool { return c.from[i].at > at }) - 1
	if i < 0 {
		return c.in.place(c.start)
	}
	return c.in.place(c.from[i].src + at - c.from[i].at)
}

func (c *code) placeEnd(start, end int) int {
	if end <= start {
		return c.place(start)
	}
	return c.place(end-1) + 1
}

// slice returns the code without its first n bytes, and without the quotes around the rest:
// --eval='…'.
func (c *code) slice(n int) *code {
	out := &code{in: c.in, start: c.end, end: c.end, data: c.data[n:], exact: c.exact}
	if len(out.data) == 0 {
		return out
	}
	i := sort.Search(len(c.from), func(i int) bool { return c.from[i].at > n }) - 1
	out.start = c.from[i].src + n - c.from[i].at
	out.from = append(out.from, segment{0, out.start})
	for _, s := range c.from[i+1:] {
		out.from = append(out.from, segment{s.at - n, s.src})
	}
	last := out.from[len(out.from)-1]
	out.end = max(out.start, last.src+len(out.data)-last.at)
	out.verbatim = out.exact && bytes.Equal(c.in.data[out.start:out.end], out.data)
	return out
}

func (c *code) add(src int, data []byte) {
	if len(data) == 0 {
		return
	}
	if n := len(c.from); n == 0 || c.from[n-1].src-c.from[n-1].at != src-len(c.data) {
		c.from = append(c.from, segment{len(c.data), src})
	}
	c.data = append(c.data, data...)
}

// quotes define which backslashes the shell removes (bash(1), QUOTING).
type quotes string

const (
	bare   quotes = "" // all
	double quotes = "$`\"\\\n"
	body   quotes = "$`\\\n" // of a here-document with an unquoted delimiter
)

func quotesOf(quoted bool) quotes {
	if quoted {
		return double
	}
	return bare
}

// escape reports whether the shell removes the backslash at the start of raw, and the number of
// bytes that it then consumes: a backslash and a newline are removed completely.
func (q quotes) escape(raw []byte) (removed bool, kept int) {
	if len(raw) < 2 || raw[0] != '\\' || q != bare && !bytes.ContainsRune([]byte(q), rune(raw[1])) {
		return false, 1
	}
	if raw[1] == '\n' {
		return true, 0
	}
	return true, 1
}

// unescape appends raw without its backslashes to dst.
func unescape(dst, raw []byte, q quotes) (out []byte, changed bool) {
	for i := 0; i < len(raw); i++ {
		removed, kept := q.escape(raw[i:])
		if removed {
			changed = true
			i++
			if kept == 0 {
				continue
			}
		}
		dst = append(dst, raw[i])
	}
	return dst, changed
}

// addLiteral appends source bytes without the backslashes that the shell removes.
func (c *code) addLiteral(start, end int, q quotes) {
	raw := c.in.data[start:end]
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			n = len(raw)
		}
		c.add(start, raw[:n])
		raw, start = raw[n:], start+n
		if len(raw) == 0 {
			return
		}
		removed, kept := q.escape(raw)
		if removed {
			raw, start = raw[1:], start+1
		}
		if kept == 0 {
			raw, start = raw[1:], start+1
			continue
		}
		// The byte after a removed backslash, or a backslash that stays.
		c.add(start, raw[:1])
		raw, start = raw[1:], start+1
	}
}

// wordCode returns a word's value for a program.
func (w *walker) wordCode(word *sh.Word) *code {
	c := &code{in: w.src, exact: true}
	c.start, c.end = w.bounds(word)
	w.addParts(c, word.Parts, bare)
	// Quotes around the whole word are not part of the code.
	if len(word.Parts) == 1 {
		switch x := word.Parts[0].(type) {
		case *sh.SglQuoted:
			c.start, c.end = w.clamp(int(x.Left.Offset())+1, int(x.Right.Offset()))
			if x.Dollar {
				c.start = min(c.start+1, c.end)
			}
		case *sh.DblQuoted:
			c.start, c.end = w.clamp(int(x.Left.Offset())+1, int(x.Right.Offset()))
			if x.Dollar {
				c.start = min(c.start+1, c.end)
			}
		}
	}
	return w.finish(c)
}

// finish sets whether the code equals its source.
func (w *walker) finish(c *code) *code {
	raw := w.src.data[c.start:c.end]
	if w.backquotes > 0 && bytes.IndexByte(raw, '\\') >= 0 {
		c.exact = false // backslashes have a meaning in the backquotes too
	}
	c.verbatim = c.exact && bytes.Equal(raw, c.data)
	return c
}

func (w *walker) addParts(c *code, parts []sh.WordPart, q quotes) {
	for _, part := range parts {
		start, end := w.clamp(int(part.Pos().Offset()), int(part.End().Offset()))
		if c.limit > 0 {
			start, end = min(start, c.limit), min(end, c.limit)
		}
		switch x := part.(type) {
		case *sh.Lit:
			if q == bare && mayExpand(w.src.data[start:end]) {
				c.exact = false
			}
			c.addLiteral(start, end, q)
		case *sh.SglQuoted:
			start, end = w.clamp(start+1, end-1)
			if x.Dollar {
				start = min(start+1, end)
				c.exact = c.exact && bytes.IndexByte(w.src.data[start:end], '\\') < 0
			}
			c.add(start, w.src.data[start:end])
		case *sh.DblQuoted:
			w.addParts(c, x.Parts, double)
		default:
			c.exact = false
			c.add(start, w.src.data[start:end])
		}
	}
}

// mayExpand reports whether an unquoted literal may be a pattern, a list in braces or a home
// directory: the program's input is then unknown.
func mayExpand(raw []byte) bool { return bytes.ContainsAny(raw, "*?[{~") }

// rawWord returns the text of a word as bash keeps it: with its quotes, and without a backslash and
// newline outside single quotes.
func (w *walker) rawWord(start, end int, parts []sh.WordPart) string {
	raw := w.src.data[start:end]
	if !bytes.Contains(raw, []byte("\\\n")) {
		return string(raw)
	}
	var out []byte
	cut := func(to int) {
		out = append(out, bytes.ReplaceAll(w.src.data[start:to], []byte("\\\n"), nil)...)
		start = to
	}
	for _, part := range parts {
		q, ok := part.(*sh.SglQuoted)
		if !ok {
			continue
		}
		from, to := w.clamp(int(q.Left.Offset()), int(q.Right.Offset())+1)
		if from < start || to > end {
			continue
		}
		cut(from)
		out = append(out, w.src.data[from:to]...)
		start = to
	}
	cut(end)
	return string(out)
}

// heredocCode returns the body of a here-document, or nil if it is empty.
func (w *walker) heredocCode(r *sh.Redirect) *code {
	if r.Hdoc == nil || len(r.Hdoc.Parts) == 0 {
		return nil
	}
	c := &code{in: w.src, exact: true}
	c.start, c.end = w.bounds(r.Hdoc)
	c.end = w.withoutDelimiter(c.start, c.end, r)
	c.limit = c.end
	if r.Op == sh.DashHdoc {
		w.addDashed(c, r.Hdoc, w.quotedDelimiter(r.Word))
	} else if w.quotedDelimiter(r.Word) {
		c.add(c.start, w.src.data[c.start:c.end])
	} else {
		w.addParts(c, r.Hdoc.Parts, body)
	}
	return w.finish(c)
}

// withoutDelimiter returns the end of a here-document's body: the parser's word includes the
// delimiter, unless the script ends in the body.
func (w *walker) withoutDelimiter(start, end int, r *sh.Redirect) int {
	text := w.src.data[start:end]
	at := bytes.LastIndexByte(text, '\n') + 1
	last := text[at:]
	if r.Op == sh.DashHdoc {
		last = bytes.TrimLeft(last, "\t")
	}
	if bytes.Equal(last, unquoted(r.Word)) {
		return start + at
	}
	return end
}

// addDashed adds the body of a <<- here-document without the tabs before its lines.
func (w *walker) addDashed(c *code, hdoc *sh.Word, quoted bool) {
	if !quoted {
		for _, part := range hdoc.Parts {
			if _, ok := part.(*sh.Lit); !ok {
				c.exact = false
			}
		}
		c.exact = c.exact && bytes.IndexByte(w.src.data[c.start:c.end], '\\') < 0
	}
	for at := c.start; at < c.end; {
		line := w.src.data[at:c.end]
		if n := bytes.IndexByte(line, '\n'); n >= 0 {
			line = line[:n+1]
		}
		text := bytes.TrimLeft(line, "\t")
		c.add(at+len(line)-len(text), text)
		at += len(line)
	}
}

// quotedDelimiter reports whether any part of a here-document's delimiter is quoted.
func (w *walker) quotedDelimiter(word *sh.Word) bool {
	start, end := w.bounds(word)
	return bytes.ContainsAny(w.src.data[start:end], `\'"`)
}

// bounds returns a word's bounds in the source.
func (w *walker) bounds(word *sh.Word) (start, end int) {
	return w.clamp(int(word.Pos().Offset()), int(word.End().Offset()))
}

// clamp limits offsets to the source: the parsed text can be longer.
func (w *walker) clamp(start, end int) (int, int) {
	start = min(max(start, 0), len(w.src.data))
	return start, min(max(end, start), len(w.src.data))
}
