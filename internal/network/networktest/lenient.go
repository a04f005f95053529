package networktest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone/internal/network/sniff"
)

// A LenientServer answers requests, skips the bytes before them that servers skip, and records its
// input. Hosts returns the hosts in its requests.
type LenientServer struct {
	mu  sync.Mutex
	Got [][]byte // input of each connection
}

// Serve answers the requests on c.
func (s *LenientServer) Serve(c net.Conn) {
	defer c.Close()
	s.mu.Lock()
	at := len(s.Got)
	s.Got = append(s.Got, nil)
	s.mu.Unlock()
	br := bufio.NewReader(io.TeeReader(c, writerFunc(func(p []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.Got[at] = append(s.Got[at], p...)
		return len(p), nil
	})))
	for {
		req, err := readLenient(br)
		if err != nil {
			_, _ = io.Copy(io.Discard, br)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// readLenient reads a request like a server that skips white space before a request.
func readLenient(br *bufio.Reader) (*http.Request, error) {
	for {
		b, err := br.ReadByte()
		if err != nil {
			return nil, err
		}
		if !strings.ContainsRune("\r\n \t\v\f", rune(b)) {
			_ = br.UnreadByte()
			return http.ReadRequest(br)
		}
	}
}

// Hosts returns the hosts of the received requests: as net/http reads them, and as a server would
// that splits lines at any white space and accepts each Host.
func (s *LenientServer) Hosts() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.Got {
		br := bufio.NewReader(bytes.NewReader(b))
		for {
			req, err := readLenient(br)
			if err != nil {
				break
			}
			all = append(all, req.Host)
			if strings.EqualFold(req.Method, "CONNECT") {
				all = append(all, "tunnel to "+req.RequestURI)
			}
			_, _ = io.Copy(io.Discard, req.Body)
		}
		all = append(all, looseHosts(b)...)
	}
	return all
}

// looseHosts returns all hosts that b could name: those of its first request, with any method and
// with any version or none; and, unless every server reads the first request the same way, those of
// the requests after it.
func looseHosts(b []byte) (all []string) {
	latin := make([]rune, len(b))
	for i, c := range b {
		latin[i] = rune(c)
	}
	if len(b) > 2 && b[0] == sniff.RecordHandshake && b[1] == 3 {
		return nil // no server reads anything but TLS from there on
	}
	text := strings.TrimSpace(string(latin))
	blocks := []string{text}
	if _, err := readLenient(bufio.NewReader(bytes.NewReader(b))); err != nil {
		blocks = strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n")
	}
	for _, block := range blocks {
		all = append(all, blockHosts(strings.Split(block, "\n"))...)
	}
	return all
}

// blockHosts returns the hosts that lines without an empty line could name for a server that skips
// unknown lines.
func blockHosts(lines []string) (all []string) {
	words := false
	for i, line := range lines {
		if name, value, ok := strings.Cut(line, ":"); ok && words &&
			strings.EqualFold(strings.TrimSpace(name), "Host") {
			all = append(all, strings.TrimSpace(value))
		}
		if i > 0 && strings.TrimSpace(line) == "" {
			return all
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		words = true
		end := fields[len(fields)-1]
		name, number, versioned := strings.Cut(end, "/")
		versioned = versioned && name != "" &&
			strings.Trim(strings.ToUpper(name), "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" &&
			strings.Trim(number, "0123456789.") == "" && number != "" && number[0] != '.'
		if scheme, rest, ok := strings.Cut(fields[len(fields)-2], "://"); ok && versioned &&
			len(end) <= 16 && (strings.EqualFold(scheme, "http") ||
			strings.EqualFold(scheme, "https")) {
			host, _, _ := strings.Cut(rest, "/")
			all = append(all, host)
		}
		if end == "HTTP/2.0" {
			all = append(all, "HTTP/2")
		}
	}
	return all
}

// Smuggling are ways to send a request to evil.example past the policy.
var Smuggling = []string{
	"%[1]sGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET http://evil.example/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"%[1]sCONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example\r\n\r\nGET / HTTP/1.1\r\n" +
		"Host: evil.example\r\n\r\n",
	"%[1]sCONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET / HTTP/1.1\r\n" +
		"Host: evil.example\r\n\r\n",
	"%[1]s\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\r\n|%[1]sGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\n\n|GE|T / HTTP/1.1\nHost: evil.example\n\n",
	"%[1]sGET / HTTP/1.1\nHost: evil.example\n\n",
	"%[1]sget / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGet\t/ http/1.1\r\nhost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nX: y\r\n Host: z\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost:\r\n evil.example\r\n\r\n",
	"G|E|T| / HTTP/1.1\r\nHo|st: evil.example\r\n\r\n",
	"%[1]sPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n|GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\n" +
		"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" +
		"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.0\r\n\r\n",
	"%[1]sGET http://evil.example/\r\n",
	"%[1]sPOST /E\r\nHost: evil.example\r\n\r\n",
	"%[1]sPUT /E\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\nok",
	"%[1]sOPTIONS http://evil.example/E\r\n\r\n",
	"%[1]sPOST E\r\n|Ho|st: evil.example\r\n\r\n",
	"%[1]sGET /E RTSP/1.0\r\nHost: evil.example\r\n\r\n",
	"%[1]sSOURCE /E ICE/1.0\r\nX: y\r\nhOsT : evil.example\r\n\r\n",
	"%[1]sOPTIONS rtsp://x/ RTSP/1.0\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET http://evil.example/ RTSP/1.0\r\n\r\n",
	"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n%[1]sGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c            |GET / HTTP/1.1\r\nHost: evil.example\r\n" +
		"\r\n",
	"hello\r\n|GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"hello\r\nPOST E\r\nHost: evil.example\r\n\r\n",
	"hello\r\n|PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n evil.example",
	"hello\r\n\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n",
	"\x00GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\x16GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com:.evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com:80,evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: [api.example.com]:evil.example\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: [api.example.com]\r\n\r\n",
	"%[1]sGET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\n" +
		"Upgrade: websocket h2c\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
}

// GoodRequest is a request that every policy of these tests allows.
const GoodRequest = "GET /good HTTP/1.1\r\nHost: api.example.com\r\n\r\n"

// An Answer is a request's host with the expected status.
type Answer struct {
	Host string
	Want int
}

// Answers sends requests over c in sequence.
func Answers(t testing.TB, c net.Conn, all []Answer) {
	t.Helper()
	br := bufio.NewReader(c)
	for _, q := range all {
		_, _ = c.Write(HTTPRequest(q.Host))
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(q.Host, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode != q.Want {
			t.Errorf("%s: %s, want %d", q.Host, res.Status, q.Want)
		}
	}
}
