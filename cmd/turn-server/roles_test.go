package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/server/config"
)

// A pair is a gateway and a controller in two processes of one user.
type pair struct {
	gateway, controller *process
	url                 string
	peers               string // where other roles reach the controller
	again               func() // starts the controller again, in its state directory
}

// startPair starts both. The settings in env are those of both. roles are those of the controller's
// process.
func startPair(t *testing.T, roles string, env ...string) *pair {
	t.Helper()
	at := "unix:" + filepath.Join(t.TempDir(), "peers.sock")
	x, home := &pair{peers: at}, filepath.Join(t.TempDir(), "home")
	x.again = func() {
		x.controller = start(t, home, append([]string{"TURN_SERVER_PEERS_LISTEN=" + at}, env...),
			"--role", roles)
	}
	x.again()
	x.gateway = start(t, filepath.Join(t.TempDir(), "home"),
		append([]string{"TURN_SERVER_PEERS_CONTROLLER=" + at}, env...), "--role", config.Gateway,
		"--listen", "127.0.0.1:0")
	x.url = "http://" + x.gateway.address()
	secret := token(t, x.controller)
	waitFor(t, func() string { // until the gateway has the controller's list of revocations
		if status, got := call(t, http.DefaultClient, x.url, secret, "TurnService/ListTurns",
			"{}"); status != http.StatusOK {
			return fmt.Sprint(status, " ", got)
		}
		return ""
	})
	return x
}

// end ends both, and reports what no log may have.
func (x *pair) end(t *testing.T, secrets ...string) {
	t.Helper()
	for _, p := range []*process{x.gateway, x.controller} {
		p.end()
		for _, s := range append(secrets, "panic", "goroutine ") {
			if strings.Contains(p.text(), s) {
				t.Errorf("the log has %.20q:\n%s", s, p.text())
			}
		}
	}
}

// A refusal is an error of the control API as JSON.
type refusal struct {
	Code    string
	Details []struct {
		Debug struct {
			Reason, RetryAfter, Hint string
			Retryable                bool
		}
	}
}

// refusalOf reads the error of an answer.
func refusalOf(t *testing.T, body string) (r refusal) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &r); err != nil || len(r.Details) != 1 {
		t.Fatalf("no error with a detail: %v: %s", err, body)
	}
	return r
}
