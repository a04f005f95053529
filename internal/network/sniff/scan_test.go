package sniff_test

import (
	"bufio"
	"bytes"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/sniff"
)

// scan reports whether a RequestScan finds a request in b, which arrives in pieces.
func scan(b []byte, piece int) bool {
	var s sniff.RequestScan
	for p := range slices.Chunk(b, piece) {
		if s.Saw(p) {
			return true
		}
	}
	return false
}

func TestRequestScan(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                  false,
		"GET / HTTP/1.1":                    false, // its line has not ended
		"GET / HTTP/1.1\n":                  true,
		"x y http/1\r\n":                    true,
		"\x00\xef\xbb\xbf(GET / HTTP/2.0\n": true,
		"HTTP/1.1\n":                        false,
		"HTTP/1.1 200\r\n":                  false,
		"GET / HTTP/\n":                     false,
		"GET / HTTP/1.1x\n":                 false,
		"GET / HTTP/1.11111111111111111\n":  false, // longer than any version
		"GET http://a/ RTSP/1.0\n":          true,
		"GET HTTPS://a/ x/1\n":              true,
		"GET rtsp://a/ RTSP/1.0\n":          false,
		"POST E\nHost:":                     true,
		"POST E\nX: y\r\n \thOsT\x1f:":      true,
		"POST E\rhost:":                     true, // some servers end lines with CR
		"POST E\n\r\nHost:":                 false,
		"POST E\n \nHost:":                  true, // a line of white space does not end a block
		"POST\nHost:":                       false,
		"POST E\nmy host:":                  false,
		"POST E\nhosts:":                    false,
		"POST E\nho st:":                    false,
	} {
		for piece := 1; piece <= len(text)+1; piece++ {
			if got := scan([]byte(text), piece); got != want {
				t.Errorf("%q in pieces of %d: %t", text, piece, got)
			}
		}
	}
}

// TestOtherProtocolsGoOn checks that other protocols than HTTP continue for any time, also in lines
// that look like those of requests.
func TestOtherProtocolsGoOn(t *testing.T) {
	for what, b := range map[string]string{
		"STOMP":     "CONNECT\naccept-version:1.0,1.1,1.2\nhost:broker\n\n\x00",
		"memcached": "get /a/b\r\nget http://x/\r\n",
		"FTP":       "USER x\r\nCWD /a\r\nRETR /b\r\n",
		"RTSP": "OPTIONS rtsp://x/ RTSP/1.0\r\nCSeq: 1\r\n\r\n" +
			"SETUP rtsp://x/1 RTSP/1.0\r\nCSeq: 2\r\n\r\n",
		"SIP": "REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/TCP x\r\n\r\n",
		"SMTP": "EHLO me\r\nDATA\r\nSubject: see http://x/ and HTTP/1.1 there\r\n\r\n" +
			"Host: x\r\n.\r\n",
		"SQL":         "Q\x00\x00\x00\x20select 'http://x/' /* HTTP/1.1 */\x00",
		"a long line": strings.Repeat("words ", 20000) + "HTTP/\n",
		"lines":       strings.Repeat("a line\r\nhosts: 1\r\nmy host:\r\n", 3000),
	} {
		for piece := 1; piece <= len(b); piece = piece*7 + 1 {
			if scan([]byte(b), piece) {
				t.Errorf("%s, in pieces of %d: taken for a request", what, piece)
			}
		}
	}
}

// The definition of RequestScan, for a whole text in which each byte is a rune.
var (
	hostHeader  = regexp.MustCompile(`(?i)^` + gapClass + `*host` + gapClass + `*:`)
	gapRuns     = regexp.MustCompile(gapClass + `+`)
	version     = regexp.MustCompile(`^[A-Za-z_-]+/[0-9][0-9.]*$`)
	httpVersion = regexp.MustCompile(`(?i)^HTTP/`)
	webURL      = regexp.MustCompile(`(?i)^https?://`)
)

const gapClass = "[ \\t\\v\\f\\r\\x1c-\\x1f\\x{85}\\x{a0}]"

func fieldsOf(line string) []string {
	return slices.DeleteFunc(gapRuns.Split(line, -1), func(s string) bool { return s == "" })
}

// defined reports whether text contains a request: a line that ends with a version, or a Host
// header that two fields precede in the same block of lines.
func defined(text string) bool {
	words := false // in the block's previous lines
	lines := strings.SplitAfter(text, "\n")
	for _, line := range lines {
		line, ended := strings.CutSuffix(line, "\n")
		fields := fieldsOf(line)
		before := 0
		for _, part := range strings.SplitAfter(line, "\r") {
			if hostHeader.MatchString(part) {
				name := part[:strings.IndexByte(part, ':')]
				if words || len(fieldsOf(line[:before]+name)) >= 2 {
					return true
				}
			}
			before += len(part)
		}
		if n := len(fields); ended && n >= 2 && len([]rune(fields[n-1])) <= 16 &&
			version.MatchString(fields[n-1]) &&
			(httpVersion.MatchString(fields[n-1]) || webURL.MatchString(fields[n-2])) {
			return true
		}
		words = (words || len(fields) >= 2) && strings.Trim(line, "\r") != ""
	}
	return false
}

// FuzzRequestScan compares a RequestScan with its definition, in pieces of any length, and checks
// that it finds each request that net/http reads at the beginning of a line.
func FuzzRequestScan(f *testing.F) {
	for _, s := range networktest.Smuggling {
		f.Add([]byte(s), uint8(1))
	}
	f.Add([]byte("hello\n"+networktest.GoodRequest), uint8(7))
	f.Add([]byte("a b\n \r\n\rhost \x85: GET http://x/ X/1\n"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		got := scan(b, int(piece)+1)
		latin := make([]rune, len(b))
		for i, c := range b {
			latin[i] = rune(c)
		}
		if want := defined(string(latin)); got != want {
			t.Fatalf("%q in pieces of %d: %t, and by definition %t", b, int(piece)+1, got, want)
		}
		for rest := b; len(rest) > 0 && !got; {
			req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(rest)))
			if err == nil {
				t.Fatalf("%q: %s %s is not seen", b, req.Method, req.RequestURI)
			}
			_, rest, _ = bytes.Cut(rest, []byte("\n"))
		}
	})
}
