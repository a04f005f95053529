package main

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gobwas/ws"

	"turnstone.dev/turnstone/internal/server/config"
)

// killed ends a process as a crash does.
func killed(p *process) {
	p.kill(syscall.SIGKILL)
	<-p.done
}

// channel opens the WebSocket of a node's channel. The error is that of the upgrade.
func channel(t *testing.T, gateway, secret string) (net.Conn, error) {
	t.Helper()
	at := strings.TrimPrefix(gateway, "http://")
	d := ws.Dialer{Header: ws.HandshakeHeaderHTTP(http.Header{"Authorization": {"Bearer " + secret}})}
	c := dial(t, at, 1)
	_, _, err := d.Upgrade(c, &url.URL{Scheme: "ws", Host: at, Path: "/turnstone/v1/nodes/n1/channel"})
	return c, err
}

// TestCrashes: a node that crashes while the gateway relays ends its channels and nothing else; while
// the controller is away, callers get an error that says to try again, and once the gateway may have
// missed a revocation, it refuses all tokens. Both are there again after their restart.
func TestCrashes(t *testing.T) {
	x := startPair(t, config.Controller, "TURN_SERVER_TOKENS_REVOCATIONS=5s")
	home := filepath.Join(t.TempDir(), "home")
	env := []string{"TURN_SERVER_NODE_NAME=n1", "TURN_SERVER_PEERS_CONTROLLER=" + x.peers,
		"TURN_SERVER_PEERS_LISTEN=unix:" + filepath.Join(t.TempDir(), "node.sock")}
	node := start(t, home, env, "--role", config.Node)
	node.await("node registered")
	secret := token(t, x.controller)
	open, err := channel(t, x.url, secret)
	check(t, err)
	killed(node)
	_ = ends(t, open)
	others(t, x.gateway.address())
	if _, err := channel(t, x.url, secret); err == nil || !strings.Contains(err.Error(), "50") {
		t.Errorf("a channel to a node that is gone: %v", err)
	}
	if status, got := call(t, http.DefaultClient, x.url, secret, "TurnService/ListTurns",
		"{}"); status != http.StatusOK {
		t.Errorf("%d %s", status, got)
	}
	node = start(t, home, env, "--role", config.Node)
	node.await("node registered")
	open, err = channel(t, x.url, secret)
	check(t, err)

	killed(x.controller)
	seen := map[string]bool{}
	waitFor(t, func() string {
		status, got := call(t, http.DefaultClient, x.url, secret, "TurnService/ListTurns", "{}")
		r := refusalOf(t, got)
		if status != http.StatusServiceUnavailable || !r.Details[0].Debug.Retryable ||
			r.Details[0].Debug.Hint == "" {
			t.Fatalf("while the controller is away: %d %s", status, got)
		}
		if seen[r.Details[0].Debug.Reason] = true; !seen["stale"] {
			return got
		}
		return ""
	})
	_ = ends(t, open) // its token may be revoked
	others(t, x.gateway.address())
	x.again()
	waitFor(t, func() string {
		status, got := call(t, http.DefaultClient, x.url, secret, "TurnService/ListTurns", "{}")
		if status != http.StatusOK {
			return fmt.Sprint(status, " ", got)
		}
		open, err = channel(t, x.url, secret) // the node has registered, too
		if err != nil {
			return err.Error()
		}
		return ""
	})
	node.end()
	_ = ends(t, open)
	x.end(t, secret)
}

// TestSettings: settings of a file and of variables have the same effect in a server.
func TestSettings(t *testing.T) {
	for _, form := range []string{"file", "variables"} {
		t.Run(form, func(t *testing.T) {
			dir, home := t.TempDir(), filepath.Join(t.TempDir(), "home")
			check(t, os.Mkdir(home, 0o700))
			socket, database := filepath.Join(dir, "op.sock"), filepath.Join(dir, "r.db")
			env := []string{"TURN_SERVER_NAME=https://turn.example.org", "TURN_SERVER_PLAINTEXT=off",
				"TURN_SERVER_LISTEN_ADDRESS=127.0.0.1:0", "TURN_SERVER_LISTEN_SOCKET=" + socket,
				"TURN_SERVER_LISTEN_PROXIES=127.0.0.0/8", "TURN_SERVER_RECORDS_DATABASE=" + database,
				"TURN_SERVER_NODE_NAME=n7", "TURN_SERVER_LIMITS_RATE=5", "TURN_SERVER_LIMITS_BURST=20"}
			if form == "file" {
				env = nil
				check(t, os.WriteFile(filepath.Join(home, config.File), fmt.Appendf(nil, `
name = "https://turn.example.org"
plaintext = "off"
[listen]
address = "127.0.0.1:0"
socket = %q
proxies = ["127.0.0.0/8"]
[records]
database = %q
[node]
name = "n7"
[limits]
rate = 5
burst = 20
`, socket, database), 0o600))
			}
			p := start(t, home, env)
			p.await("node registered")
			operator := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=unix:" + socket}}
			secret := strings.TrimSpace(operator.must("token", "create", "--name", "ci", "--ttl", "1h"))
			at := "http://" + p.address()
			if status, got := call(t, http.DefaultClient, at, secret, "ServerService/ListNodes",
				"{}"); status != http.StatusOK || !strings.Contains(answering(got), `"n7"`) {
				t.Errorf("node.name: %d %s", status, got)
			}
			if _, err := os.Stat(database); err != nil {
				t.Errorf("records.database: %v", err)
			}
			if _, err := os.Stat(filepath.Join(home, "server.sock")); err == nil {
				t.Error("listen.socket: there is another one")
			}
			answers := ways(t, at, secret)
			if a := answers[len(answers)-1]; a.StatusCode != http.StatusForbidden {
				t.Errorf("plaintext: %s", a.Status)
			}
			r, err := http.NewRequest(http.MethodPost, at+"/turnstone.v1.TurnService/ListTurns", nil)
			check(t, err)
			r.Header.Set("Content-Type", "application/json")
			a, err := http.DefaultClient.Do(r)
			check(t, err)
			_ = a.Body.Close()
			if got := a.Header.Get("WWW-Authenticate"); got != `Bearer realm="https://turn.example.org"` {
				t.Errorf("name: %s", got)
			}
			others(t, p.address())
			proxied(t, at)
			p.end()
		})
	}
}

// proxied: the caller is whom a trusted proxy names, and has the rate of its own address.
func proxied(t *testing.T, url string) {
	t.Helper()
	ask := func(address string) int {
		r, err := http.NewRequest(http.MethodGet, url+"/healthz", nil)
		check(t, err)
		r.Header.Set("X-Forwarded-For", address)
		a, err := http.DefaultClient.Do(r)
		check(t, err)
		_ = a.Body.Close()
		return a.StatusCode
	}
	for n := 0; ask("192.0.2.1") == http.StatusOK; n++ {
		if n > 20_000 {
			t.Fatal("listen.proxies: an address has no rate")
		}
	}
	if got := ask("192.0.2.2"); got != http.StatusOK {
		t.Errorf("listen.proxies: another address gets %d", got)
	}
}
