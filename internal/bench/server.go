package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// serverRuns bounds the runs of each row of the part server.
const serverRuns = 15

// server compares turns and commands of a sandbox through a server with those of this machine.
func (b *bench) server(ctx context.Context) error {
	s, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	fmt.Printf("## Server%s\n\n| the whole process, p50 | on this machine | through gateway and channel | added | goal |\n"+
		"|---|---|---|---|---|\n", b.on())
	if err := b.remoteTurn(ctx, s); err != nil {
		return err
	}
	if err := b.remoteExec(ctx, s); err != nil {
		return err
	}
	if err := b.floorBenchmarks(ctx, "1 GiB through the relay over loopback, all ends in one process",
		"node", "Carry", "3x"); err != nil {
		return err
	}
	return b.floorBenchmarks(ctx, "a gateway in a process of its own", "gateway",
		"Idle|Throughput", "1x")
}

// A served is a running server with all roles and a client of it.
type served struct {
	cmd    *exec.Cmd
	log    bytes.Buffer
	dir    string
	remote []string // variables of commands on the server
}

// serve starts a server on the state directory of the other parts, so that both sides have the same
// templates and snapshots, and makes a client.
func (b *bench) serve(ctx context.Context) (*served, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	_ = l.Close()
	s := &served{dir: filepath.Join(b.dir, "client")}
	s.cmd = exec.CommandContext(ctx, b.turn, "serve", "--listen", address)
	s.cmd.Env = append(os.Environ(), "TURN_HOME="+b.home.Root,
		"TURN_SERVER_RECORDS_DATABASE="+filepath.Join(b.dir, "server.db"),
		"TURN_SERVER_NODE_NAME=bench", "TURN_SERVER_LIMITS_RATE=100000",
		"TURN_SERVER_LIMITS_BURST=100000")
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	operator := []string{"TURN_HOST=unix:" + filepath.Join(b.home.Root, "server.sock"),
		"TURN_HOME=" + s.dir}
	token, err := b.answer(ctx, operator, "token", "create", "--name", "bench")
	if err != nil {
		s.end()
		return nil, fmt.Errorf("%w: %s", err, s.log.String())
	}
	s.remote = []string{"TURN_HOME=" + s.dir, "TURN_TOKEN=" + strings.TrimSpace(token),
		"TURN_HOST=bench", "TURN_SUBSTRATE="} // the server selects
	pin, err := b.nodeKey(ctx)
	if err == nil {
		_, err = b.answer(ctx, s.remote[:2], "host", "add", "bench", "http://"+address, "--pin", pin)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// end ends the server, and waits for it.
func (s *served) end() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// answer runs a command until it succeeds, for at most half a minute: a server needs time to start.
func (b *bench) answer(ctx context.Context, env []string, args ...string) (string, error) {
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		out, err := b.output(ctx, env, args...)
		if err == nil || time.Now().After(until) {
			return out, err
		}
	}
}

// output runs a command with more variables, and returns its standard output.
func (b *bench) output(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.turn, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("turn %s: %w: %s", args[0], err, said.String())
	}
	return out.String(), nil
}

// nodeKey returns the fingerprint of the key of this machine's node.
func (b *bench) nodeKey(ctx context.Context) (string, error) {
	out, err := b.output(ctx, []string{"TURN_HOME=" + b.home.Root}, "key", "ls")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(out, "\n") {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "node" {
			for _, w := range words {
				if strings.HasPrefix(w, "SHA256:") {
					return w, nil
				}
			}
		}
	}
	return "", errors.New("turn key ls shows no key of the node")
}

// compare times a command here and at the server, alternately.
func (b *bench) compare(ctx context.Context, s *served, here, there []string) (d [2][]time.Duration,
	err error) {
	for i := range min(b.runs, serverRuns) + 1 {
		for side, args := range [][]string{here, there} {
			env := []string{"TURN_HOME=" + b.home.Root}
			if side == 1 {
				env = s.remote
			}
			began := time.Now()
			if _, err := b.output(ctx, env, args...); err != nil {
				return d, err
			}
			if i > 0 { // the first may make a snapshot
				d[side] = append(d[side], time.Since(began))
			}
		}
	}
	return d, nil
}

func printRow(name string, d [2][]time.Duration, goal time.Duration) {
	here, there := quantile(d[0], 50), quantile(d[1], 50)
	fmt.Printf("| %s | %s | %s | %s | %s |\n", name, ms(here), ms(there), ms(there-here), ms(goal))
}

func (b *bench) remoteTurn(ctx context.Context, s *served) error {
	doc := filepath.Join(b.dir, "true.md")
	if err := os.WriteFile(doc, []byte(step("true")), 0o600); err != nil {
		return err
	}
	args := []string{"run", "-q", doc}
	d, err := b.compare(ctx, s, args, args)
	if err == nil {
		printRow("a turn of `true`", d, 10*time.Millisecond)
	}
	return err
}

func (b *bench) remoteExec(ctx context.Context, s *served) error {
	ids := make([]string, 2)
	for side, env := range [][]string{{"TURN_HOME=" + b.home.Root}, s.remote} {
		out, err := b.output(ctx, env, "sandbox", "create")
		if err != nil {
			return err
		}
		ids[side] = strings.TrimSpace(out)
		defer func() { _, _ = b.output(context.WithoutCancel(ctx), env, "sandbox", "rm", ids[side]) }()
	}
	run := func(command ...string) ([2][]time.Duration, error) {
		args := func(id string) []string {
			return append([]string{"sandbox", "exec", id, "--"}, command...)
		}
		return b.compare(ctx, s, args(ids[0]), args(ids[1]))
	}
	d, err := run("true")
	if err != nil {
		return err
	}
	printRow("`sandbox exec` of `true`", d, 2*time.Millisecond)
	return nil
}

// floorBenchmarks prints benchmarks of a package, which are in the floors' folder.
func (b *bench) floorBenchmarks(ctx context.Context, title, name, pattern, times string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(b.floors, name+".test"), "-test.run", "^$",
		"-test.bench", pattern, "-test.benchtime", times).Output()
	if err != nil {
		return fmt.Errorf("%s.test: %w", name, err)
	}
	fmt.Printf("\n| %s | |\n|---|---|\n", title)
	for _, line := range strings.Split(string(out), "\n") {
		if words := strings.Fields(line); len(words) > 2 && strings.HasPrefix(words[0], "Benchmark") {
			fmt.Printf("| %s | %s |\n", strings.TrimPrefix(words[0], "Benchmark"),
				strings.Join(words[2:], " "))
		}
	}
	return nil
}
