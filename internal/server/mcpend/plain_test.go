package mcpend

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/mcpdoor"
)

// TestPlain: one event with an answer is JSON; what begins with another message, or answers a batch, is
// events, and what is no event stays.
func TestPlain(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":1,"result":{"method":"x"}}`
	const failure = `{"id":1,"error":{"code":-32602,"message":"m"},"jsonrpc":"2.0"}`
	const told = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"result":1}}`
	event := func(data string) string { return "event: message\ndata: " + data + "\n\n" }
	for name, c := range map[string]struct {
		method, body, kind string
		status             int
		written            []string
		want, wantKind     string
	}{
		"an answer":           {written: []string{event(answer)}, want: answer, wantKind: mediaJSON},
		"an error":            {written: []string{event(failure)}, want: failure, wantKind: mediaJSON},
		"without a name":      {written: []string{"data:" + answer + "\n\n"}, want: answer, wantKind: mediaJSON},
		"in parts":            {written: strings.SplitAfter(event(answer), ""), want: answer, wantKind: mediaJSON},
		"progress":            {written: []string{event(told), event(answer)}, want: event(told) + event(answer)},
		"progress in parts":   {written: strings.SplitAfter(event(told)+event(answer), ""), want: event(told) + event(answer)},
		"two at once":         {written: []string{event(answer) + event(answer)}, want: event(answer) + event(answer)},
		"another event":       {written: []string{"event: prime\nid: 1\n\n", event(answer)}, want: "event: prime\nid: 1\n\n" + event(answer)},
		"a comment":           {written: []string{": ok\n\n", event(answer)}, want: ": ok\n\n" + event(answer)},
		"no JSON":             {written: []string{event(`{"id"`)}, want: event(`{"id"`)},
		"a batch":             {body: " \n[{}]", written: []string{event(answer), event(answer)}, want: event(answer) + event(answer)},
		"a stream":            {method: http.MethodGet, written: []string{event(answer)}, want: event(answer)},
		"JSON":                {kind: mediaJSON, status: 404, written: []string{failure}, want: failure, wantKind: mediaJSON},
		"a status":            {kind: "text/plain", status: 400, written: []string{"no\n\n"}, want: "no\n\n", wantKind: "text/plain"},
		"nothing":             {},
		"an event in between": {written: []string{"event: mess"}, want: "event: mess"},
	} {
		if c.method == "" {
			c.method = http.MethodPost
		}
		if c.body == "" {
			c.body = ` {"id":1}`
		}
		if c.kind == "" {
			c.kind = mediaEvents
		}
		if c.wantKind == "" {
			c.wantKind = mediaEvents
		}
		w := httptest.NewRecorder()
		plain(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != c.body {
				t.Errorf("%s: %q %v", name, b, err)
			}
			w.Header().Set("Content-Type", c.kind)
			if c.status != 0 {
				w.WriteHeader(c.status)
			}
			for _, text := range c.written {
				if n, err := io.WriteString(w, text); n != len(text) || err != nil {
					t.Errorf("%s: %d %v", name, n, err)
				}
				_ = http.NewResponseController(w).Flush()
			}
		})).ServeHTTP(w, httptest.NewRequest(c.method, Path, strings.NewReader(c.body)))
		if w.Body.String() != c.want || w.Header().Get("Content-Type") != c.wantKind {
			t.Errorf("%s: %q of type %q", name, w.Body, w.Header().Get("Content-Type"))
		}
		if c.status != 0 && w.Code != c.status {
			t.Errorf("%s: status %d", name, w.Code)
		}
	}
}

// largeTurns have a file of a size, and a replay that tells of itself before it goes on.
type largeTurns struct {
	mcpdoor.Turns
	size int
	goOn chan struct{}
}

func (l largeTurns) OpenFile(context.Context, string, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(strings.Repeat("\n", l.size))), nil
}

func (l largeTurns) Replay(_ context.Context, _ string, _ executor.ReplayOptions, o executor.Observer) (
	*turnstone.ReplayReport, error) {
	if o != nil {
		o.Preparing("it prepares")
		<-l.goOn
	}
	return &turnstone.ReplayReport{Same: true}, nil
}

// withToken adds a token to requests, and notes the types of the answers of calls.
type withToken struct {
	token string
	kinds chan string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	a, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && w.kinds != nil {
		w.kinds <- a.Header.Get("Content-Type")
	}
	return a, err
}

// client returns a client of an endpoint, of the newest version of the protocol or of another one.
func client(t *testing.T, e *Endpoint, version string, by withToken, told func(string)) *mcp.ClientSession {
	t.Helper()
	s := httptest.NewServer(e.Handler())
	t.Cleanup(s.Close)
	c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			told(r.Params.Message)
		}})
	session, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + Path,
		HTTPClient: &http.Client{Transport: by}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// TestLargeAnswers: an answer of any size is JSON, and progress that a client asks for is told before
// the answer, in both forms of the protocol.
func TestLargeAnswers(t *testing.T) {
	for _, version := range []string{"", "2025-11-25", "2025-03-26"} {
		turns := largeTurns{size: 8 << 20, goOn: make(chan struct{})}
		e := endpointAt(mcpdoor.Place{Turns: turns}, nil)
		kinds := make(chan string, 100)
		s := client(t, e, version, withToken{"a", kinds}, func(text string) {
			if text != "it prepares" {
				t.Errorf("told %q", text)
			}
			close(turns.goOn)
		})
		for len(kinds) > 0 {
			<-kinds
		}
		r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "turn://files/t_1/x"})
		if err != nil || len(r.Contents[0].Text) != turns.size {
			t.Fatalf("%q: %v", version, err)
		}
		if kind := <-kinds; kind != mediaJSON {
			t.Errorf("%q: a large answer is of type %s", version, kind)
		}
		params := &mcp.CallToolParams{Name: "replay", Arguments: map[string]any{"turn": "t_1"}}
		if r, err := s.CallTool(t.Context(), params); err != nil || r.IsError {
			t.Errorf("%q: %v", version, err)
		}
		if kind := <-kinds; kind != mediaJSON {
			t.Errorf("%q: a call without progress is answered with %s", version, kind)
		}
		params.SetProgressToken("p")
		if r, err := s.CallTool(t.Context(), params); err != nil || r.IsError {
			t.Errorf("%q: %v", version, err)
		}
		if kind := <-kinds; kind != mediaEvents {
			t.Errorf("%q: a call with progress is answered with %s", version, kind)
		}
		_ = s.Close()
		end(t, e)
	}
}
