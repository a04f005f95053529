package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/network/recording"
)

// TestStatusBelow100 checks that the guest gets an answer if a host's status is none of HTTP's
// (RFC 9110, section 15), and the same answer in a replay.
func TestStatusBelow100(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 042 odd\r\nContent-Length: 2\r\n\r\nok")
			}
			_ = c.Close()
		}
	}()
	web := site{name: "web.example.com", to: netip.MustParseAddrPort("192.0.2.2:80"),
		real: l.Addr().String()}
	rec, path := recordInto(t, recording.Options{})
	p := newProxied(t, Options{Recorder: rec}, web)
	status, body := p.get(p.client(nil), "http://web.example.com:80/")
	if status != http.StatusBadGateway || !strings.Contains(body, "status 042") {
		t.Errorf("%d %s", status, body)
	}
	q := newProxied(t, Options{Player: rerun(t, rec, path, nil)}, web)
	if again, text := q.get(q.client(nil), "http://web.example.com:80/"); again != status ||
		text != body {
		t.Errorf("replayed: %d %q, want %q", again, text, body)
	}
}
