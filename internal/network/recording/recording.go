// Package recording records what a turn gets from its network, and answers from the recording when
// the turn is replayed. A recording that is read is untrusted.
package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

// recordingFormat is the version of an encoded Recording.
const recordingFormat = 1

// A Recording is what a turn got from its network: an index, as JSON, of a second file with the
// bytes. docs/network.md describes it.
type Recording struct {
	Format  int       `json:"format"`
	Lookups []Lookup  `json:"lookups,omitempty"`
	Streams []Stream  `json:"streams,omitempty"`  // connections, as bytes
	Answers []Request `json:"requests,omitempty"` // HTTP, in the order of the requests
	Bytes   int64     `json:"bytes"`              // size of the file with the bytes
	// Cut says why the recording is incomplete; empty: complete.
	Cut string `json:"cut,omitempty"`
	// Unrecorded are things that cannot be recorded, each once, such as "udp to 192.0.2.1:123".
	Unrecorded []string `json:"unrecorded,omitempty"`
}

// A Lookup is an answer of the name server.
type Lookup struct {
	Network   string       `json:"network"` // "ip", "ip4" or "ip6"
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Error     string       `json:"error,omitempty"` // empty: there is an answer
	NotFound  bool         `json:"not_found,omitempty"`
}

// A Stream is a connection. Its pieces are in the order of their arrival.
type Stream struct {
	Host    string         `json:"host,omitempty"` // the requested name, if it is known
	Address netip.AddrPort `json:"address"`
	// "tcp", or "tls": still encrypted, as evidence only
	Protocol string  `json:"protocol"`
	Opened   bool    `json:"opened,omitempty"` // it came over TLS, which was intercepted
	Failed   string  `json:"failed,omitempty"`
	Pieces   []Piece `json:"pieces,omitempty"`
}

// A Piece is a part of a stream's bytes.
type Piece struct {
	Sent bool `json:"sent,omitempty"` // by the guest
	Span
}

// A Span is a part of the file with the bytes.
type Span struct {
	At   int64 `json:"at"`
	Size int64 `json:"size"`
}

// A Request is an HTTP request with its answer. Of the request it contains only what identifies it.
type Request struct {
	Method   string           `json:"method"`
	URL      string           `json:"url"`
	Address  netip.AddrPort   `json:"address"` // its destination
	Body     turnstone.Digest `json:"body"`    // of the sent body; of nothing if there was none
	Status   int              `json:"status,omitempty"`
	Header   http.Header      `json:"header,omitempty"`
	Response []Span           `json:"response,omitempty"`
	Failed   string           `json:"failed,omitempty"` // why there was no answer, or only a part
}

// Limits of a recording.
const (
	defaultMost      = 1 << 30 // bytes, by default
	maxEntries       = 50_000  // of each kind
	maxPieces        = 500_000 // in all
	maxUnrecorded    = 50
	MaxIndex         = 128 << 20  // bytes of the encoded Recording
	maxValues        = 10_000_000 // in the encoded Recording
	maxRecordedField = 64 << 10   // bytes of a URL or a header
	// bytes of an encoded Recording without pieces, each of which has at most 64
	MaxTexts = 64 << 20
	// texts of a Recording: an entry has at most 12 other values, and a piece 4
	maxTextCount = maxValues - 3*12*maxEntries - 4*maxPieces
)

// Decode decodes an untrusted encoded Recording, whose bytes are in a file of the given size.
// Decode's result can be used without further checks. An error is of kind Integrity.
func Decode(index []byte, size int64) (*Recording, error) {
	fail := func(format string, args ...any) (*Recording, error) {
		return nil, turnstone.Errorf("network.recording", turnstone.KindIntegrity, "the recording",
			format, args...).WithHint("record the turn again")
	}
	if len(index) > MaxIndex {
		return fail("its index has %d bytes", len(index))
	}
	if values(index) > maxValues {
		return fail("its index has more than %d values", maxValues)
	}
	r := &Recording{}
	if err := json.Unmarshal(index, r); err != nil {
		return fail("its index cannot be read: %w", err)
	}
	if r.Format != recordingFormat {
		return nil, turnstone.Errorf("network.recording", turnstone.KindUnavailable,
			"the recording", "is of format %d, and this program knows %d", r.Format,
			recordingFormat).
			WithHint("use the turn that made it")
	}
	if r.Bytes != size {
		return fail("it has %d bytes, and should have %d", size, r.Bytes)
	}
	if err := r.check(); err != nil {
		return fail("%w", err)
	}
	return r, nil
}

// values returns a lower bound of the values and objects in text, which is JSON: few bytes can
// encode many of them.
func values(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	return n
}

func (r *Recording) check() error {
	if len(r.Lookups) > maxEntries || len(r.Streams) > maxEntries || len(r.Answers) > maxEntries ||
		len(r.Unrecorded) > maxUnrecorded {
		return errors.New("it has too many entries")
	}
	pieces := 0
	span := func(s Span) error {
		if pieces++; pieces > maxPieces {
			return errors.New("it has too many pieces")
		}
		if s.At < 0 || s.Size < 0 || s.At > r.Bytes || s.Size > r.Bytes-s.At {
			return fmt.Errorf("it names bytes %d to %d of %d", s.At, s.At+s.Size, r.Bytes)
		}
		return nil
	}
	for i := range r.Streams {
		for _, p := range r.Streams[i].Pieces {
			if err := span(p.Span); err != nil {
				return err
			}
		}
	}
	for i := range r.Answers {
		q := &r.Answers[i]
		if err := q.Check(); err != nil {
			return err
		}
		for _, s := range q.Response {
			if err := span(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check returns why q is a request that no Recorder writes.
func (q *Request) Check() error {
	if (q.Failed == "" || q.Status != 0) && (q.Status < 200 || q.Status > 999) {
		return fmt.Errorf("an answer has the status %d", q.Status)
	}
	for name, values := range q.Header {
		if !network.IsToken(name) || name == "" {
			return errors.New("an answer has an invalid header")
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n\x00") {
				return errors.New("an answer has an invalid header")
			}
		}
	}
	return nil
}

// Size returns the length of the answer's body.
func (q *Request) Size() (n int64) {
	for _, s := range q.Response {
		n += s.Size
	}
	return n
}

// Facts summarizes the recording, such as "3 requests, 1 connection, 2 lookups, 1.2 MiB".
func (r *Recording) Facts() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{len(r.Answers), "request"}, {len(r.Streams), "connection"}, {len(r.Lookups), "lookup"}} {
		if p.n == 1 {
			parts = append(parts, "1 "+p.what)
		} else if p.n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(append(parts, turnstone.Bytes(r.Bytes).Human()), ", ")
}

// Encrypted counts the connections whose bytes are encrypted, which cannot be replayed.
func (r *Recording) Encrypted() int {
	n := 0
	for i := range r.Streams {
		if r.Streams[i].Protocol == ProtocolTLS && r.Streams[i].Failed == "" {
			n++
		}
	}
	return n
}

// opened reports whether the recording has answers that came over TLS, which require a guest that
// trusts Turnstone's certificate authority.
func (r *Recording) opened() bool {
	for i := range r.Answers {
		if strings.HasPrefix(r.Answers[i].URL, "https:") {
			return true
		}
	}
	for i := range r.Streams {
		if r.Streams[i].Opened {
			return true
		}
	}
	return false
}

const (
	ProtocolTCP = "tcp"
	ProtocolTLS = "tls"
)
