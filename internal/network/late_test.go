package network

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A guest that waits until its connection was handed on is looked at all the same.
func TestLateGreetingIsInterceptedToo(t *testing.T) {
	for what, want := range map[string]string{"bad.example": "reset", "good.example": "echo"} {
		t.Run(what, func(t *testing.T) {
			took := make(chan struct{}, 1)
			w := newWorld(t, Options{Policy: Policy{Deny: rules(t, "bad.example")},
				Interceptor: intercept(func(_ context.Context, guest net.Conn, _ Target) bool {
					took <- struct{}{}
					_, _ = io.Copy(guest, guest)
					return true
				})})
			w.host.listen("198.51.100.1:443", echo)
			c := w.mustDial("198.51.100.1:443")
			defer c.Close()
			<-took
			hello := clientHello(t, what)
			_, _ = c.Write(hello)
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, err := io.ReadFull(c, make([]byte, len(hello)))
			if got := err == nil; got != (want == "echo") || !got && !strings.Contains(err.Error(), "reset") {
				t.Fatal(err)
			}
			if want == "reset" {
				if r := w.log.lastRefusal(t); r.Reason != "in deny: bad.example" {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// TestDeniedNameInARequest holds that a name that is denied is refused in each request,
// also on a connection to an address that no name is known of.
func TestDeniedNameInARequest(t *testing.T) {
	plain, _ := testServer(t, false)
	rec, _ := recordInto(t, RecorderOptions{})
	web := at("", "192.0.2.2:80", plain)
	p := newProxied(t, ProxyOptions{Recorder: rec}, web)
	j := newJudge(Policy{Deny: rules(t, "bad.example", "*.bad.example:80", "other.example:81")}, edgeIsOwn)
	p.request = func(host string) string { return j.check(web.to, nil).request(host, newNames(1, time.Hour)) }
	c := p.connect(web)
	answers(t, c, []answered{{"good.example", 200}, {"bad.example", 403}, {"good.example", 200}, {"A.Bad.Example.:80", 403}, {"other.example", 200}})
}

// An answered is a request's host and the status that it is to get.
type answered struct {
	host string
	want int
}

// answers sends requests over c, one after the other.
func answers(t *testing.T, c net.Conn, all []answered) {
	t.Helper()
	br := bufio.NewReader(c)
	for _, q := range all {
		_, _ = c.Write(httpRequest(q.host))
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(q.host, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode != q.want {
			t.Errorf("%s: %s, want %d", q.host, res.Status, q.want)
		}
	}
}

// TestIndexOfManyValues holds that a small index does not become a large Recording.
func TestIndexOfManyValues(t *testing.T) {
	index := `{"format":1,"streams":[{"pieces":[{}` + strings.Repeat(",{}", maxValues/2) + `]}]}`
	if _, err := Decode([]byte(index), 0); err == nil || !strings.Contains(err.Error(), "values") {
		t.Error(err)
	}
	r := &Recording{Format: RecordFormat, Answers: []RecordedRequest{{Method: "GET", URL: `http://a/?"\{[,`, Status: 200}}}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if n := values(b); n > 10 {
		t.Errorf("%d values in %s", n, b)
	}
	if _, err := Decode(b, 0); err != nil {
		t.Error(err)
	}
}
