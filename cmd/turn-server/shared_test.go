package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
)

// A group is a server of a gateway with a controller, and of nodes that share a database and a bucket.
type group struct {
	t        *testing.T
	front    *process
	nodes    map[string]*process
	homes    map[string]string
	env      []string // of all
	dir      string   // of sockets
	url      string
	secret   string
	database *pgtest.Server
}

// startGroup starts the nodes. Leases last as long as lease says.
func startGroup(t *testing.T, lease string, names ...string) *group {
	t.Helper()
	g := &group{t: t, nodes: map[string]*process{}, homes: map[string]string{}, dir: t.TempDir(),
		database: pgtest.New(t, "fsync=off")}
	addr := s3test.Server(t, "../../internal/store/blob/s3/testserver")
	s3test.MakeBucket(t, addr, "turns")
	g.env = []string{"TURN_SERVER_NODE_DATABASE=" + g.database.URL + "&lease=" + lease,
		"TURN_SERVER_NODE_WARM_TURNS=0", "TURN_SERVER_NODE_STORE=s3://turns/server", "AWS_ENDPOINT_URL_S3=http://" + addr,
		"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey}
	g.front = start(t, filepath.Join(t.TempDir(), "home"), append(g.env, "TURN_SERVER_PEERS_LISTEN=unix:"+
		filepath.Join(g.dir, "front.sock")), "--role", config.Gateway, "--role", config.Controller,
		"--listen", "127.0.0.1:0")
	g.url, g.secret = "http://"+g.front.address(), token(t, g.front)
	for _, name := range names {
		g.homes[name] = homeWithTemplates(t)
		g.node(name)
	}
	g.await(names...)
	return g
}

// node starts a node, also again in its state directory.
func (g *group) node(name string) *process {
	g.t.Helper()
	p := start(g.t, g.homes[name], append(g.env, g.settings(name)...), "--role", config.Node)
	p.await("node registered")
	g.nodes[name] = p
	return p
}

// settings are those of one node.
func (g *group) settings(name string) []string {
	return []string{"TURN_SERVER_NODE_NAME=" + name,
		"TURN_SERVER_PEERS_CONTROLLER=unix:" + filepath.Join(g.dir, "front.sock"),
		"TURN_SERVER_PEERS_LISTEN=unix:" + filepath.Join(g.dir, name+".sock")}
}

// await waits until exactly these nodes are there.
func (g *group) await(names ...string) {
	g.t.Helper()
	waitFor(g.t, func() string {
		code, text := call(g.t, http.DefaultClient, g.url, g.secret, "ServerService/ListNodes", "{}")
		for name := range g.nodes {
			if wanted := strings.Contains(strings.Join(names, " "), name); code != http.StatusOK ||
				strings.Contains(answering(text), `"`+name+`"`) != wanted {
				return fmt.Sprint(code, " ", text)
			}
		}
		return ""
	})
}

// answering is the part of an answer to ListNodes about the nodes that are there.
func answering(text string) string {
	up, _, _ := strings.Cut(text, `"lost":`)
	return up
}

var printed = regexp.MustCompile(`key=(SHA256:[A-Za-z0-9+/]{43})`)

// client is a user who trusts all nodes.
func (g *group) client() *client {
	g.t.Helper()
	c := &client{g.t, filepath.Join(g.t.TempDir(), "home"), nil}
	file := filepath.Join(g.t.TempDir(), "token")
	check(g.t, os.WriteFile(file, []byte(g.secret+"\n"), 0o600))
	args := []string{"host", "add", "here", g.url, "--token-file", file, "--use"}
	for _, p := range g.nodes {
		args = append(args, "--pin", printed.FindStringSubmatch(p.text())[1])
	}
	c.must(args...)
	return c
}

// write writes a document.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.md")
	check(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// nodeOf returns the node of the newest turn.
func (g *group) nodeOf() string {
	g.t.Helper()
	_, text := call(g.t, http.DefaultClient, g.url, g.secret, "TurnService/ListTurns",
		`{"page":{"size":1}}`)
	m := regexp.MustCompile(`"node": ?"([^"]*)"`).FindStringSubmatch(text)
	if m == nil {
		g.t.Fatalf("no node in %s", text)
	}
	return m[1]
}

// TestMachineShared: a session outlives the node of its turns. The next turn begins at another node, with
// the files, and what reads the session works there.
func TestMachineShared(t *testing.T) {
	t.Parallel()
	g := startGroup(t, "60s", "one", "two")
	c, stranger := g.client(), g.client()
	c.must("run", "--session", "work", write(t, "```bash\necho 41 > kept\n```\n"))
	first := g.nodeOf()
	// Warm state is preferred. A busy machine may have made that node silent for so long, or so full, that
	// another one is better once: then the warm state is there.
	const more = 6
	moved := 0
	for range more {
		c.must("run", "--session", "work", write(t, "```bash\ncat kept\n```\n"))
		if now := g.nodeOf(); now != first {
			first = now
			moved++
		}
	}
	if moved > 1 {
		t.Errorf("of %d turns %d ran at another node than the one before", more, moved)
	}
	other := map[string]string{"one": "two", "two": "one"}[first]
	killed(g.nodes[first])
	out := c.must("run", "--session", "work", write(t, "```bash\necho $(($(cat kept) + 1))\n```\n"))
	if !strings.Contains(out, "\n42\n") || g.nodeOf() != other {
		t.Errorf("after the end of %s, at %s: %s", first, g.nodeOf(), out)
	}
	g.await(other)
	for _, x := range []struct{ args, want string }{
		{"log work", "passed"}, {"session ls", "work"}, {"show work@1 --receipt", "41"},
		{fmt.Sprintf("show work@%d --receipt", more+2), "42"}, {"cat work@1:kept", "41"},
		{"fork work@1 --branch early", ""},
	} {
		out, errs, err := c.turn(strings.Fields(x.args)...)
		if err != nil || !strings.Contains(out, x.want) {
			t.Errorf("turn %s: %v: %s%s", x.args, err, out, errs)
		}
	}
	if _, _, err := stranger.turn("show", "work"); err == nil {
		t.Error("another client sees the session")
	}
	// whoever comes back finds what the others did
	g.node(first)
	g.await("one", "two")
	killed(g.nodes[other])
	if out := c.must("run", "--session", "work", write(t, "```bash\ncat kept\n```\n")); g.nodeOf() != first ||
		!strings.Contains(out, "\n41\n") {
		t.Errorf("at %s: %s", g.nodeOf(), out)
	}
	g.await(first)
	c.must("session", "rm", "work")
	waitFor(t, func() string {
		_, text := call(t, http.DefaultClient, g.url, g.secret, "SessionService/ListSessions", "{}")
		if strings.Contains(text, `"work"`) {
			return text
		}
		return ""
	})
}
