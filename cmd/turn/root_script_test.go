package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/fixedport"
)

// parts are the processes of servers that scripts started, by script and name.
var parts sync.Map

type partKey struct {
	script *testscript.TestScript
	name   string
}

// front starts a gateway with its controller until the script's end: "front NAME HOME". The address is
// the variable NAME; nodes connect to the sockets in HOME.
func front(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: front NAME HOME")
	}
	at, err := fixedport.Free(context.Background(), "127.0.0.1")
	ts.Check(err)
	home := ts.MkAbs(args[1])
	startPart(ts, args[0], home, []string{"--listen", at, "--role", "gateway,controller"},
		"TURN_SERVER_PEERS_LISTEN=unix:"+home+"/peers.sock")
	ts.Setenv(args[0], "http://"+at)
}

// node starts a node of a front until the script's end or "end NAME": "node NAME HOME FRONTHOME". It
// has the name NAME, and the log NAME.log. HOME gets what the script's own home shares with others.
func node(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: node NAME HOME FRONTHOME")
	}
	home := ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(home, 0o700))
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		_ = os.Symlink(filepath.Join(ts.Getenv("SHARED"), part), filepath.Join(home, part))
	}
	startPart(ts, args[0], home, []string{"--role", "node"}, "TURN_SERVER_NODE_NAME="+args[0],
		"TURN_SERVER_PEERS_LISTEN=unix:"+home+"/peers.sock",
		"TURN_SERVER_PEERS_CONTROLLER=unix:"+ts.MkAbs(args[2])+"/peers.sock")
	await(ts, false, []string{args[0] + ".log", "node registered"})
}

// end ends what front or node started: "end NAME".
func end(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: end NAME")
	}
	cmd, ok := parts.LoadAndDelete(partKey{ts, args[0]})
	if !ok {
		ts.Fatalf("%s does not run", args[0])
	}
	endPart(cmd.(*exec.Cmd))
}

func endPart(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
}

func startPart(ts *testscript.TestScript, name, home string, flags []string, settings ...string) {
	program, err := turnServer(ts)
	ts.Check(err)
	ts.Check(os.MkdirAll(home, 0o700))
	log, err := os.Create(ts.MkAbs(name + ".log"))
	ts.Check(err)
	cmd := exec.Command(program, append([]string{"serve"}, flags...)...)
	for _, v := range environ(ts) {
		if !strings.HasPrefix(v, "TURN_HOME=") && !strings.HasPrefix(v, "TURN_HOST=") &&
			!strings.HasPrefix(v, "TURN_TOKEN=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "TURN_HOME="+home), settings...)
	cmd.Stderr, cmd.Stdout, cmd.Dir = log, log, ts.MkAbs(".")
	ts.Check(cmd.Start())
	key := partKey{ts, name}
	parts.Store(key, cmd)
	ts.Defer(func() {
		if cmd, ok := parts.LoadAndDelete(key); ok {
			endPart(cmd.(*exec.Cmd))
		}
		_ = log.Close()
	})
}
