package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
)

// TestRefusedTokens sends each bad token over HTTP, for a control call and for a channel.
func TestRefusedTokens(t *testing.T) {
	s := newScene(t)
	now := s.clock.Now().Unix()
	public := s.issuer.Keys()[0].Key
	revoked := s.issue(t, s.claims())
	check(t, s.publisher.Revoke(t.Context(), auth.Revocation{Issuer: serverName,
		TokenID: revoked.ID, Until: revoked.Expires}))
	old := s.token(t)
	check(t, s.publisher.Rotate(t.Context(), s.clock.Now().Add(-time.Hour)))
	for name, c := range map[string]struct {
		token  string
		reason auth.Reason
	}{
		"expired":       {s.craft(t, nil, map[string]any{"iat": now - 900, "exp": now - 600}), auth.Expired},
		"not yet valid": {s.craft(t, nil, map[string]any{"nbf": now + 600}), auth.NotYet},
		"audience":      {s.craft(t, nil, map[string]any{"aud": "https://other"}), auth.Audience},
		"issuer":        {s.craft(t, nil, map[string]any{"iss": "https://other"}), auth.WrongIssuer},
		"unknown key":   {s.craft(t, map[string]any{"kid": "other"}, nil), auth.UnknownKey},
		"none":          {unsigned(t, s), auth.Algorithm},
		"hs256":         {symmetric(t, s, public), auth.Algorithm},
		"own key":       {s.craft(t, map[string]any{"jwk": map[string]any{"kty": "OKP"}}, nil), auth.BadHeader},
		"forged":        {s.craft(t, nil, nil)[:100] + "A" + s.craft(t, nil, nil)[101:], auth.Forged},
		"rotated out":   {old, auth.UnknownKey},
		"revoked":       {revoked.Token.Reveal(), ""},
		"large":         {strings.Repeat("A", auth.MaxToken+1), auth.TooLarge},
		"malformed":     {"a.b", auth.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "revoked" {
				c.reason = auth.UnknownKey // its key was rotated, too
			}
			before := s.turns.called.Load()
			err := get(t.Context(), s.client(t, c.token, false))
			if name == "forged" && api.FromConnect(err).(*api.Status).Reason == "malformed" {
				c.reason = auth.Malformed // the changed letter broke the JSON
			}
			refusedAs(t, err, connect.CodeUnauthenticated, string(c.reason))
			if strings.Contains(err.Error(), c.token) {
				t.Errorf("the token is in %v", err)
			}
			answer := s.upgrade(t, "/turnstone/v1/nodes/n1/channel", c.token)
			if answer.StatusCode != 401 || !strings.Contains(answer.Header.Get("WWW-Authenticate"),
				string(c.reason)) {
				t.Errorf("the channel: %d %s", answer.StatusCode, answer.Header)
			}
			if s.turns.called.Load() != before || len(s.where.asked) > 0 {
				t.Error("the controller was called")
			}
		})
	}
	s.works(t)
}

func unsigned(t *testing.T, s *scene) string {
	p := strings.Split(s.craft(t, map[string]any{"alg": "none"}, nil), ".")
	return p[0] + "." + p[1] + "."
}

// symmetric signs with the public key as the secret of HS256.
func symmetric(t *testing.T, s *scene, public []byte) string {
	t.Helper()
	p := strings.Split(s.craft(t, map[string]any{"alg": "HS256"}, nil), ".")
	m := hmac.New(sha256.New, public)
	m.Write([]byte(p[0] + "." + p[1]))
	return p[0] + "." + p[1] + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// upgrade asks for a channel and returns the answer, which has no body that matters.
func (s *scene) upgrade(t testing.TB, path, token string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url()+path, nil)
	check(t, err)
	for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
		"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} {
		r.Header.Set(k, v)
	}
	answer, err := bearer{s.transport(t, false), token}.RoundTrip(r)
	check(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// TestTokenOfAMegabyte is refused by the bound of heads, before it is a token, on both versions.
func TestTokenOfAMegabyte(t *testing.T) {
	s := newScene(t)
	for _, two := range []bool{false, true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url()+HealthPath, nil)
		check(t, err)
		r.Header.Set("Authorization", "Bearer "+strings.Repeat("A", 1<<20))
		answer, err := s.transport(t, two).RoundTrip(r)
		// HTTP/2: the client knows the limit from the settings, or the connection ends.
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("HTTP/2 %v: %d", two, answer.StatusCode)
			}
		} else if !two {
			t.Error(err)
		}
		s.works(t)
	}
}

