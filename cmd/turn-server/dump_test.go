package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/config"
)

// TestRecordsDump: a backup of a controller whose records are in PostgreSQL is refused until they are
// dumped. The controller of the backup and of the dump knows the tokens, also those that were revoked.
func TestRecordsDump(t *testing.T) {
	t.Parallel()
	from, to, dir := pgtest.New(t, "fsync=off"), pgtest.New(t, "fsync=off"), t.TempDir()
	begin := func(home string, s *pgtest.Server) *process {
		p := start(t, home, []string{"TURN_SERVER_RECORDS_DATABASE=" + s.URL, "TURN_SERVER_RECORDS_LEASE=3s",
			"TURN_SERVER_PEERS_LISTEN=unix:" + filepath.Join(dir, "peers.sock")},
			"--role", config.Controller, "--role", config.Gateway,
			"--listen", "127.0.0.1:0")
		waitFor(t, func() string {
			if code, text := status(t, p, "/readyz"); code != http.StatusOK {
				return fmt.Sprint(code, " ", text)
			}
			return ""
		})
		return p
	}
	p := begin(filepath.Join(dir, "home"), from)
	secret := token(t, p)
	operator := &client{t, filepath.Join(dir, "client"), []string{"TURN_HOST=" + p.socket()}}
	revoked := strings.TrimSpace(operator.must("token", "create", "--name", "lost", "--ttl", "1h"))
	id := regexp.MustCompile(`(?m)^(tk_\S+) +lost `).FindStringSubmatch(operator.must("token", "ls"))
	if id == nil {
		t.Fatal("the token is not listed")
	}
	operator.must("token", "revoke", id[1])

	host := &client{t, p.home, nil}
	args := []string{"backup", filepath.Join(dir, "b"), "--keys", filepath.Join(dir, "k")}
	if _, errs, err := host.turn(args...); err == nil || !strings.Contains(errs, "controller's records are in") ||
		!strings.Contains(errs, "--dumped") {
		t.Errorf("a backup without a dump: %v\n%s", err, errs)
	}
	commands(t, "shared.md", "dump", from.URL, filepath.Join(dir, "dump"))
	host.must(append(args, "--dumped")...)
	p.end()

	commands(t, "shared.md", "restore_dump", to.URL, filepath.Join(dir, "dump"))
	again := filepath.Join(dir, "again")
	commands(t, "operations.md", "restore", filepath.Join(dir, "b"), filepath.Join(dir, "k"), again)
	p = begin(again, to)
	waitFor(t, func() string {
		code, text := call(t, http.DefaultClient, "http://"+p.address(), secret, "TurnService/ListTurns", "{}")
		if code == http.StatusOK {
			return ""
		}
		return text
	})
	if code, text := call(t, http.DefaultClient, "http://"+p.address(), revoked, "TurnService/ListTurns",
		"{}"); code != http.StatusUnauthorized {
		t.Errorf("a token that was revoked before the dump: %d %s", code, text)
	}
	p.end()
}

// commands runs a function of a page of the documentation.
func commands(t *testing.T, page string, args ...string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	check(t, err)
	block := regexp.MustCompile("(?s)<!-- run: (?:shared|restore) -->\n```bash\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatalf("%s has no commands", page)
	}
	cmd := exec.Command("sh", append([]string{"-ec", string(block[1]) + `"$@"`, "sh"}, args...)...)
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(append([]string{os.Getenv("PATH")}, bins...), ":"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", args[0], err, out)
	}
}
