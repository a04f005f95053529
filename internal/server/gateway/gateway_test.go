package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// protocols are all ways to call.
var protocols = map[string]struct {
	two     bool
	options []connect.ClientOption
}{
	"connect json 1.1": {false, []connect.ClientOption{connect.WithProtoJSON()}},
	"connect proto 2":  {true, nil},
	"connect get":      {false, []connect.ClientOption{connect.WithHTTPGet()}},
	"grpc":             {true, []connect.ClientOption{connect.WithGRPC()}},
	"grpc-web 1.1":     {false, []connect.ClientOption{connect.WithGRPCWeb()}},
	"grpc-web json 2":  {true, []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()}},
}

// TestProtocols calls with and without a token, in all protocols.
func TestProtocols(t *testing.T) {
	s := newScene(t)
	for name, p := range protocols {
		t.Run(name, func(t *testing.T) {
			check(t, get(t.Context(), s.client(t, s.token(t), p.two, p.options...)))
			before := s.turns.called.Load()
			err := get(t.Context(), s.client(t, "", p.two, p.options...))
			refusedAs(t, err, connect.CodeUnauthenticated, "missing")
			stream, err := s.client(t, "x.y.z", p.two, p.options...).WatchTurns(t.Context(),
				connect.NewRequest(&v1.WatchTurnsRequest{}))
			if err == nil {
				for stream.Receive() {
				}
				err = stream.Err()
				_ = stream.Close()
			}
			refusedAs(t, err, connect.CodeUnauthenticated, "malformed")
			if s.turns.called.Load() != before {
				t.Error("the controller was called")
			}
		})
	}
}

// refusedAs checks an error of a call.
func refusedAs(t testing.TB, err error, code connect.Code, reason string) {
	t.Helper()
	s, ok := api.FromConnect(err).(*api.Status)
	if !ok || s.Code != code || s.Reason != reason {
		t.Errorf("%v (%+v), want %s, %s", err, s, code, reason)
	}
}

// TestChallenge has the fields of RFC 6750 and of security in an answer.
func TestChallenge(t *testing.T) {
	s := newScene(t)
	for token, want := range map[string]string{
		"":      `Bearer realm="` + serverName + `"`,
		"x.y.z": `Bearer realm="` + serverName + `", error="invalid_token", error_description="malformed"`,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			s.url()+"/turnstone.v1.TurnService/GetTurn", strings.NewReader("{}"))
		check(t, err)
		r.Header.Set("Content-Type", "application/json")
		answer, err := bearer{s.transport(t, false), token}.RoundTrip(r)
		check(t, err)
		_ = answer.Body.Close()
		if got := answer.Header.Get("WWW-Authenticate"); got != want || answer.StatusCode != 401 {
			t.Errorf("%d %s", answer.StatusCode, got)
		}
		for k, v := range headers {
			if answer.Header.Get(k) != v {
				t.Errorf("%s is %q", k, answer.Header.Get(k))
			}
		}
	}
}

// TestNoPlain: without a node in its process, a gateway says why it does not forward Exec and Run.
func TestNoPlain(t *testing.T) {
	s := newScene(t)
	for token, want := range map[string]int{"": http.StatusUnauthorized,
		s.token(t): http.StatusForbidden} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+s.at+PlainPath+"run", strings.NewReader("# A turn"))
		check(t, err)
		r.Header.Set("Content-Type", "text/markdown")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		a, err := http.DefaultClient.Do(r)
		check(t, err)
		text, err := io.ReadAll(a.Body)
		check(t, err)
		_ = a.Body.Close()
		if a.StatusCode != want || token != "" &&
			!strings.Contains(string(text), "end at the node, which is another process") {
			t.Errorf("%d: %s", a.StatusCode, text)
		}
	}
}
