package relay

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/iotest"
)

// FuzzAnswer: an answer that the relay accepts means the same to net/http, and reading it in parts
// changes nothing.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(switching()))
	f.Add([]byte(switching("Sec-WebSocket-Protocol: x", "A:\tb ") + "rest"))
	f.Add([]byte("HTTP/1.1 404 \r\nRetry-After: 1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		const limit = 2 << 10
		head, rest, err := readHead(bytes.NewReader(text), limit)
		head1, rest1, err1 := readHead(iotest.OneByteReader(bytes.NewReader(text)), limit)
		if (err == nil) != (err1 == nil) || !bytes.Equal(head, head1) ||
			!bytes.HasPrefix(rest, rest1) {
			t.Fatalf("in one part %q, %q, %v; in bytes %q, %q, %v", head, rest, err,
				head1, rest1, err1)
		}
		if err != nil {
			return
		}
		if len(head)+len(rest) > limit || !bytes.HasPrefix(text, slices.Concat(head, rest)) {
			t.Fatalf("%q became %q and %q", text, head, rest)
		}
		a, err := parseAnswer(head)
		if err != nil {
			return
		}
		_ = a.check(testKey, []string{"x"})
		theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
		if err != nil {
			return // net/http also judges lengths and encodings, which check does
		}
		_ = theirs.Body.Close()
		if theirs.StatusCode != a.status {
			t.Fatalf("%q has status %d; net/http reads %d", head, a.status, theirs.StatusCode)
		}
		for _, moved := range []string{"Transfer-Encoding", "Trailer", "Pragma", "Cache-Control",
			"Content-Length"} { // net/http removes or adds these
			delete(a.fields, moved)
			delete(theirs.Header, moved)
		}
		if !maps.EqualFunc(a.fields, theirs.Header, slices.Equal) {
			t.Fatalf("%q has the fields %q; net/http reads %q", head, a.fields, theirs.Header)
		}
	})
}

// FuzzRequest: whatever net/http makes of a client's bytes, the node gets a single head, whose
// fields are the relay's.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(request()))
	f.Add([]byte(request("Sec-WebSocket-Protocol: bearer.x, turnstone.v1", "Cookie: a")))
	f.Add([]byte(request("Sec-WebSocket-Protocol: turnstone.v1, turnstone.v1") + "GET / HTTP/1.1"))
	u := &Upgrade{Host: "node", Target: "/t", Protocols: []string{"turnstone.v1"},
		Header: http.Header{"Turnstone-Tenant": {"ci"}}}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil || checkRequest(r) != nil {
			return
		}
		head, _, err := u.head(r)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(bytes.NewReader(head))
		node, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q: %v", head, err)
		}
		body, _ := io.ReadAll(node.Body)
		left, _ := io.ReadAll(in)
		if len(body)+len(left) > 0 || checkRequest(node) != nil || node.RequestURI != "/t" ||
			node.Host != "node" {
			t.Fatalf("the node got %q", head)
		}
		for name, values := range node.Header {
			switch name {
			case "Connection", "Upgrade", "Sec-Websocket-Version", "Sec-Websocket-Key":
			case "Sec-Websocket-Protocol":
				if !slices.Equal(values, []string{"turnstone.v1"}) {
					t.Fatalf("the node got the subprotocols %q", values)
				}
			case "Turnstone-Tenant":
				if !slices.Equal(values, []string{"ci"}) {
					t.Fatalf("the node got the tenant %q", values)
				}
			default:
				t.Fatalf("the node got the field %s", name)
			}
		}
	})
}
