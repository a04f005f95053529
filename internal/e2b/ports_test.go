package e2b

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAnswerBeforeTheBody: a server in a sandbox begins its answer before it has the request's body,
// and the caller gets all of the answer.
func TestAnswerBeforeTheBody(t *testing.T) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "begun\n")
		_ = c.Flush()
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v", body, err)
	}))
	defer guest.Close()
	d := &Door{}
	f := Found{Dial: func(ctx context.Context, _ uint16) (io.ReadWriteCloser, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	}}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.servePort(w, r, f, 80)
	}))
	defer door.Close()
	c, err := net.Dial("tcp", door.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: sandbox\r\nContent-Length: 2\r\n\r\na"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(answer.Body)
	if line, err := in.ReadString('\n'); line != "begun\n" {
		t.Fatalf("%q %v", line, err)
	}
	if _, err := io.WriteString(c, "b"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(in)
	if err != nil || strings.TrimSpace(string(rest)) != "ab <nil>" {
		t.Fatalf("%q %v", rest, err)
	}
}

// TestCookiesOfGuests: a guest sets no cookies for the sandboxes of others.
func TestCookiesOfGuests(t *testing.T) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=b; Path=/; dOmain = door.example; HttpOnly")
		w.Header().Add("Set-Cookie", "domain=x;Domain")
	}))
	defer guest.Close()
	f := Found{Dial: func(ctx context.Context, _ uint16) (io.ReadWriteCloser, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	}}
	w := httptest.NewRecorder()
	(&Door{}).servePort(w, httptest.NewRequest(http.MethodGet, "/", nil), f, 80)
	if got := w.Header()["Set-Cookie"]; len(got) != 2 || got[0] != "a=b; Path=/; HttpOnly" ||
		got[1] != "domain=x" {
		t.Errorf("%q", got)
	}
}
