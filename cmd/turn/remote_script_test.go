package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/fixedport"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
)

// building serialises the builds of programs that scripts share.
var building sync.Mutex

// builtProgram builds a program for the scripts of one test, unless another script has: name is its
// file in the folder BUILT.
func builtProgram(ts *testscript.TestScript, name, pkg string, flags ...string) (string, error) {
	building.Lock()
	defer building.Unlock()
	path := filepath.Join(ts.Getenv("BUILT"), name)
	if isFile(path) {
		return path, nil
	}
	// No script needs a table of symbols, and linking it takes half of the time.
	build := exec.Command("go", append(append([]string{"build", "-ldflags", "-s -w"}, flags...), "-o", path, pkg)...)
	if len(flags) > 0 { // a client, which needs no cgo
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}

// turnServer returns the program of turn serve: where there is no Go, that of make build.
func turnServer(ts *testscript.TestScript) (string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return exec.LookPath("turn-server")
	}
	return builtProgram(ts, "turn-server", "../turn-server")
}

// server runs turn serve until the script's end: "server NAME HOME". HOME gets what the script's own
// home shares with others. The address is the variable NAME, the log the file NAME.log. With "split",
// the node is a process of its own, with the log NAME-node.log; the state of the gateway and the
// controller is in HOME-front, and tokens are made there.
func server(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 && (len(args) != 3 || args[2] != "split") {
		ts.Fatalf("usage: server NAME HOME [split]")
	}
	program, err := turnServer(ts)
	ts.Check(err)
	name, home := args[0], ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(home, 0o700))
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		_ = os.Symlink(filepath.Join(ts.Getenv("SHARED"), part), filepath.Join(home, part))
	}
	ts.Defer(func() {
		endSandboxes(ts, home)
		forgetMemory(home)
	})
	at, err := fixedport.Free(context.Background(), "127.0.0.1")
	ts.Check(err)
	if len(args) == 3 {
		front := home + "-front"
		ts.Check(os.MkdirAll(front, 0o700))
		startServer(ts, program, name, front, []string{"--listen", at, "--role", "gateway,controller"},
			"TURN_SERVER_PEERS_LISTEN=unix:"+front+"/peers.sock")
		startServer(ts, program, name+"-node", home, []string{"--role", "node"},
			"TURN_SERVER_PEERS_LISTEN=unix:"+home+"/peers.sock",
			"TURN_SERVER_PEERS_CONTROLLER=unix:"+front+"/peers.sock")
		await(ts, false, []string{name + "-node.log", "node registered"})
	} else {
		startServer(ts, program, name, home, []string{"--listen", at})
		await(ts, false, []string{name + ".log", "node registered"})
	}
	ts.Setenv(name, "http://"+at)
	signer, err := key.Ring{Dir: &statedir.Dir{Root: home}}.NodeKey(context.Background())
	ts.Check(err)
	ts.Setenv(name+"_KEY", signer.ID())
}

// endSandboxes ends the sandboxes that a server's tenants still have. They outlive the server, so that
// it finds them when it starts again, and would outlive the script's folder.
func endSandboxes(ts *testscript.TestScript, home string) {
	ctx := context.Background()
	tenants, _ := filepath.Glob(filepath.Join(home, "tenants", "*"))
	for _, dir := range append(tenants, home) {
		if _, err := os.Stat(filepath.Join(dir, "sandboxes")); err != nil {
			continue
		}
		store := sandboxes.NewStore(dir)
		all, err := store.List(ctx)
		if err != nil {
			ts.Logf("the sandboxes in %s: %v", dir, err)
		}
		for _, i := range all {
			if err := store.Discard(ctx, i.ID); err != nil {
				ts.Logf("the sandbox %s: %v", i.ID, err)
			}
		}
	}
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left := heldBy(home)
		if len(left) == 0 {
			return
		}
		if time.Now().After(until) {
			ts.Logf("holders are left: %v", left)
			return
		}
	}
}

// heldBy returns the processes that hold sandboxes of a server's tenants.
func heldBy(home string) (all []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, err := os.ReadFile(path)
		hold := "sandbox\x00hold\x00--home\x00" + home
		if err == nil && (bytes.Contains(b, []byte(hold+"/")) || bytes.Contains(b, []byte(hold+"\x00"))) {
			all = append(all, filepath.Dir(path))
		}
	}
	return all
}

// forgetMemory removes what a server's tenants have in memory.
func forgetMemory(home string) {
	all, _ := filepath.Glob(filepath.Join(home, "tenants", "*"))
	for _, dir := range append(all, home) {
		if d := (&statedir.Dir{Root: dir}); d.HasMemory() {
			_ = d.ForgetMemory()
		}
	}
}

// startServer starts a process of a server, which ends with the script.
func startServer(ts *testscript.TestScript, program, name, home string, flags []string,
	settings ...string) {
	p := &serverProcess{program: program, args: append([]string{"serve"}, flags...),
		dir: ts.MkAbs("."), log: ts.MkAbs(name + ".log")}
	for _, v := range environ(ts) {
		if !strings.HasPrefix(v, "TURN_HOME=") && !strings.HasPrefix(v, "TURN_HOST=") &&
			!strings.HasPrefix(v, "TURN_TOKEN=") {
			p.env = append(p.env, v)
		}
	}
	p.env = append(append(p.env, "TURN_HOME="+home), settings...)
	ts.Check(p.start())
	runningOf(ts).servers[name] = p
	ts.Defer(func() { p.end(syscall.SIGTERM) })
}

// serving puts the program of turn serve into the script's PATH: "serving". What the script's TURN_HOME
// has at the script's end is removed.
func serving(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: serving")
	}
	program, err := turnServer(ts)
	ts.Check(err)
	ts.Setenv("PATH", ts.Getenv("PATH")+string(filepath.ListSeparator)+filepath.Dir(program))
	home := ts.MkAbs(ts.Getenv("TURN_HOME"))
	ts.Defer(func() { endSandboxes(ts, home); forgetMemory(home) })
}

// client puts the client of macOS and Windows into the script's PATH: "client".
func client(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: client")
	}
	path, err := builtProgram(ts, "turn-client", ".", "-tags", clientTags)
	ts.Check(err)
	ts.Setenv("PATH", filepath.Dir(path)+string(filepath.ListSeparator)+ts.Getenv("PATH"))
}
