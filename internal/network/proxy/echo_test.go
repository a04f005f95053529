package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/recording"
)

// TestEchoes checks that the guest does not get a secret that a host sends back in other places
// than an answer's headers and body.
func TestEchoes(t *testing.T) {
	const value = "sesame-open-0123456789"
	for what, answer := range map[string]string{
		"no answer at all": "%s\r\n\r\n",
		"a status of it":   "HTTP/1.1 %s no\r\n\r\n",
		"hints": "HTTP/1.1 103 Early Hints\r\nLink: <%s>\r\n\r\n" +
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"trailers": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" +
			"Trailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: %s\r\n\r\n",
		"unannounced trailers": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n" +
			"0\r\nX-Sum: %s\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			got := make(chan string, 8)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					req, err := http.ReadRequest(bufio.NewReader(c))
					if err != nil {
						c.Close()
						continue
					}
					got <- req.Header.Get("X-Other")
					_, _ = fmt.Fprintf(c, answer, req.Header.Get("X-Other"))
					c.Close()
				}
			}()
			api := site{name: "api.example.com", to: netip.MustParseAddrPort("192.0.2.1:80"),
				real: l.Addr().String()}
			p := newProxied(t, Options{Headers: []turnstone.SecretHeader{networktest.Header(t,
				"http://api.example.com=X-Other: "+value)}}, api)
			c := p.connect(api)
			_, _ = io.WriteString(c,
				"GET / HTTP/1.1\r\nHost: api.example.com\r\nTE: trailers\r\nConnection: close\r\n"+
					"\r\n")
			b, _ := io.ReadAll(c)
			if sent := <-got; sent != value {
				t.Fatalf("the host got %q", sent)
			}
			if text := string(b); strings.Contains(text, "sesame") ||
				!strings.Contains(text, strings.Repeat("*", len(value))) &&
					!strings.Contains(text, "no answer") {
				t.Errorf("the guest got %q", text)
			}
		})
	}
}

// TestRecordingTakesNoMemory checks that a recording's memory is bounded for long addresses,
// methods and headers of many requests.
func TestRecordingTakesNoMemory(t *testing.T) {
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	long := strings.Repeat("<", 60<<10)
	for what, add := range map[string]func(*recording.Recorder){
		"addresses": func(r *recording.Recorder) {
			r.Request("GET", "http://a.example/?"+long,
				netip.AddrPort{})
		},
		"methods": func(r *recording.Recorder) {
			r.Request(long, "http://a.example/",
				netip.AddrPort{})
		},
		"headers": func(r *recording.Recorder) {
			q := r.Request("GET", "http://a.example/", netip.AddrPort{})
			q.Answered(200, http.Header{"X": {long, long}})
			q.Ended(nil)
		},
		"failures": func(r *recording.Recorder) {
			r.Stream(recording.Stream{Host: "a.example", Protocol: recording.ProtocolTCP,
				Failed: long})
		},
	} {
		r := recording.NewRecorder(recording.Options{Out: out})
		for range 2000 {
			add(r)
		}
		rec := r.Finish()
		kept := 0
		for _, a := range rec.Answers {
			kept += len(a.URL) + len(a.Method) + len(a.Failed)
			for _, v := range a.Header {
				kept += len(strings.Join(v, ""))
			}
			if err := a.Check(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for _, s := range rec.Streams {
			kept += len(s.Failed)
		}
		if rec.Cut == "" || kept > recording.MaxTexts/4 {
			t.Errorf("%s: %s are kept, cut: %q", what, turnstone.Bytes(kept).Human(), rec.Cut)
		}
	}
}

// TestRequestOfManyHeaders checks that a request that would use much memory is refused.
func TestRequestOfManyHeaders(t *testing.T) {
	plain, _ := testServer(t, false)
	web := at("web.example.com", "192.0.2.2:80", plain)
	rec, _ := recordInto(t, recording.Options{})
	p := newProxied(t, Options{Recorder: rec}, web)
	c := p.connect(web)
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	go func() {
		bw := bufio.NewWriter(c)
		_, _ = io.WriteString(bw, "GET / HTTP/1.1\r\nHost: web.example.com\r\n")
		for i := range 60_000 {
			_, _ = fmt.Fprintf(bw, "h%d:\r\n", i)
		}
		_, _ = io.WriteString(bw, "\r\n")
		_ = bw.Flush()
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%v %v", res, err)
	}
}
