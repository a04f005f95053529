package sniff

import "strings"

// A RequestScan searches a guest's bytes in a protocol other than HTTP for requests: of any method,
// with a version of any name or with none, and after bytes that a server may skip (an opening line,
// a byte order mark, a PROXY header). It keeps only a few bytes, however long lines are.
type RequestScan struct {
	fields     int    // of the line so far; at most 2 are counted
	inField    bool   // the last byte was no gap
	last, prev prefix // the line's last field, and the previous field
	words      bool   // this line, or a previous line of the same block, has two fields
	content    bool   // the line contains another byte than a CR
	// the matched bytes of a Host header's name and colon in the line; -1: no match
	host int
}

// A prefix is the beginning of a field.
type prefix struct {
	b [16]byte
	n int // length of the whole field
}

func (f *prefix) add(c byte) {
	if f.n < len(f.b) {
		f.b[f.n] = c
	}
	f.n++
}

func (f *prefix) String() string { return string(f.b[:min(f.n, len(f.b))]) }

// Saw reports whether b completes a request: a line that ends with a version of HTTP, or with any
// version after the URL of another host, or a Host header below a line of words.
func (s *RequestScan) Saw(b []byte) bool {
	for _, c := range b {
		if c == '\n' && s.request() || s.header(c) {
			return true
		}
		s.take(c)
	}
	return false
}

// take counts the fields of lines.
func (s *RequestScan) take(c byte) {
	switch {
	case c == '\n':
		words := s.words && s.content
		*s = RequestScan{words: words}
		return
	case isGap(c):
		s.inField = false
	default:
		if !s.inField {
			s.inField, s.prev, s.last = true, s.last, prefix{}
			s.fields = min(s.fields+1, 2)
			s.words = s.words || s.fields == 2
		}
		s.last.add(c)
	}
	s.content = s.content || c != '\r'
}

// header reports whether c ends the name of a Host header. Header lines may also begin after a CR,
// and with white space.
func (s *RequestScan) header(c byte) bool {
	const name = "host"
	switch {
	case c == '\r':
		s.host = 0
	case isGap(c) && (s.host <= 0 || s.host == len(name)):
	case s.host == len(name) && c == ':':
		return s.words
	case s.host >= 0 && s.host < len(name) && c|0x20 == name[s.host]:
		s.host++
	default:
		s.host = -1
	}
	return false
}

// request reports whether the ended line is the first line of a request.
func (s *RequestScan) request() bool {
	version := s.last.String()
	if s.fields < 2 || s.last.n > len(s.last.b) || !isVersion(version) {
		return false
	}
	return strings.EqualFold(version[:strings.IndexByte(version, '/')], "HTTP") ||
		isWebURL(s.prev.String())
}

// isVersion reports whether s is a protocol's name and version, such as "HTTP/1.1" and "ICE/1.0".
func isVersion(s string) bool {
	name, number, ok := strings.Cut(s, "/")
	return ok && name != "" && isWord([]byte(name)) && number != "" && number[0] >= '0' &&
		number[0] <= '9' && strings.Trim(number, "0123456789.") == ""
}

// isWebURL reports whether s begins like the URL of a web server.
func isWebURL(s string) bool {
	scheme, _, ok := strings.Cut(s, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}
