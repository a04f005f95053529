package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/server/config"
)

// The document of the tests, with marks that no log may have.
const document = "# Test\n\n```bash\necho mark-in-document; seq 3\n```\n\nAnd:\n\n```bash\nfalse || pwd\n```\n"

// volatile is what differs between two runs: the front matter, durations, and the evidence.
var volatile = regexp.MustCompile(`(?s)\A---\n.*?\n---\n|<!-- turn:evidence.*|[0-9.]+ (ms|s)\b`)

// receipt runs the document and returns its receipt without times and IDs.
func receipt(t *testing.T, c *client, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.md")
	check(t, os.WriteFile(file, []byte(document), 0o600))
	out := c.must(append(append([]string{"run"}, args...), file)...)
	if !strings.Contains(out, "mark-in-document\n1\n2\n3\n") {
		t.Errorf("the receipt is %s", out)
	}
	return volatile.ReplaceAllString(out, "X")
}

// pinned is a client of a server over the network, which trusts the key that the node prints.
func pinned(t *testing.T, operator, node *process, url string, env ...string) *client {
	t.Helper()
	secret := token(t, operator)
	c := &client{t, filepath.Join(t.TempDir(), "home"), env}
	file := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	m := regexp.MustCompile(`key=(SHA256:[A-Za-z0-9+/]{43})`).FindStringSubmatch(node.text())
	if m == nil {
		t.Fatalf("the node prints no key: %s", node.text())
	}
	if _, _, err := c.turn("host", "add", "wrong", url, "--token-file", file, "--pin",
		"SHA256:"+strings.Repeat("A", 43)); err == nil {
		t.Error("a wrong pin is accepted")
	}
	c.must("host", "add", "here", url, "--token-file", file, "--pin", m[1], "--use")
	return c
}

// TestMachineOneProcess runs a document locally, by the operator's socket and over the network, and
// ends the server while a turn runs.
func TestMachineOneProcess(t *testing.T) {
	t.Parallel()
	p := start(t, homeWithTemplates(t), nil, "--listen", "127.0.0.1:0")
	p.await("node registered")
	local := receipt(t, &client{t, homeWithTemplates(t), nil})
	operator := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=" + p.socket()}}
	if got := receipt(t, operator); got != local {
		t.Errorf("locally:\n%s\nby the socket:\n%s", local, got)
	}
	c := pinned(t, p, p, "http://"+p.address())
	if got := receipt(t, c, "--session", "research"); got != receipt(t,
		&client{t, homeWithTemplates(t), nil}, "--session", "research") {
		t.Errorf("over the network: %s", got)
	}
	if log := c.must("log", "research"); !strings.Contains(log, "passed") {
		t.Errorf("the log is %s", log)
	}
	inTheClear(t, p)
	waitTurns(t, p, false)
	ends := make(chan string, 2)
	file := slow(t, "5")
	// ends later than the other one, by more than clients have for their last answers
	longer := slow(t, "14")
	clearly, secret := make(chan struct{}), token(t, p)
	go func() { ends <- slowlyInTheClear(t, p, secret, longer, clearly) }()
	<-clearly
	go func() { ends <- slowly(t, c, file) }()
	waitRunning(t, p)
	p.end()
	for range 2 {
		if got := <-ends; !strings.Contains(got, "finished-42") {
			t.Errorf("a turn that ran when the server was told to end: %s", got)
		}
	}
	if log := p.text(); strings.Contains(log, "mark-in-document") {
		t.Errorf("the log has contents:\n%s", log)
	}
}

