package syntax

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"unicode/utf8"

	sh "mvdan.cc/sh/v3/syntax"
)

type stmt = sh.Stmt

// A shellFault is the reason why the shell's parser rejected a text.
type shellFault struct {
	at      int
	message string
	limit   bool // a limit of this package, not a fault of the text
}

const (
	// maxFrames bounds the call depth of the parser's functions: the parser is recursive, and a Go
	// program cannot recover from a stack overflow. A parenthesis takes up to 25 frames and 6 KiB,
	// and 5,000 of them are accepted.
	maxFrames = 160_000

	// maxGrowth bounds the heap's growth in bytes while a statement is read: its tree can have a
	// hundred bytes for each byte of the statement.
	maxGrowth = 256 << 20
	heapEvery = 32 // reads of a KiB between two checks of the heap
)

// readShell parses src and passes the statements of the top level to take until take returns false.
// It returns the end of the last statement, and the reason if it did not reach the end of src.
func readShell(src []byte, shell string, b *budget,
	take func(*stmt) bool) (end int, fault *shellFault) {
	text := plain(src)
	skip := 0
	for range maxHeredocEnds {
		end, fault = readStatements(text, shell, b, func(s *stmt) bool {
			// A second attempt continues after the end of the first attempt.
			if int(s.Pos().Offset()) < skip {
				return true
			}
			return take(s)
		}, &skip)
		if fault == nil || fault.limit {
			break
		}
		delimiter, ok := unclosedHeredoc(text, fault)
		if !ok {
			break
		}
		// bash accepts a here-document that the end of the script terminates.
		text = bytes.Join([][]byte{text, delimiter, nil}, []byte("\n"))
	}
	return min(end, len(src)), fault
}

// readStatements is a run of the parser. It sets done to the end of the last statement passed on.
func readStatements(text []byte, shell string, b *budget, take func(*stmt) bool,
	done *int) (end int, fault *shellFault) {
	variant := sh.LangBash
	if shell == "sh" {
		variant = sh.LangPOSIX
	}
	r := &guardedReader{text: text, budget: b}
	q := statementQueue{text: text, take: take, end: *done}
	defer func() { *done = q.end }()
	for s, err := range sh.NewParser(sh.Variant(variant)).StmtsSeq(r) {
		switch {
		case r.stopped || fault != nil:
			// Leaving the loop does not stop the parser: in some places it continues, which is a
			// fatal error for Go's runtime. It only gets no more text.
		case r.limit != "":
			fault = &shellFault{message: r.limit, limit: true}
		case err != nil:
			fault = faultOf(err)
		default:
			r.stopped = !q.add(s)
		}
	}
	if !r.stopped {
		q.flush()
	}
	if fault != nil && fault.limit {
		fault.at = q.end
	}
	return q.end, fault
}

// A statementQueue delays the statements of a line: the parser returns them before it has read
// their here-documents, which follow the line.
type statementQueue struct {
	text    []byte
	take    func(*stmt) bool
	pending []*stmt
	last    int // end of the last pending statement
	end     int // end of the last statement taken
}

const maxQueue = 4096

func (q *statementQueue) add(s *stmt) bool {
	start := min(int(s.Pos().Offset()), len(q.text))
	if len(q.pending) >= maxQueue || q.last < start &&
		bytes.IndexByte(q.text[q.last:start], '\n') >= 0 {
		if !q.flush() {
			return false
		}
	}
	q.pending = append(q.pending, s)
	q.last = min(int(s.End().Offset()), len(q.text))
	return true
}

func (q *statementQueue) flush() bool {
	for _, s := range q.pending {
		if !q.take(s) {
			return false
		}
		q.end = max(q.end, int(s.End().Offset()))
	}
	clear(q.pending)
	q.pending = q.pending[:0]
	return true
}

func faultOf(err error) *shellFault {
	var parse sh.ParseError
	var lang sh.LangError
	switch {
	case errors.As(err, &parse):
		return &shellFault{at: int(parse.Pos.Offset()), message: parse.Text}
	case errors.As(err, &lang):
		return &shellFault{at: int(lang.Pos.Offset()), message: lang.Feature +
			" are not known to this shell"}
	}
	return &shellFault{message: err.Error()}
}