// TestStale refuses all tokens when the controller is silent for too long, and says that a retry
// may help.
func TestStale(t *testing.T) {
	s := newScene(t)
	s.time.up.Add(int64(2 * time.Hour))
	s.time.wall.Add(int64(2 * time.Hour))
	err := get(t.Context(), s.client(t, s.token(t), true))
	refusedAs(t, err, connect.CodeUnavailable, "stale")
	if !api.Retryable(api.FromConnect(err)) || api.RetryAfter(api.FromConnect(err)) == 0 {
		t.Errorf("not retryable: %+v", api.FromConnect(err))
	}
	if got := s.upgrade(t, ReadyPath, "").StatusCode; got != http.StatusServiceUnavailable {
		t.Errorf("ready: %d", got)
	}
	check(t, s.publisher.Beat(t.Context()))
	s.works(t)
	if got := s.upgrade(t, ReadyPath, "").StatusCode; got != http.StatusOK {
		t.Errorf("ready: %d", got)
	}
}

// TestClockJumps: a clock that is set back makes no expired token valid, and one that is set forward
// ends streams.
func TestClockJumps(t *testing.T) {
	s := newScene(t, limits(Limits{Recheck: time.Millisecond}))
	short := s.claims()
	short.Expires = s.clock.Now().Add(2 * time.Minute)
	token := s.issue(t, short).Token.Reveal()
	c := s.client(t, token, true)
	stream := watching(t, c)
	s.time.wall.Add(int64(10 * time.Minute)) // by NTP after a boot
	refusedAs(t, ended(stream), connect.CodeUnauthenticated, "expired")
	refusedAs(t, get(t.Context(), c), connect.CodeUnauthenticated, "expired")
	s.time.wall.Add(int64(-10 * time.Minute)) // set back: the token stays expired
	refusedAs(t, get(t.Context(), c), connect.CodeUnauthenticated, "expired")
}

func watching(t testing.TB, c connectv1.TurnServiceClient) *connect.ServerStreamForClient[v1.WatchTurnsResponse] {
	t.Helper()
	stream, err := c.WatchTurns(t.Context(), connect.NewRequest(&v1.WatchTurnsRequest{}))
	check(t, err)
	t.Cleanup(func() { _ = stream.Close() })
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	return stream
}

// ended waits for the end of a stream.
func ended(s *connect.ServerStreamForClient[v1.WatchTurnsResponse]) error {
	for s.Receive() {
	}
	return s.Err()
}

// TestRevoked ends streams of a revoked token, in all protocols, and no others.
func TestRevoked(t *testing.T) {
	s := newScene(t, limits(Limits{Recheck: time.Millisecond}))
	for name, p := range protocols {
		t.Run(name, func(t *testing.T) {
			token := s.issue(t, s.claims())
			stream := watching(t, s.client(t, token.Token.Reveal(), p.two, p.options...))
			other := watching(t, s.client(t, s.token(t), p.two, p.options...))
			check(t, s.publisher.Revoke(t.Context(), auth.Revocation{Issuer: serverName,
				TokenID: token.ID, Until: token.Expires}))
			refusedAs(t, ended(stream), connect.CodeUnauthenticated, "revoked")
			if other.Err() != nil {
				t.Error(other.Err())
			}
		})
	}
}

// TestOperator takes the principal of a connection without a token, and no header makes one.
func TestOperator(t *testing.T) {
	operator := func(_ *Options, o *ServeOptions) { o.Context = asOperator }
	check(t, get(t.Context(), newScene(t, operator).client(t, "", false)))
}

// TestPaths: what is not for callers is not there.
func TestPaths(t *testing.T) {
	s := newScene(t)
	for path, status := range map[string]int{
		"/turnstone.v1.ControllerService/LocateChannel":         404,
		"/turnstone.v1.NodeService/GetNode":                     404,
		"/":                                                     404,
		"/debug/pprof/":                                         404,
		"/turnstone/v1/nodes/n1/other":                          404,
		"/turnstone/v1/nodes/..%2Fx/channel":                    400,
		"/turnstone/v1/sandboxes/sb_1%0d%0aX:y/channel":         400,
		"/turnstone/v1/nodes/none/channel":                      404,
		"/turnstone/v1/sandboxes/sb_0123456789abcdefgh/channel": 404,
		HealthPath: 200,
		ReadyPath:  200,
	} {
		answer := s.upgrade(t, path, s.token(t))
		b, err := io.ReadAll(answer.Body)
		check(t, err)
		if answer.StatusCode != status {
			t.Errorf("%s: %d %s", path, answer.StatusCode, b)
		}
		if status >= 400 && !json.Valid(b) {
			t.Errorf("%s: %s", path, b)
		}
	}
}

// TestServices: each service with methods for callers is passed on, and no other one.
func TestServices(t *testing.T) {
	n := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("turnstone.v1",
		func(f protoreflect.FileDescriptor) bool {
			for i := range f.Services().Len() {
				d := f.Services().Get(i)
				scoped := api.ScopeOf(connect.Spec{Schema: d.Methods().Get(0)}) != ""
				if scoped != slices.Contains(services, string(d.FullName())) {
					t.Errorf("%s is for callers: %v", d.FullName(), scoped)
				}
				n++
			}
			return true
		})
	if n < len(services)+2 {
		t.Errorf("%d services", n)
	}
}

func asOperator(ctx context.Context, _ net.Conn) context.Context {
	return auth.NewContext(ctx, auth.Operator("0"))
}