// inTheClear runs the document as curl would.
func inTheClear(t *testing.T, p *process) {
	t.Helper()
	for _, secret := range []string{"", token(t, p)} {
		req, err := http.NewRequest(http.MethodPost,
			"http://"+p.address()+"/turnstone/v1/plain/run", strings.NewReader(document))
		check(t, err)
		req.Header.Set("Content-Type", "text/markdown")
		if secret != "" {
			req.Header.Set("Authorization", "Bearer "+secret)
		}
		resp, err := http.DefaultClient.Do(req)
		check(t, err)
		b, err := io.ReadAll(resp.Body)
		check(t, err)
		_ = resp.Body.Close()
		if secret == "" && resp.StatusCode != http.StatusUnauthorized ||
			secret != "" && !strings.Contains(string(b), "mark-in-document\n1\n2\n3\n") {
			t.Errorf("%d: %s", resp.StatusCode, b)
		}
	}
}

// TestMachineEndAtOnce: a second signal does not wait for turns.
func TestMachineEndAtOnce(t *testing.T) {
	home, address := homeWithTemplates(t), free(t)
	p := start(t, home, nil, "--listen", address)
	p.await("node registered")
	c := pinned(t, p, p, "http://"+address)
	ctx, stop := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		c.until(ctx, "run", slow(t, "600"))
	}()
	defer func() { stop(); <-left }()
	waitRunning(t, p)
	p.kill(syscall.SIGTERM)
	p.await("ending; running turns")
	p.kill(syscall.SIGTERM)
	<-p.done
	if !strings.Contains(p.text(), "running turns are interrupted") {
		t.Error("the log does not say that turns are interrupted")
	}
	// The next server finds the same state, and nothing holds it.
	start(t, home, nil, "--listen", address).await("node registered")
}

// slow writes a document of some seconds. Its output, finished-42, is not in its text.
func slow(t *testing.T, seconds string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "slow.md")
	text := "```bash\nsleep " + seconds + "; echo finished-$((6*7))\n```\n"
	check(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// slowly runs such a document, and returns its receipt or what failed.
func slowly(t *testing.T, c *client, file string) string {
	out, errs, err := c.turn("run", file)
	if err != nil {
		return err.Error() + "\n" + out + errs
	}
	return out
}

// slowlyInTheClear runs such a document as curl would. It closes began when the server has the
// request.
func slowlyInTheClear(t *testing.T, p *process, secret, file string, began chan struct{}) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { close(began) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+p.address()+"/turnstone/v1/plain/run", bytes.NewReader(b))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "text/markdown")
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	if b, err = io.ReadAll(resp.Body); err != nil {
		return err.Error()
	}
	return string(b)
}

// servers are the roles in three processes, with mutual TLS between them, and TLS for callers.
type servers struct {
	t                                    *testing.T
	gateway, controller, node            *process
	settings                             map[string]config.Peers
	homes                                map[string]string
	gatewayAddress, controllerAt, nodeAt string
}

func (s *servers) start(role string) *process {
	s.t.Helper()
	c := s.settings[role]
	env := []string{"TURN_SERVER_PEERS_AUTHORITY=" + c.Authority,
		"TURN_SERVER_PEERS_CERTIFICATE=" + c.Certificate, "TURN_SERVER_PEERS_KEY=" + c.Key}
	switch role {
	case config.Gateway:
		web := s.settings["tls"]
		env = append(env, "TURN_SERVER_PEERS_CONTROLLER="+s.controllerAt,
			"TURN_SERVER_LISTEN_ADDRESS="+s.gatewayAddress,
			"TURN_SERVER_TLS_CERTIFICATE="+web.Certificate, "TURN_SERVER_TLS_KEY="+web.Key)
	case config.Controller:
		env = append(env, "TURN_SERVER_PEERS_LISTEN="+s.controllerAt)
	case config.Node:
		env = append(env, "TURN_SERVER_PEERS_CONTROLLER="+s.controllerAt,
			"TURN_SERVER_PEERS_LISTEN="+s.nodeAt, "TURN_SERVER_NODE_NAME=n1")
	}
	p := start(s.t, s.homes[role], env, "--role", role)
	switch role {
	case config.Gateway:
		s.gateway, s.gatewayAddress = p, p.address()
	case config.Controller:
		s.controller = p
	case config.Node:
		s.node = p
		p.await("node registered")
	}
	return p
}