// plain returns src with the same length for a parser that differs from bash in three ways: it
// treats carriage returns as blanks or as a part of the line's end, and rejects text that is not
// UTF-8. In bash these bytes are parts of words.
func plain(src []byte) []byte {
	if bytes.IndexByte(src, '\r') < 0 && utf8.Valid(src) {
		return src
	}
	const ordinary = 0x01
	out := bytes.Clone(src)
	for i := 0; i < len(out); {
		if out[i] == '\r' {
			out[i] = ordinary
		}
		_, n := utf8.DecodeRune(out[i:])
		if out[i] >= utf8.RuneSelf && n == 1 {
			out[i] = ordinary
		}
		i += n
	}
	return out
}

// A guardedReader passes a text to the parser, and stops the parser with an end of the text if the
// call depth or the time is exceeded.
type guardedReader struct {
	text   []byte
	budget *budget

	limit   string // why it stopped
	stopped bool   // no more statements are wanted
	reads   int
	heap    uint64 // bytes at the beginning
}

// Read is called by the parser for each KiB, at any depth: the stack shows the depth of any
// nesting.
func (r *guardedReader) Read(p []byte) (int, error) {
	if len(r.text) == 0 || r.stopped || r.limit != "" {
		return 0, io.EOF
	}
	var frame [1]uintptr
	if runtime.Callers(maxFrames, frame[:]) > 0 {
		r.limit = "the script is nested too deep"
	} else if r.budget.spent() {
		r.limit = fmt.Sprintf("the script took more than %s to parse", maxParse)
	} else if r.reads%heapEvery == 0 && len(r.text) > heapEvery<<10 && r.tooLarge() {
		r.limit = "the script took too much memory to parse"
	}
	if r.limit != "" {
		return 0, io.EOF
	}
	r.reads++
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

// tooLarge reports whether the heap grew too much since the first check. The heap belongs to the
// whole process, so concurrent users share the limit.
func (r *guardedReader) tooLarge() bool {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return false
	}
	now := sample[0].Value.Uint64()
	if r.reads == 0 {
		r.heap = now
	}
	return now > r.heap+maxGrowth
}

// maxHeredocEnds bounds the number of unclosed here-documents that are closed here.
const maxHeredocEnds = 4

// unclosedHeredoc returns the delimiter of the here-document of a fault. The parser reports the
// position of its operator.
func unclosedHeredoc(text []byte, fault *shellFault) ([]byte, bool) {
	const prefix = "unclosed here-document"
	if len(fault.message) < len(prefix) || fault.message[:len(prefix)] != prefix ||
		fault.at >= len(text) {
		return nil, false
	}
	rest := bytes.TrimPrefix(text[fault.at:], []byte("<<"))
	rest = bytes.TrimLeft(bytes.TrimPrefix(rest, []byte("-")), " \t")
	if line, _, ok := bytes.Cut(rest, []byte("\n")); ok {
		rest = line
	}
	var delimiter []byte
	for s, err := range sh.NewParser().WordsSeq(bytes.NewReader(rest[:min(len(rest), 1024)])) {
		if err != nil {
			return nil, false
		}
		delimiter = unquoted(s)
		break
	}
	return delimiter, len(delimiter) > 0
}

// unquoted returns a word without its quotes, as bash treats the delimiter of a here-document:
// without expansion.
func unquoted(w *sh.Word) []byte {
	var out []byte
	var parts func(list []sh.WordPart, quoted bool)
	parts = func(list []sh.WordPart, quoted bool) {
		for _, part := range list {
			switch x := part.(type) {
			case *sh.Lit:
				out, _ = unescape(out, []byte(x.Value), quotesOf(quoted))
			case *sh.SglQuoted:
				out = append(out, x.Value...)
			case *sh.DblQuoted:
				parts(x.Parts, true)
			}
		}
	}
	parts(w.Parts, false)
	return out
}
