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

// result returns what was written, with a line at its end if that is not all.
func (o *output) result() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := strings.ToValidUTF8(string(o.text), string(utf8.RuneError))
	if more := o.total - int64(len(o.text)); more > 0 {
		s += fmt.Sprintf("\n[… %d more bytes were not kept …]\n", more)
	}
	return s
}

// outputs are the long texts of a connection that its client may still read as resources: the
// latest ones. They are safe for concurrent use.
type outputs struct {
	mu    sync.Mutex
	next  int
	all   map[string]string
	order []string
}

// maxKept bounds the texts that a connection keeps.
const maxKept = 16

// keep returns the address of a text.
func (o *outputs) keep(text string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]string{}
	}
	o.next++
	uri := fmt.Sprintf("%s%d", outputsURI, o.next)
	o.all[uri] = text
	if o.order = append(o.order, uri); len(o.order) > maxKept {
		delete(o.all, o.order[0])
		o.order = o.order[1:]
	}
	return uri
}

// get returns the text at an address.
func (o *outputs) get(uri string) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text, ok := o.all[uri]
	if !ok {
		return "", turnstone.Errorf("mcp.read", turnstone.KindNotFound, "the output",
			"is not kept: a connection has its last %d", maxKept)
	}
	return text, nil
}

// inline returns a text as it is in a result, and the address of the whole text if that is longer.
func (c *connection) inline(text string) (string, string) {
	if len(text) <= maxInline {
		return text, ""
	}
	return cut(text, maxInline), c.kept.keep(text)
}
