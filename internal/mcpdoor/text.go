package mcpdoor

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"turnstone.dev/turnstone"
)

// Bounds of what is answered at once, in bytes.
const (
	maxInline   = 16 << 10 // of a text within a result
	maxError    = 4 << 10
	maxResource = 8 << 20 // of a resource
	maxList     = 200     // entries of a list
)

// cut returns s without its middle if it is longer than max bytes.
func cut(s string, max int) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= max {
		return s
	}
	head, tail := s[:max/2], s[len(s)-max/2:]
	for len(head) > 0 && !utf8.ValidString(head) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n[… %d bytes cut …]\n%s", head, len(s)-len(head)-len(tail), tail)
}

// An output collects what a command writes to a stream, up to maxOutput bytes. It is safe for
// concurrent use.
type output struct {
	mu    sync.Mutex
	text  []byte
	total int64
}

// maxOutput bounds what is kept of an output in bytes.
const maxOutput = 1 << 20

// Write implements io.Writer. It takes what it does not keep, so that the command goes on.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += int64(len(p))
	o.text = append(o.text, p[:min(len(p), maxOutput-len(o.text))]...)
	return len(p), nil
}

// result returns what is kept of what was written, and how many bytes are not.
func (o *output) result() (data []byte, more int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	data = o.text
	if o.total > int64(len(data)) { // the end may be in the middle of a character
		data = wholeRunes(data)
	}
	return data, o.total - int64(len(data))
}

// A shown is an output within a result.
type shown struct {
	text  string // without its middle if it is long
	bytes []byte // all of a short output that is no text
	uri   string // all that is kept of another output, unless text has it; may be empty
	note  string // about an output that is no text; may be empty
}

// show returns an output as the results of a call have it under a name.
func (c *connection) show(name string, o *output) (s shown) {
	data, more := o.result()
	text, left := strings.ToValidUTF8(string(data), string(utf8.RuneError)), ""
	if more > 0 {
		left = fmt.Sprintf("\n[… %d more bytes were not kept …]\n", more)
	}
	s.text = cut(text+left, maxInline)
	valid := utf8.Valid(data)
	switch {
	case valid && len(text)+len(left) <= maxInline:
	case valid:
		s.uri = c.kept.keep([]byte(text + left))
	case len(data) <= maxInline:
		s.bytes = data
		s.note = name + " has bytes that are not UTF-8: " + name + "_base64 has all of it"
	default:
		s.uri = c.kept.keep(data)
		s.note = name + " has bytes that are not UTF-8: " + name + "_uri has all of it"
		if more > 0 {
			s.note += fmt.Sprintf(" but %d bytes at its end", more)
		}
	}
	return s
}

// outputs are the long outputs of a connection that its client may still read as resources: the
// latest ones. They are safe for concurrent use.
type outputs struct {
	mu    sync.Mutex
	next  int
	size  int
	all   map[string][]byte
	order []string
}

// maxKept bounds the outputs that a connection keeps in bytes.
const maxKept = 16 << 20

// keep returns the address of an output.
func (o *outputs) keep(data []byte) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string][]byte{}
	}
	o.next++
	uri := fmt.Sprintf("%s%d", outputsURI, o.next)
	o.all[uri] = data
	o.order = append(o.order, uri)
	for o.size += len(data); o.size > maxKept; o.order = o.order[1:] {
		o.size -= len(o.all[o.order[0]])
		delete(o.all, o.order[0])
	}
	return uri
}

// get returns the output at an address.
func (o *outputs) get(uri string) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	data, ok := o.all[uri]
	if !ok {
		return nil, turnstone.Errorf("mcp.read", turnstone.KindNotFound, "the output",
			"is not kept: a connection has the last %s", turnstone.Bytes(maxKept))
	}
	return data, nil
}