// free returns an address that nobody listens at.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// TestMachineThreeProcesses: gateway, controller and node each restart while the others continue.
func TestMachineThreeProcesses(t *testing.T) {
	s := &servers{t: t, settings: map[string]config.Peers{},
		homes: map[string]string{config.Node: homeWithTemplates(t),
			config.Gateway:    filepath.Join(t.TempDir(), "home"),
			config.Controller: filepath.Join(t.TempDir(), "home")},
		gatewayAddress: "127.0.0.1:0", controllerAt: free(t), nodeAt: free(t)}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip(err)
	}
	dir := documented(t)
	ca := filepath.Join(dir, "ca.crt")
	for _, name := range []string{config.Controller, config.Node, config.Gateway, "tls"} {
		s.settings[name] = config.Peers{Authority: ca, Certificate: filepath.Join(dir, name+".crt"),
			Key: filepath.Join(dir, name+".key")}
	}
	for _, role := range []string{config.Controller, config.Node, config.Gateway} {
		s.start(role)
	}
	c := pinned(t, s.controller, s.node, "https://"+s.gatewayAddress, "SSL_CERT_FILE="+ca)
	local := receipt(t, &client{t, homeWithTemplates(t), nil})
	if got := receipt(t, c); got != local {
		t.Errorf("locally:\n%s\nin three processes:\n%s", local, got)
	}
	for _, role := range []string{config.Gateway, config.Controller, config.Node} {
		map[string]*process{config.Gateway: s.gateway, config.Controller: s.controller,
			config.Node: s.node}[role].end()
		s.start(role)
		s.ready(ca)
		if got := receipt(t, c); got != local {
			t.Errorf("after a restart of the %s: %s", role, got)
		}
	}
	// A turn goes on while gateways are killed.
	waitTurns(t, s.controller, false)
	ends := make(chan string, 1)
	file := slow(t, "5")
	go func() { ends <- slowly(t, c, file) }()
	waitRunning(t, s.controller)
	s.gateway.kill(syscall.SIGKILL)
	<-s.gateway.done
	s.start(config.Gateway)
	if got := <-ends; !strings.Contains(got, "finished-42") {
		t.Errorf("a turn whose gateway was killed: %s", got)
	}
	for _, p := range []*process{s.gateway, s.node, s.controller} {
		p.end()
		if strings.Contains(p.text(), "mark-in-document") {
			t.Errorf("a log has contents:\n%s", p.text())
		}
	}
}

// ready waits until the gateway has the controller's word about tokens, and a node.
func (s *servers) ready(ca string) {
	s.t.Helper()
	secret := token(s.t, s.controller)
	pem, err := os.ReadFile(ca)
	check(s.t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	h := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	defer h.CloseIdleConnections()
	waitFor(s.t, func() string {
		status, got := call(s.t, h, "https://"+s.gatewayAddress, secret, "ServerService/ListNodes",
			"{}")
		if status == http.StatusOK && strings.Contains(answering(got), `"n1"`) {
			return ""
		}
		return got
	})
}

// waitRunning waits until a turn runs, as the controller of p knows it.
func waitRunning(t *testing.T, p *process) {
	t.Helper()
	waitTurns(t, p, true)
}

// waitTurns waits until a turn runs, or none does.
func waitTurns(t *testing.T, p *process, runs bool) {
	t.Helper()
	h := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(p.home, "server.sock"))
		}}}
	defer h.CloseIdleConnections()
	waitFor(t, func() string {
		_, got := call(t, h, "http://operator", "", "TurnService/ListTurns", "{}")
		if strings.HasPrefix(got, "{") && strings.Contains(got, "TURN_STATE_RUNNING") == runs {
			return ""
		}
		return got + " "
	})
}

// waitFor waits until f returns nothing; what it returns says why not.
func waitFor(t *testing.T, f func() string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(why)
		}
	}
}
