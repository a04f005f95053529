package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/config"
)

// rivals are two controllers of one database, and a gateway and a node that know both.
type rivals struct {
	t             *testing.T
	database      *pgtest.Server
	one, two      *process
	gateway, node *process
	url           string
	env           []string
	at            map[string]string // where each controller listens
	homes         map[string]string
}

// startRivals starts all; the controller called one leads.
func startRivals(t *testing.T, nodeHome string) *rivals {
	t.Helper()
	x := &rivals{t: t, database: pgtest.New(t, "fsync=off"), at: map[string]string{},
		homes: map[string]string{}}
	dir := t.TempDir()
	x.env = []string{"TURN_SERVER_RECORDS_DATABASE=" + x.database.URL, "TURN_SERVER_RECORDS_LEASE=3s",
		"TURN_SERVER_TOKENS_KEY=" + filepath.Join(dir, "token-key")}
	for _, name := range []string{"one", "two"} {
		x.at[name] = "unix:" + filepath.Join(dir, name+".sock")
		x.homes[name] = filepath.Join(t.TempDir(), "home")
	}
	x.one = x.controller("one")
	x.one.await("this controller leads")
	x.two = x.controller("two")
	x.two.await("waiting as a standby")
	both := "TURN_SERVER_PEERS_CONTROLLER=" + x.at["one"] + "," + x.at["two"]
	x.gateway = start(t, filepath.Join(t.TempDir(), "home"), []string{both}, "--role",
		config.Gateway, "--listen", "127.0.0.1:0")
	x.url = "http://" + x.gateway.address()
	x.node = start(t, nodeHome, []string{both, "TURN_SERVER_NODE_NAME=n1",
		"TURN_SERVER_PEERS_LISTEN=unix:" + filepath.Join(dir, "node.sock")}, "--role", config.Node)
	x.node.await("node registered")
	return x
}

// controller starts a controller, also again in its state directory.
func (x *rivals) controller(name string) *process {
	x.t.Helper()
	return start(x.t, x.homes[name], append([]string{"TURN_SERVER_PEERS_LISTEN=" + x.at[name],
		"TURN_SERVER_NODE_NAME=" + name}, x.env...), "--role", config.Controller)
}

