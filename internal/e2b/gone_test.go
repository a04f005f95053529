package e2b_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/e2b/envdapi/process"
	"turnstone.dev/turnstone/internal/e2b/envdapi/process/processconnect"
)

var errLost = turnstone.Errorf("test", turnstone.KindUnavailable, "the sandbox", "does not answer")

// lose ends all connections to the agent. refuse decides about new connections; nil: all are accepted.
func (g *world) lose(refuse func(id string) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = refuse
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

// end forgets a sandbox.
func (g *world) end(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(s *v1.Sandbox) bool { return s.SandboxId == id })
}

// follow starts a command that does not end, and returns what is said of it after its start.
func (s *scene) follow(t *testing.T, id, token string) *connect.ServerStreamForClient[process.StartResponse] {
	t.Helper()
	q := connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "sleep", Args: []string{"1000"}}})
	q.Header().Set("E2b-Sandbox-Id", id)
	q.Header().Set("X-Access-Token", token)
	stream, err := processconnect.NewProcessClient(http.DefaultClient, s.url).Start(t.Context(), q)
	if err != nil || !stream.Receive() || stream.Msg().GetEvent().GetStart() == nil {
		t.Fatal(err, stream.Err())
	}
	return stream
}

// TestGone: the answer about a command is cut off where its sandbox has ended, as soon as requests are told so, which
// may be after the connection was lost. One that continues, such as after a fork, says what has happened.
func TestGone(t *testing.T) {
	s := newScene(t)
	id, token := s.create(t, `{}`)
	at := []string{"E2b-Sandbox-Id", id, "X-Access-Token", token}
	stream := s.follow(t, id, token)
	s.lose(nil)
	for stream.Receive() {
	}
	if err := stream.Err(); !connect.IsWireError(err) || connect.CodeOf(err) != connect.CodeUnavailable ||
		!strings.Contains(err.Error(), "ended before the process") {
		t.Errorf("of a sandbox that continues: %v", err)
	}
	if status, _, _ := s.do(t, "GET", "/health", "", at...); status != 204 {
		t.Error(status)
	}

	stream = s.follow(t, id, token)
	looks := make(chan string)
	s.mu.Lock()
	s.looks = looks
	s.mu.Unlock()
	s.lose(func(string) error { return errLost }) // its end is not known yet
	for range 3 {
		<-looks
	}
	s.end(id)
	for stream.Receive() {
	}
	if err := stream.Err(); err == nil || connect.IsWireError(err) {
		t.Errorf("of a sandbox that has ended: %v", err)
	}
	if status, text, _ := s.do(t, "GET", "/health", "", at...); status != 502 || !strings.Contains(text, "was not found") {
		t.Error(status, text)
	}
}

// TestGoneBeforeAnAnswer: calls that have no answer yet are told that the sandbox is not there.
func TestGoneBeforeAnAnswer(t *testing.T) {
	s := newScene(t)
	for path, want := range map[string]int{"/process.Process/List": 503, "/filesystem.Filesystem/Stat": 503, "/files?path=/x": 502} {
		s.lose(nil)
		id, token := s.create(t, `{}`)
		s.lose(func(id string) error { s.end(id); return errLost })
		method := "POST"
		if strings.HasPrefix(path, "/files?") {
			method = "GET"
		}
		status, text, _ := s.do(t, method, path, "{}", "E2b-Sandbox-Id", id, "X-Access-Token", token,
			"Content-Type", "application/json")
		if status != want || !strings.Contains(text, "was not found") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}
