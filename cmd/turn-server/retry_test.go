package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone/internal/pg"
)

// again is a document that takes long enough for its node to be lost meanwhile.
const again = "---\nretry: 1\n---\n```bash\nsleep 20; echo finished-$((6*7)) | tee kept\n```\n"

// A runningTurn is a command that runs a document.
type runningTurn struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	end       chan error
	node      string
}

// run begins to run a document.
func (g *group) run(c *client, session, text string) *runningTurn {
	g.t.Helper()
	r := &runningTurn{end: make(chan error, 1)}
	r.cmd = exec.Command(filepath.Join(bin(g.t), "turn"), "run", "--session", session, write(g.t, text))
	r.cmd.Env = environ(g.t, c.home, c.env...)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	check(g.t, r.cmd.Start())
	go func() { r.end <- r.cmd.Wait() }()
	g.t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// begin runs the document, and waits until the database has what the turn begins with.
func (g *group) begin(c *client, session string) *runningTurn {
	g.t.Helper()
	r := g.run(c, session, again)
	db, err := pg.Open(g.t.Context(), g.database.URL, "turn")
	check(g.t, err)
	defer func() { _ = db.Close() }()
	waitFor(g.t, func() string {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM checkpoints JOIN turns ON turns.id = turn
			WHERE status = 'running'`).Scan(&n); err != nil || n != 1 {
			return "the turn has not begun"
		}
		return ""
	})
	r.node = g.nodeOf()
	return r
}

const startsAgain = "the turn of a lost node starts again"

// TestMachineRetry: a turn whose node is lost starts again at another node, once, and its client gets
// the result of that attempt. A node that comes back stores nothing of the turn, and ends its machine. A
// turn that was cancelled does not start again.
func TestMachineRetry(t *testing.T) {
	t.Parallel()
	g := startGroup(t, "15s", "one", "two")
	c := g.client()
	other := func(node string) *process { return g.nodes[map[string]string{"one": "two", "two": "one"}[node]] }

	r := g.begin(c, "killed")
	killed(g.nodes[r.node])
	if err := <-r.end; err != nil || !strings.Contains(r.out.String(), "finished-42") ||
		!strings.Contains(r.out.String(), "attempt 2") {
		t.Fatalf("%v\n%s%s", err, r.out.String(), r.errs.String())
	}
	if other(r.node).times(startsAgain) != 1 || g.nodeOf() == r.node {
		t.Errorf("the turn is at %s", g.nodeOf())
	}
	if log := c.must("log", "killed"); strings.Count(log, "passed") != 1 {
		t.Errorf("the log is %s", log)
	}

	g.node(r.node)
	g.await("one", "two")
	r = g.begin(c, "stopped")
	was := other(r.node).times(startsAgain)
	g.nodes[r.node].kill(syscall.SIGSTOP)
	other(r.node).awaitTimes(startsAgain, was)
	waitTurns(t, g.front, false)
	g.nodes[r.node].kill(syscall.SIGCONT)
	g.nodes[r.node].await("another node has the turn")
	if err := <-r.end; err != nil || !strings.Contains(r.out.String(), "attempt 2") {
		t.Fatalf("%v\n%s%s", err, r.out.String(), r.errs.String())
	}
	waitFor(t, func() string { return machines(t, g.nodes[r.node]) })
	if log := c.must("log", "stopped"); strings.Count(log, "passed") != 1 || strings.Contains(log, "error") {
		t.Errorf("the log is %s", log)
	}

	g.await("one", "two")
	r = g.begin(c, "cancelled")
	was = other(r.node).times(startsAgain)
	killed(g.nodes[r.node])
	check(t, r.cmd.Process.Signal(syscall.SIGINT))
	<-r.end
	waitTurns(t, g.front, false)
	if other(r.node).times(startsAgain) != was {
		t.Error("a turn that was cancelled started again")
	}
}

// machines returns the programs of sandboxes that a process has started and that still run.
func machines(t *testing.T, p *process) string {
	t.Helper()
	out, err := exec.Command("ps", "-o", "args=", "--ppid",
		strconv.Itoa(p.cmd.Process.Pid)).CombinedOutput()
	if err != nil && len(bytes.TrimSpace(out)) == 0 {
		return "" // none
	}
	if strings.Contains(string(out), "runsc") {
		return string(out)
	}
	return ""
}