// status is that of a page on the operator's socket, and its text.
func status(t *testing.T, p *process, path string) (int, string) {
	t.Helper()
	h := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(p.home, "server.sock"))
		}}}
	resp, err := h.Get("http://controller" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// serves waits until a controller leads, and the gateway and the node are with it.
func (x *rivals) serves(p *process, secret string) {
	x.t.Helper()
	waitFor(x.t, func() string {
		if code, text := status(x.t, p, "/readyz"); code != http.StatusOK {
			return fmt.Sprint("it does not lead: ", code, " ", text)
		}
		code, text := call(x.t, http.DefaultClient, x.url, secret, "ServerService/ListNodes", "{}")
		if code != http.StatusOK || !strings.Contains(answering(text), `"n1"`) {
			return fmt.Sprint("by the gateway: ", code, " ", text)
		}
		return ""
	})
}

// times is how often a text is in the log.
func (p *process) times(text string) int { return strings.Count(p.text(), text) }

// awaitTimes waits until a text is in the log more often than n times.
func (p *process) awaitTimes(text string, n int) {
	p.t.Helper()
	waitFor(p.t, func() string {
		if p.times(text) > n {
			return ""
		}
		return "the log does not have " + text
	})
}

// TestLeaders: of two controllers one leads. When it is killed, stopped, or parted from the database,
// the other leads, or the same again; tokens stay valid, and revoked ones stay revoked.
func TestLeaders(t *testing.T) {
	t.Parallel()
	x := startRivals(t, filepath.Join(t.TempDir(), "home"))
	if code, text := status(t, x.two, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("the standby is ready: %d %s", code, text)
	}
	if code, text := status(t, x.two, "/healthz"); code != http.StatusOK {
		t.Errorf("the standby is not healthy: %d %s", code, text)
	}
	operator := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=" + x.two.socket()}}
	if _, errs, err := operator.turn("token", "create", "--name", "ci"); err == nil ||
		!strings.Contains(errs, "standby") {
		t.Errorf("an operator at the standby: %v: %s", err, errs)
	}
	operator.env = []string{"TURN_HOST=" + x.one.socket()}
	secret := token(t, x.one)
	revoked := strings.TrimSpace(operator.must("token", "create", "--name", "lost", "--ttl", "1h"))
	x.serves(x.one, secret)

	began := time.Now()
	killed(x.one)
	x.serves(x.two, secret)
	t.Logf("after a kill another controller serves in %v", time.Since(began))
	x.one = x.controller("one")
	x.one.await("waiting as a standby")

	// It stops without a word, as a machine that is suspended does.
	was := x.two.times("no longer leads")
	began = time.Now()
	x.two.kill(syscall.SIGSTOP)
	x.serves(x.one, secret)
	t.Logf("after a stop another controller serves in %v", time.Since(began))
	operator.env = []string{"TURN_HOST=" + x.one.socket()}
	operator.must("token", "revoke", "lost")
	x.two.kill(syscall.SIGCONT)
	x.two.awaitTimes("no longer leads", was)
	x.two.awaitTimes("waiting as a standby", 1)
	if code, text := status(t, x.two, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("it leads again: %d %s", code, text)
	}
	if code, text := call(t, http.DefaultClient, x.url, revoked, "TurnService/ListTurns",
		"{}"); code != http.StatusUnauthorized {
		t.Errorf("a revoked token: %d %s", code, text)
	}

	x.away(secret)
	for _, p := range []*process{x.gateway, x.node, x.one, x.two} {
		p.end()
		if strings.Contains(p.text(), secret) || strings.Contains(p.text(), "panic") {
			t.Errorf("the log has the token, or a panic:\n%s", p.text())
		}
	}
	x.audited()
}

// away takes the database away from one, which leads, and gives it back.
func (x *rivals) away(secret string) {
	t := x.t
	t.Helper()
	check(t, x.database.Crash())
	x.one.await("no longer leads")
	if code, text := call(t, http.DefaultClient, x.url, secret, "TurnService/ListTurns",
		"{}"); code != http.StatusServiceUnavailable {
		t.Errorf("without a database: %d %s", code, text)
	}
	check(t, x.database.Start())
	waitFor(t, func() string {
		code, text := call(t, http.DefaultClient, x.url, secret, "ServerService/ListNodes", "{}")
		if code == http.StatusOK && strings.Contains(answering(text), `"n1"`) {
			return ""
		}
		return text
	})
}

// audited checks that each log has the terms of its controller.
func (x *rivals) audited() {
	x.t.Helper()
	for name, home := range x.homes {
		files, err := filepath.Glob(filepath.Join(home, "audit", "*"))
		check(x.t, err)
		text := ""
		for _, f := range files {
			b, err := os.ReadFile(f)
			check(x.t, err)
			text += string(b)
		}
		if !strings.Contains(text, `"method":"controller.lead"`) ||
			!strings.Contains(text, `"controller":"`+name+`"`) {
			x.t.Errorf("the audit log of %s is %s", name, text)
		}
	}
}

// TestMachineLeader: a command in a sandbox goes on while another controller begins to lead, and the
// new leader has the sandbox.
func TestMachineLeader(t *testing.T) {
	t.Parallel()
	x := startRivals(t, homeWithTemplates(t))
	secret := token(t, x.one)
	x.serves(x.one, secret)
	c := pinned(t, x.one, x.node, x.url)
	id := strings.TrimSpace(c.must("sandbox", "create"))
	type result struct {
		out, errs string
		err       error
	}
	ends := make(chan result, 1)
	go func() {
		out, errs, err := c.turn("sandbox", "exec", id, "--", "bash", "-c",
			"touch /tmp/began; until test -e /tmp/end; do sleep 0.1; done; echo finished-$((6*7))")
		ends <- result{out, errs, err}
	}()
	waitFor(t, func() string {
		_, errs, err := c.turn("sandbox", "exec", id, "--", "test", "-e", "/tmp/began")
		if err != nil {
			return err.Error() + errs
		}
		return ""
	})
	killed(x.one)
	x.serves(x.two, secret)
	waitFor(t, func() string {
		out, errs, err := c.turn("sandbox", "ls")
		if err != nil || !strings.Contains(out, id) {
			return fmt.Sprint(err, out, errs)
		}
		return ""
	})
	c.must("sandbox", "exec", id, "--", "touch", "/tmp/end")
	if got := <-ends; got.err != nil || !strings.Contains(got.out, "finished-42") {
		t.Errorf("the command during the change: %v\n%s%s", got.err, got.out, got.errs)
	}
	c.must("sandbox", "rm", id)
}

// TestForeignKey: a controller with another key of tokens says so while it waits, and does not lead
// before the operator permits it.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t, "fsync=off")
	dir := t.TempDir()
	env := func(name string, more ...string) []string {
		return append([]string{"TURN_SERVER_RECORDS_DATABASE=" + database.URL,
			"TURN_SERVER_RECORDS_LEASE=3s",
			"TURN_SERVER_PEERS_LISTEN=unix:" + filepath.Join(dir, name+".sock")}, more...)
	}
	one := start(t, filepath.Join(dir, "one"), env("one"), "--role", config.Controller)
	one.await("this controller leads")
	home := filepath.Join(dir, "two")
	// A leader stores its key a moment after it leads: a standby that looks before then looks again.
	store := hideKey(t, database.URL)
	two := start(t, home, env("two"), "--role", config.Controller)
	two.await("waiting as a standby")
	store()
	two.await("this controller could not lead")
	killed(one)
	two.await("this controller cannot lead")
	if code, text := status(t, two, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("it leads: %d %s", code, text)
	}
	two.end()
	two = start(t, home, env("two", "TURN_SERVER_TOKENS_REPLACE=on"), "--role", config.Controller)
	waitFor(t, func() string {
		_, text := status(t, two, "/readyz")
		if strings.HasPrefix(text, "ready") {
			return ""
		}
		return text
	})
	two.end()
}

// hideKey waits for the key of the leader in the database, takes it out, and returns what stores it again.
func hideKey(t *testing.T, url string) (store func()) {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	key := ""
	waitFor(t, func() string {
		if err := db.QueryRowContext(t.Context(), "SELECT key FROM controller.leader").Scan(&key); err != nil {
			return err.Error()
		}
		if key == "" {
			return "the leader has no key"
		}
		return ""
	})
	set := func(key string) {
		if _, err := db.ExecContext(t.Context(), "UPDATE controller.leader SET key = $1", key); err != nil {
			t.Fatal(err)
		}
	}
	set("")
	return func() { set(key) }
}
