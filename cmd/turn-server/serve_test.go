package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCheckConfig: the settings are printed, or each error with its place and status 2.
func TestCheckConfig(t *testing.T) {
	c := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_SERVER_LOG_LEVEL=debug"}}
	if _, err := os.Stat(filepath.Join(bin(t), "turn-server")); err != nil {
		t.Skip("make build has not built turn-server")
	}
	out := c.must("serve", "--check-config", "--role", "gateway,controller,node")
	if !strings.Contains(out, "level = \"debug\"\n") ||
		!strings.Contains(out, "socket = \""+c.home+"/server.sock\"\n") {
		t.Error(out)
	}
	file := filepath.Join(t.TempDir(), "s.toml")
	check(t, os.WriteFile(file, []byte("[limits]\nidel = \"5m\"\nrate = \"x\"\n"), 0o600))
	_, errs, err := c.turn("serve", "--check-config", "--config", file, "--role", "gate")
	if err == nil || !strings.Contains(err.Error(), "status 2") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"turn: " + file + ":2: limits.idel: is not a setting",
		"turn: " + file + ":3: limits.rate: ", "turn: --role: roles: \"gate\" is not one of"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in %s", want, errs)
		}
	}
	_, errs, err = c.turn("serve", "--listen", "0.0.0.0:0")
	if err == nil || !strings.Contains(errs, "without TLS") {
		t.Errorf("%v: %s", err, errs)
	}
}

// call calls the control API as curl would, and returns the status and the answer.
func call(t *testing.T, h *http.Client, url, token, method, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url+"/turnstone.v1."+method,
		strings.NewReader(body))
	check(t, err)
	repeatable(req)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := h.Do(req)
	check(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(b)
}

// repeatable lets net/http send a request again if the server closes its idle connection meanwhile.
// The header itself is not sent.
func repeatable(r *http.Request) { r.Header["Idempotency-Key"] = []string{} }

// TestControl: a control call needs a token; what cannot be served is refused when the server
// starts.
func TestControl(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	p := start(t, home, nil, "--role", "controller,gateway,node", "--listen", "127.0.0.1:0")
	url, secret := "http://"+p.address(), token(t, p)
	p.await("node registered")
	if status, got := call(t, http.DefaultClient, url, "", "ServerService/ListNodes", "{}"); status !=
		http.StatusUnauthorized {
		t.Errorf("%d %s", status, got)
	}
	status, got := call(t, http.DefaultClient, url, secret, "ServerService/ListNodes", "{}")
	if status != http.StatusOK || !strings.Contains(got, `"ssh-ed25519 `) {
		t.Errorf("%d %s", status, got)
	}
	if status, got = call(t, http.DefaultClient, url, secret, "ControllerService/RegisterNode",
		"{}"); status != http.StatusNotFound {
		t.Errorf("callers reach the roles' service: %d %s", status, got)
	}
	second := &client{t, home, nil}
	if _, err := os.Stat(filepath.Join(bin(t), "turn-server")); err == nil {
		_, errs, err := second.turn("serve", "--listen", "127.0.0.1:0")
		if err == nil || !strings.Contains(errs, "another running server with the role") {
			t.Errorf("%v: %s", err, errs)
		}
	}
	p.kill(syscall.SIGHUP)
	p.end()
	if strings.Contains(p.text(), secret) {
		t.Error("the log has the token")
	}
	if _, err := os.Stat(filepath.Join(home, "server.sock")); err == nil {
		t.Error("the socket is left")
	}
}
