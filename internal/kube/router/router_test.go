package router

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// A fake has one sandbox that is ready, and one that is paused.
type fake struct{ asked []string }

func (f *fake) List(_ context.Context, namespace, by string) ([]*v1.Sandbox, error) {
	f.asked = append(f.asked, by)
	if namespace != "default" {
		return nil, nil
	}
	return []*v1.Sandbox{{SandboxId: "sb_1", State: v1.SandboxState_SANDBOX_STATE_READY,
		Paused: by == agents.Managed("c", namespace, "paused")}}, nil
}

func (f *fake) Open(context.Context, string, string) (io.ReadWriteCloser, error) {
	return nil, errors.New("its text is nobody's business")
}

func TestWhom(t *testing.T) {
	f := &fake{}
	h := New(Options{Server: f, Cluster: "c", Log: slog.New(slog.DiscardHandler), Network: true})
	for _, c := range []struct {
		id, namespace, port string
		status              int
	}{
		{"", "", "", http.StatusBadRequest},
		{"../a", "", "", http.StatusBadRequest},
		{"a", "UPPER", "", http.StatusBadRequest},
		{"a", "", "0", http.StatusBadRequest},
		{"a", "", "70000", http.StatusBadRequest},
		{"a", "other", "", http.StatusNotFound},
		{"paused", "", "", http.StatusNotFound},
		{"a", "", "", http.StatusBadGateway}, // it is found, and does not answer
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for name, value := range map[string]string{"X-Sandbox-ID": c.id, "X-Sandbox-Namespace": c.namespace, "X-Sandbox-Port": c.port} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%+v: status %d: %s", c, w.Code, w.Body)
		}
	}
	for _, by := range f.asked {
		if !strings.HasPrefix(by, "kubernetes/c/") || strings.Count(by, "/") != 4 || !strings.HasSuffix(by, "/") {
			t.Errorf("sandboxes of other clusters or objects were asked for: %s", by)
		}
	}
}

// TestPages: without Network, a page that reaches the router by a name of its own, or from its site, is
// refused, and a program of this machine is not.
func TestPages(t *testing.T) {
	s := httptest.NewServer(New(Options{Server: &fake{}, Cluster: "c", Log: slog.New(slog.DiscardHandler)}))
	defer s.Close()
	_, port, _ := strings.Cut(s.Listener.Addr().String(), ":")
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{"", "", http.StatusBadGateway},
		{"localhost:" + port, "", http.StatusBadGateway},
		{"rebound.example:" + port, "", http.StatusForbidden},
		{"", "https://page.example", http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		r.Header.Set(idHeader, "a")
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != c.status {
			t.Errorf("%+v: status %d", c, answer.StatusCode)
		}
	}
}

func FuzzTarget(f *testing.F) {
	f.Add("a", "default", "8888")
	f.Add("", "\x00", "-1")
	f.Fuzz(func(t *testing.T, id, namespace, port string) {
		h := http.Header{idHeader: {id}, namespaceHeader: {namespace}, portHeader: {port}}
		got, in, number, err := target(h)
		if err == nil && (!name.MatchString(got) || !name.MatchString(in) || number == 0) {
			t.Errorf("%q %q %d", got, in, number)
		}
	})
}

// TestObjects: the server is asked only about objects that there are, and by their UIDs, so whoever invents
// namespaces costs it nothing, and nobody reaches the sandbox of an object that had the name before.
func TestObjects(t *testing.T) {
	f := &fake{}
	h := New(Options{Server: f, Cluster: "c", Log: slog.New(slog.DiscardHandler), Network: true,
		UID: func(_ context.Context, namespace, name string) (string, error) {
			if namespace != "default" || name != "a" {
				return "", turnstone.Errorf("test", turnstone.KindNotFound, name, "is not there")
			}
			return "u1", nil
		}})
	ask := func(headers ...string) int {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for i := range 100 {
		if got := ask(idHeader, "a", namespaceHeader, fmt.Sprint("n", i)); got != http.StatusNotFound {
			t.Fatalf("an invented namespace: %d", got)
		}
	}
	if len(f.asked) != 0 {
		t.Errorf("the server was asked about %q", f.asked)
	}
	if got := ask(idHeader, "a"); got != http.StatusBadGateway || len(f.asked) != 1 || f.asked[0] != "kubernetes/c/default/a/u1" {
		t.Errorf("%d, and the server was asked about %q", got, f.asked)
	}
	for _, name := range []string{idHeader, namespaceHeader, portHeader} {
		if got := ask(idHeader, "a", namespaceHeader, "default", portHeader, "80", name, "b"); got != http.StatusBadRequest {
			t.Errorf("%s twice: %d", name, got)
		}
	}
}

// TestShares: a namespace alone has half of all, another one half of the rest, and what was given back is
// there again.
func TestShares(t *testing.T) {
	s := shares{most: 100}
	for _, c := range []struct {
		namespace string
		some      int
		want      bool
	}{{"a", 51, false}, {"a", 50, true}, {"a", 1, false}, {"b", 26, false}, {"b", 25, true}, {"c", 13, true}} {
		if got := s.take(c.namespace, c.some); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	k := &kept{of: &s, namespace: "a"}
	s.leave("a", 50)
	if !k.take(20) || !k.take(11) || k.take(1) {
		t.Errorf("a has %d of %d", s.of["a"], s.sum)
	}
	k.leave()
	s.leave("b", 25)
	s.leave("c", 13)
	if s.sum != 0 || len(s.of) != 0 {
		t.Errorf("%d are left of %v", s.sum, s.of)
	}
}

// TestOutputs: commands of one namespace that print without end fill its part of the memory, and no more.
func TestOutputs(t *testing.T) {
	s := shares{most: maxKept}
	all := make([]*head, 20)
	for i := range all {
		all[i] = &head{kept: &kept{of: &s, namespace: "flood"}}
	}
	line := make([]byte, 64<<10)
	for range maxOutput / len(line) {
		for _, h := range all {
			if n, err := h.Write(line); n != len(line) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	sum := 0
	for _, h := range all {
		sum += h.b.Len()
	}
	if sum > maxKept/2 {
		t.Errorf("they keep %d bytes", sum)
	}
	quiet := &head{kept: &kept{of: &s, namespace: "quiet"}}
	_, _ = quiet.Write([]byte("hello"))
	if quiet.text() != "hello" {
		t.Errorf("another namespace's command printed %q", quiet.text())
	}
}

// TestServe: callers with long heads are refused, and the end of the server ends one that says nothing.
func TestServe(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, l, New(Options{Server: &fake{}, Cluster: "c", Log: slog.New(slog.DiscardHandler)}))
	}()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	// The server may close the connection before all is written.
	_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nX-A: " + strings.Repeat("a", 64<<10) + "\r\n\r\n"))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Errorf("the answer is %q, %v", line, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
