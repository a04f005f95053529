package router

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
