package main

import (
	"database/sql"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testhome"
)

// faults is a group whose controller is a process of its own, and whose bucket may hold a request back.
type faults struct {
	*group
	bucket     *s3test.Started
	controller func() // starts it, also again
	leases     *sql.DB
}

func startFaults(t *testing.T, lease string, names ...string) *faults {
	t.Helper()
	g := &group{t: t, nodes: map[string]*process{}, homes: map[string]string{}, dir: t.TempDir(),
		database: pgtest.New(t, "fsync=off")}
	f := &faults{group: g, bucket: startBucket(t)}
	db, err := pg.Open(t.Context(), g.database.URL, "turn")
	check(t, err)
	t.Cleanup(func() { _ = db.Close() })
	f.leases = db
	g.env = []string{"TURN_SERVER_NODE_DATABASE=" + g.database.URL + "&lease=" + lease,
		"TURN_SERVER_NODE_WARM_TURNS=0", "TURN_SERVER_NODE_STORE=s3://turns/server",
		"AWS_ENDPOINT_URL_S3=" + f.bucket.URL, "AWS_ACCESS_KEY_ID=" + s3test.AccessKey,
		"AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey}
	at, home := "unix:"+filepath.Join(g.dir, "front.sock"), filepath.Join(t.TempDir(), "home")
	f.controller = func() {
		g.front = start(t, home, append(g.env, "TURN_SERVER_PEERS_LISTEN="+at), "--role", config.Controller)
	}
	f.controller()
	gateway := start(t, filepath.Join(t.TempDir(), "home"), []string{"TURN_SERVER_PEERS_CONTROLLER=" + at},
		"--role", config.Gateway, "--listen", "127.0.0.1:0")
	g.url, g.secret = "http://"+gateway.address(), token(t, g.front)
	for _, name := range names {
		g.homes[name] = homeWithTemplates(t)
		g.node(name)
	}
	g.await(names...)
	return f
}

// startBucket starts the server of a bucket behind a proxy.
func startBucket(t *testing.T) *s3test.Started {
	t.Helper()
	program, err := s3test.Build(t.Context(), testhome.Dir(t), "../../internal/store/blob/s3/testserver")
	if err != nil {
		t.Skip(err)
	}
	s, err := s3test.Start(s3test.Options{Program: program, Dir: t.TempDir()})
	check(t, err)
	t.Cleanup(s.End)
	check(t, s.Bucket(t.Context(), "turns"))
	return s
}

// holdCommit holds the first upload after the beginning of a turn that may start again: that of its end.
// The channel is closed when it is held; release lets it through.
func (f *faults) holdCommit() (held chan struct{}, release func()) {
	f.t.Helper()
	held = make(chan struct{})
	through := make(chan struct{})
	var first atomic.Bool
	var end sync.Once
	f.bucket.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		var n int
		if r.Method == http.MethodPut && f.leases.QueryRow(`SELECT count(*) FROM checkpoints JOIN turns
			ON turns.id = turn WHERE status = 'running'`).Scan(&n) == nil && n > 0 &&
			first.CompareAndSwap(false, true) {
			close(held)
			<-through
		}
		return false
	})
	release = func() { end.Do(func() { close(through) }); f.bucket.Fail(nil) }
	f.t.Cleanup(release)
	return held, release
}

func (f *faults) other(node string) string {
	return map[string]string{"one": "two", "two": "one"}[node]
}

// TestMachineFaults: what becomes of turns and sessions when nodes sleep and die at bad moments.
func TestMachineFaults(t *testing.T) {
	t.Parallel()
	f := startFaults(t, "15s", "one", "two")
	c := f.client()
	asleep := f.stale(c)
	f.elsewhere(c, asleep)
	f.twice(c)
	t.Run("full", func(t *testing.T) { f.full(t) })
}

