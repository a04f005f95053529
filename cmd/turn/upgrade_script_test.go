package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// upgrade ends a process of a server, as Kubernetes does, and starts it again as a program that says
// to be of another version: "upgrade NAME VERSION". NAME is that of its log.
func upgrade(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: upgrade NAME VERSION")
	}
	p := runningOf(ts).servers[args[0]]
	if p == nil {
		ts.Fatalf("%s is no server", args[0])
	}
	program, err := versioned(ts, args[1])
	ts.Check(err)
	p.end(syscall.SIGTERM)
	p.program = program
	ts.Check(p.start())
	await(ts, false, []string{args[0] + ".log", "node registered"})
}

// versioned builds turn-server as of another version, with the turn beside it that it demands.
func versioned(ts *testscript.TestScript, version string) (string, error) {
	building.Lock()
	defer building.Unlock()
	dir := filepath.Join(ts.Getenv("BUILT"), version)
	program := filepath.Join(dir, "turn-server")
	if isFile(program) {
		return program, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w -X turnstone.dev/turnstone.Version="+version,
		"-o", dir+"/", ".", "../turn-server")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return program, nil
}

// joins starts one more node of a server with "split", whose state is in HOME: "joins NODE HOME FRONT".
// NODE is the node's name and the name of its log; the variable NODE_KEY has its key.
func joins(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: joins NODE HOME FRONT")
	}
	program, err := turnServer(ts)
	ts.Check(err)
	name, home, front := args[0], ts.MkAbs(args[1]), ts.MkAbs(args[2])
	ts.Check(os.MkdirAll(home, 0o700))
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		ts.Check(os.Symlink(filepath.Join(ts.Getenv("SHARED"), part), filepath.Join(home, part)))
	}
	ts.Defer(func() {
		endSandboxes(ts, home)
		forgetMemory(home)
	})
	startServer(ts, program, name, home, []string{"--role", "node"}, "TURN_SERVER_NODE_NAME="+name,
		"TURN_SERVER_PEERS_LISTEN=unix:"+home+"/peers.sock",
		"TURN_SERVER_PEERS_CONTROLLER=unix:"+front+"/peers.sock")
	await(ts, false, []string{name + ".log", "node registered"})
	signer, err := key.Ring{Dir: &statedir.Dir{Root: home}}.NodeKey(context.Background())
	ts.Check(err)
	ts.Setenv(name+"_KEY", signer.ID())
}
