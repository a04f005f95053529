// Package sniff classifies the first bytes of a connection, and finds HTTP requests inside other
// protocols.
package sniff

import (
	"bytes"
	"strings"
)

// A Protocol is the class of a connection's first bytes.
type Protocol int

const (
	Other   Protocol = iota
	TLS              // a TLS record with a handshake (RFC 8446, section 5.1)
	HTTP             // a request line, of any version of HTTP, possibly malformed
	Partial          // it could become HTTP
	// only white space, which servers skip before a request (RFC 9112, section 2.2)
	Blank
)

// Classify returns the class of b, the first bytes of a connection. HTTP is everything that any
// server could read as HTTP, not only RFC 9112's requests: requests after white space, methods in
// lower case or of other letters, fields separated by the white space of some languages, lines that
// end with LF alone.
func Classify(b []byte) Protocol {
	if len(b) > 0 && b[0] == RecordHandshake {
		return TLS
	}
	b = bytes.TrimLeftFunc(b, func(r rune) bool { return r < 0x80 && isGap(byte(r)) })
	for len(b) > 0 && isGap(b[0]) { // also gaps that are not ASCII
		b = b[1:]
	}
	if len(b) == 0 {
		return Blank
	}
	method := b[:tokenLength(b)]
	if len(method) == 0 {
		return Other
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	// Binary protocols begin with a letter, too, and then have a length or a terminator. Only
	// servers that accept nothing else unusual accept methods that are not words.
	if !isWord(method) && (bytes.ContainsFunc(line, isControl) || len(line) > len(method) &&
		line[len(method)] != ' ' && line[len(method)] != '\t') {
		return Other
	}
	if len(line) > len(method) && !isGap(line[len(method)]) {
		return Other
	}
	if !whole {
		return Partial
	}
	fields := splitGaps(line)
	for _, f := range fields[1:] {
		if len(f) >= 5 && strings.EqualFold(string(f[:5]), "HTTP/") {
			return HTTP
		}
	}
	if isUnusual(string(method), fields) {
		return HTTP
	}
	return Other
}

// isUnusual reports whether a line without a version of HTTP is nevertheless a request to some
// server: without any version, or with the version of another protocol ("ICE/1.0", "RTSP/1.0").
// Other protocols have such lines in lower case, and with other targets: RequestScan watches those.
func isUnusual(method string, fields [][]byte) bool {
	if len(fields) < 2 || len(fields) > 3 || !isWord([]byte(method)) || len(fields) == 3 &&
		!isVersion(string(fields[2])) {
		return false
	}
	target := fields[1]
	if len(fields) == 2 {
		return strings.ToUpper(method) == method && (target[0] == '/' || isWebURL(string(target)) ||
			method == "GET" && bytes.Contains(target, []byte("://")))
	}
	return target[0] == '/' || isWebURL(string(target)) || strings.EqualFold(method, "CONNECT")
}

// ClassifyAtEnd is Classify for a connection that ends after b.
func ClassifyAtEnd(b []byte) Protocol {
	said := Classify(b)
	if said != Partial {
		return said
	}
	if Classify(append(bytes.Clone(b), '\n')) == HTTP {
		return Partial
	}
	return Other
}

// IsPlainRequest reports whether b begins a request to a host that is no proxy, in the form of
// clients (RFC 9112, section 3.2.1).
func IsPlainRequest(b []byte) bool {
	method, rest, _ := bytes.Cut(b, []byte(" "))
	if len(method) == 0 || len(rest) == 0 ||
		bytes.ContainsFunc(method, func(r rune) bool { return (r < 'A' || r > 'Z') && r != '-' }) {
		return false
	}
	return (rest[0] == '/' || rest[0] == '*' && string(method) != "PRI") &&
		bytes.Contains(rest, []byte(" HTTP/1."))
}

// MaybePlain reports whether b is, or may become, the request line of a client: a method of capital
// letters, a space, and a path, "*", a URL, or a target of CONNECT.
func MaybePlain(b []byte) bool {
	method, target, ok := bytes.Cut(b, []byte(" "))
	switch {
	case len(method) > 20 ||
		bytes.ContainsFunc(method, func(r rune) bool { return (r < 'A' || r > 'Z') && r != '-' }):
		return false
	case !ok || len(target) == 0:
		return true
	}
	return bytes.IndexByte([]byte("/*hH"), target[0]) >= 0 || string(method) == "CONNECT"
}

// isGap reports whether c separates the fields of a line for some server: Python's str.split splits
// bytes the same way.
func isGap(c byte) bool {
	return c == ' ' || c >= '\t' && c <= '\r' || c >= 0x1c && c <= 0x1f || c == 0x85 || c == 0xa0
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// isWord reports whether a method consists of letters, hyphens and underscores.
func isWord(method []byte) bool {
	return !bytes.ContainsFunc(method, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') &&
			r != '-' && r != '_'
	})
}

// tokenLength returns the length of the token that b begins with (RFC 9110, section 5.6.2).
func tokenLength(b []byte) int {
	for i, c := range b {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return i
		}
	}
	return len(b)
}

// splitGaps splits a line at its gaps.
func splitGaps(line []byte) (fields [][]byte) {
	from := -1
	for i, c := range line {
		switch {
		case isGap(c) && from >= 0:
			fields, from = append(fields, line[from:i]), -1
		case !isGap(c) && from < 0:
			from = i
		}
	}
	if from >= 0 {
		fields = append(fields, line[from:])
	}
	return fields
}

// MaxGreeting bounds the examined first bytes of a guest. A ClientHello with post-quantum key
// shares has some 2 KiB, and a request's header seldom more than 8 KiB.
const MaxGreeting = 32 << 10

// RecordHandshake is the type of a TLS connection's first record (RFC 8446, 5.1).
const RecordHandshake = 22
