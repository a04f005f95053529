package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/peers"
	"turnstone.dev/turnstone/internal/server/peers/peerstest"
)

// certified are a gateway and a controller whose certificates a test replaces.
type certified struct {
	t                   *testing.T
	authority           string // of both roles
	roles               map[string]config.Peers
	web                 config.Peers // of the gateway, for callers
	homes               map[string]string
	at                  string // of the controller
	gateway, controller *process
	gatewayAt           string
}

func (c *certified) start(role string) {
	c.t.Helper()
	p := c.roles[role]
	env := []string{"TURN_SERVER_PEERS_AUTHORITY=" + c.authority,
		"TURN_SERVER_PEERS_CERTIFICATE=" + p.Certificate, "TURN_SERVER_PEERS_KEY=" + p.Key}
	if role == config.Controller {
		env = append(env, "TURN_SERVER_PEERS_LISTEN="+c.at)
		c.controller = start(c.t, c.homes[role], env, "--role", role)
		return
	}
	env = append(env, "TURN_SERVER_PEERS_CONTROLLER="+c.at, "TURN_SERVER_LISTEN_ADDRESS=127.0.0.1:0",
		"TURN_SERVER_TLS_CERTIFICATE="+c.web.Certificate, "TURN_SERVER_TLS_KEY="+c.web.Key)
	c.gateway = start(c.t, c.homes[role], env, "--role", role)
	c.gatewayAt = c.gateway.address()
}

// renew replaces the authority and each certificate, as an operator does: first both authorities
// are trusted, last only the new one.
func (c *certified) renew(by *peerstest.Authority) {
	c.t.Helper()
	old, err := os.ReadFile(c.authority)
	check(c.t, err)
	next, err := os.ReadFile(by.File)
	check(c.t, err)
	check(c.t, os.WriteFile(c.authority, append(old, next...), 0o600))
	for role, p := range c.roles {
		by.Renew(p, role)
	}
	by.Renew(c.web, "turn.example.org")
	check(c.t, os.WriteFile(c.authority, next, 0o600))
}

// answers waits until a caller who trusts only an authority gets the controller's answer, on a
// connection of its own.
func (c *certified) answers(trusts *peerstest.Authority, secret string) {
	c.t.Helper()
	b, err := os.ReadFile(trusts.File)
	check(c.t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(b)
	waitFor(c.t, func() string {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
		defer tr.CloseIdleConnections()
		r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "https://"+c.gatewayAt+
			"/turnstone.v1.TurnService/ListTurns", strings.NewReader("{}"))
		check(c.t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+secret)
		answer, err := tr.RoundTrip(r)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = answer.Body.Close() }()
		if b, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
			return fmt.Sprint(answer.StatusCode, " ", string(b))
		}
		return ""
	})
}

// TestCertificates: a server's certificate for callers, the roles' certificates and their authority
// are replaced in their files while both processes run. Each one continues, uses the new ones for
// every new connection, and no longer trusts the old authority.
func TestCertificates(t *testing.T) {
	one, two, three := peerstest.New(t), peerstest.New(t), peerstest.New(t)
	c := &certified{t: t, authority: filepath.Join(t.TempDir(), "ca.crt"), at: free(t),
		roles: map[string]config.Peers{config.Controller: one.Issue(config.Controller),
			config.Gateway: one.Issue(config.Gateway)},
		web: one.Issue("turn.example.org"), homes: map[string]string{
			config.Controller: filepath.Join(t.TempDir(), "home"),
			config.Gateway:    filepath.Join(t.TempDir(), "home")}}
	b, err := os.ReadFile(one.File)
	check(t, err)
	check(t, os.WriteFile(c.authority, b, 0o600))
	c.start(config.Controller)
	c.start(config.Gateway)
	secret := token(t, c.controller)
	c.answers(one, secret)
	stolen := one.Issue(config.Gateway)

	c.renew(two)
	c.answers(two, secret) // the gateway's process is the same
	c.gateway.end()
	c.start(config.Gateway)
	c.answers(two, secret) // the controller's process is the same, and takes a new connection
	stolen.Authority = two.File
	p, err := peers.Open(stolen, slog.New(slog.DiscardHandler))
	check(t, err)
	tr := p.Transport(c.at, config.Controller)
	defer tr.CloseIdleConnections()
	if a, err := (&http.Client{Transport: tr}).Post("http://controller/turnstone.v1.TurnService/"+
		"ListTurns", "application/json", strings.NewReader("{}")); err == nil {
		_ = a.Body.Close()
		t.Errorf("a certificate of the old authority gets %s", a.Status)
	}

	c.renew(three)
	c.controller.end()
	c.start(config.Controller)
	c.answers(three, secret) // the gateway's process is the same, and makes a new connection
	for _, p := range []*process{c.gateway, c.controller} {
		p.end()
		if strings.Contains(p.text(), "PRIVATE KEY") {
			t.Error("the log has a key")
		}
	}
}