// stale: a node sleeps while it stores the end of a turn, and another one runs the turn and stores its
// end meanwhile. What the first has stored by then is none of the session, its machine ends, and the
// client gets the other's result. It returns the node that slept.
func (f *faults) stale(c *client) string {
	t := f.t
	held, release := f.holdCommit()
	r := f.run(c, "stale", "---\nretry: 1\n---\n```bash\necho finished-$((6*7)) | tee kept\n```\n")
	select {
	case <-held:
	case err := <-r.end:
		t.Fatalf("%v\n%s%s", err, r.out.String(), r.errs.String())
	case <-time.After(2 * time.Minute):
		t.Fatal("the turn stores nothing")
	}
	asleep := f.nodeOf()
	other := f.nodes[f.other(asleep)]
	f.nodes[asleep].kill(syscall.SIGSTOP)
	other.await(startsAgain)
	waitTurns(t, f.front, false)
	release()
	f.nodes[asleep].kill(syscall.SIGCONT)
	f.nodes[asleep].await("another node has the turn")
	if err := <-r.end; err != nil || strings.Count(r.out.String(), "attempt 2") != 1 {
		t.Fatalf("%v\n%s%s", err, r.out.String(), r.errs.String())
	}
	waitFor(t, func() string { return machines(t, f.nodes[asleep]) })
	if n := other.times(startsAgain); n != 1 {
		t.Errorf("it started again %d times", n)
	}
	if log := c.must("log", "stale"); strings.Count(log, "passed") != 1 || strings.Contains(log, "error") {
		t.Errorf("the log is %s", log)
	}
	return asleep
}

// elsewhere: what reads and continues a turn works at a node that did not run it, also at one that tried
// to. It begins and ends with both nodes.
func (f *faults) elsewhere(c *client, node string) {
	t := f.t
	ran := f.other(node)
	killed(f.nodes[ran])
	key := func(node string) string {
		return strings.TrimSpace((&client{t, f.homes[node], nil}).must("key", "show", "node"))
	}
	if out, errs, err := c.turn("verify", "stale@1", "--trust", key(node)); err == nil ||
		!strings.Contains(out+errs, "is not trusted") {
		t.Errorf("only the key of %s is trusted: %v\n%s%s", node, err, out, errs)
	}
	c.must("verify", "stale", "--all", "--trust", key(ran))
	for _, x := range []struct{ args, want string }{
		{"verify stale@1", ""}, {"replay stale@1", ""}, {"show stale@1 --receipt", "attempt 2"},
		{"cat stale@1:kept", "finished-42"}, {"fork stale@1 --branch side", ""},
	} {
		out, errs, err := c.turn(strings.Fields(x.args)...)
		if err != nil || !strings.Contains(out, x.want) {
			t.Errorf("turn %s: %v: %s%s", x.args, err, out, errs)
		}
	}
	doc := write(t, "```bash\ncat kept\n```\n")
	for _, branch := range []string{"main", "side"} {
		out := c.must("run", "--session", "stale", "--branch", branch, doc)
		if !strings.Contains(out, "\nfinished-42\n") {
			t.Errorf("%s: %s", branch, out)
		}
	}
	f.node(ran)
}

// twice: a turn with "retry: 1" whose second node is lost too does not run a third time, although the
// controller was restarted meanwhile.
func (f *faults) twice(c *client) {
	t := f.t
	r := f.run(c, "twice", "---\nretry: 1\n---\n```bash\nsleep 600\n```\n")
	waitFor(t, func() string { return f.attempt("twice", 0) })
	first := f.nodeOf()
	second := f.nodes[f.other(first)]
	was := second.times(startsAgain)
	killed(f.nodes[first])
	second.awaitTimes(startsAgain, was)
	killed(f.front)
	f.controller()
	f.node(first)
	waitFor(t, func() string { return f.attempt("twice", 1) })
	killed(second)
	// also a client that has not followed the turn to the second node gets its end
	if err := <-r.end; err == nil || !strings.Contains(r.errs.String(), "the executor ended") {
		t.Errorf("%v\n%s%s", err, r.out.String(), r.errs.String())
	}
	if n := f.nodes[first].times(startsAgain); n != 0 {
		t.Errorf("it started again %d times", n)
	}
	if log := c.must("log", "twice"); strings.Count(log, "interrupted") != 1 || strings.Contains(log, "passed") {
		t.Errorf("the log is %s", log)
	}
	var n int
	check(t, f.leases.QueryRow("SELECT count(*) FROM tickets").Scan(&n))
	if n != 0 {
		t.Errorf("%d tickets are left", n)
	}
	// the second finds that the turn has its end
	f.node(f.other(first))
	f.nodes[f.other(first)].end() // nothing runs there, or it would wait
	f.node(f.other(first))
	if log := c.must("log", "twice"); strings.Count(log, "interrupted") != 1 {
		t.Errorf("the log is %s", log)
	}
}

