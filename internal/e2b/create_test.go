package e2b_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// TestTimeUnsaid: a sandbox whose request names no time has E2B's, which is another one in version 2.
func TestTimeUnsaid(t *testing.T) {
	s := newScene(t)
	for _, c := range []struct {
		path, body string
		want       time.Duration
	}{
		{"/sandboxes", `{}`, 15 * time.Second},
		{"/v2/sandboxes", `{}`, 5 * time.Minute},
		{"/v2/sandboxes", `{"timeout": 20}`, 20 * time.Second},
	} {
		status, text, _ := s.do(t, "POST", c.path, c.body, "X-Api-Key", "good")
		var a struct{ SandboxID string }
		if err := json.Unmarshal([]byte(text), &a); err != nil || status != http.StatusCreated {
			t.Fatal(status, text, err)
		}
		if got := s.limits[a.SandboxID]; got != c.want {
			t.Errorf("%s with %s: the sandbox ends in %s, want %s", c.path, c.body, got, c.want)
		}
	}
}