// little is the beginning of a document whose machine has a small disk.
const little = "---\ndisk: 16MiB\n---\n"

// full: the disk of a node is full while a turn runs there. The turn ends, with a receipt, as on one
// machine; its session goes on at another node, and the node is used again when it has room.
func (f *faults) full(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("its file system is in a user namespace, in which no machine starts")
	}
	p := small(t, "60m", "--role", config.Node)
	p.cmd.Env = append(p.cmd.Env, append(f.env, f.settings("small")...)...)
	shareTemplates(t, p.home)
	p.begin("small")
	p.home = fmt.Sprintf("/proc/%d/root%s", p.cmd.Process.Pid, p.home) // as the node sees it
	p.await("node registered")
	f.nodes["small"] = p
	c := f.client() // who trusts it, too
	for _, name := range []string{"one", "two"} {
		f.nodes[name].end()
	}
	c.must("run", "--session", "room", write(t, little+"```bash\necho 41 > kept\n```\n"))
	r := f.run(c, "room", little+"```bash\necho began; sleep 600\n```\n")
	waitFor(t, func() string { return without(p.home, "journal", `"output":`) })
	f.node("one")
	empty := fill(t, p.home)
	if err := <-r.end; err == nil || !strings.Contains(r.out.String(), "result: error") ||
		!regexp.MustCompile(`hint: .*free (disk|some) space`).MatchString(r.errs.String()) {
		t.Errorf("%v\n%s%s", err, r.out.String(), r.errs.String())
	}
	if out := c.must("log", "room"); strings.Count(out, "passed") != 1 || strings.Contains(out, "running") {
		t.Errorf("the log is %s", out)
	}
	next := write(t, little+"```bash\ncat kept\n```\n")
	goesOn := func(node string) {
		t.Helper()
		waitFor(t, func() string { // it is refused until the controller knows how much room there is
			out, errs, err := c.turn("run", "--session", "room", next)
			if err == nil && (!strings.Contains(out, "\n41\n") || f.nodeOf() != node) {
				t.Errorf("at %s: %s", f.nodeOf(), out)
			}
			if err != nil {
				return errs
			}
			return ""
		})
	}
	goesOn("one")
	empty()
	f.nodes["one"].end()
	goesOn("small")
	if why := without(p.home, "outcome.json", `"result":"error"`); why != "" {
		t.Error("the end of the turn is not stored: " + why)
	}
}

// without returns why no file of this name below dir has a text.
func without(dir, name, text string) string {
	why := "there is no " + name
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), text) {
				why = ""
				return fs.SkipAll
			}
			why = path + " does not have " + text
		}
		return nil // files come and go
	})
	if err != nil {
		return err.Error()
	}
	return why
}

// attempt returns why an attempt of a session's turn, counted from 0, does not run yet, with all that it
// needs to start again.
func (f *faults) attempt(session string, n int) string {
	var is int
	err := f.leases.QueryRow(`SELECT count(*) FROM tickets JOIN turns ON turns.id = tickets.turn
		JOIN sessions ON sessions.id = turns.session JOIN checkpoints ON checkpoints.turn = turns.id
		WHERE sessions.name = $1 AND turns.status = 'running' AND attempt = $2`, session, n).Scan(&is)
	switch {
	case err != nil:
		return err.Error()
	case is != 1:
		return "the attempt has not begun"
	}
	return ""
}
