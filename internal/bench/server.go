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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"turnstone.dev/turnstone"
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
	fmt.Printf("## Server%s\n\n| p50 | on this machine | through gateway and channel | added | goal |\n"+
		"|---|---|---|---|---|\n", b.on())
	if err := b.remoteTurn(ctx, s); err != nil {
		return err
	}
	local, err := b.remoteExec(ctx, s)
	if err != nil {
		return err
	}
	defer b.remove(ctx, local)
	if err := b.carried(ctx, local); err != nil {
		return err
	}
	return b.relayed(ctx)
}

// carried prints what a channel costs on the way to a sandbox of this machine.
func (b *bench) carried(ctx context.Context, id string) error {
	found, err := b.floorBenchmarks(ctx, "node", "Sandbox", fmt.Sprintf("%dx", min(b.runs, serverRuns)),
		"TURNSTONE_BENCH_HOME="+b.home.Root, "TURNSTONE_BENCH_SANDBOX="+id)
	if err != nil {
		return err
	}
	p := found["Sandbox/process"]
	fmt.Printf("| a process `true`, over open connections | %.1f ms | %.1f ms | %.1f ms | 2.0 ms |\n",
		p["local-ms"], p["channel-ms"], p["channel-ms"]-p["local-ms"])
	return b.carriedBytes(ctx, found)
}

// throughput prints what a channel to a sandbox of this machine carries.
func (b *bench) throughput(ctx context.Context, id string) error {
	found, err := b.floorBenchmarks(ctx, "node", "Sandbox/(output|input)", b.divide.Times(5),
		"TURNSTONE_BENCH_HOME="+b.home.Root, "TURNSTONE_BENCH_SANDBOX="+id)
	if err != nil {
		return err
	}
	return b.carriedBytes(ctx, found)
}

func (b *bench) carriedBytes(ctx context.Context, found map[string]map[string]float64) error {
	all, err := b.floorBenchmarks(ctx, "node", "Carry", b.divide.Times(3))
	if err != nil {
		return err
	}
	fmt.Print("\n| throughput, MB/s (seconds of CPU for each GB, without the sandbox) | plain relay | " +
		"channel in it | ratio | goal |\n|---|---|---|---|---|\n")
	for _, way := range []string{"output", "input"} {
		m := found["Sandbox/"+way]
		fmt.Printf("| %s of a sandbox, %s | %.0f (%.2f) | %.0f (%.2f) | %.2f | 0.70 |\n", way, b.bytes(64<<20),
			m["plain-MB/s"], m["plain-cpu-s/GB"], m["channel-MB/s"], m["channel-cpu-s/GB"],
			m["channel:plain"])
	}
	plain, sealed := all["Carry/plain"], all["Carry/channel"]
	fmt.Printf("| %s, no sandbox, all ends in one process | %.0f (%.2f) | %.0f (%.2f) | %.2f | – |\n",
		b.bytes(1<<30), plain["MB/s"], plain["cpu-s/GB"], sealed["MB/s"], sealed["cpu-s/GB"],
		sealed["MB/s"]/plain["MB/s"])
	return nil
}

// bytes returns a size of the measurements that the floors divide, such as "64 MiB".
func (b *bench) bytes(n int) string {
	text := turnstone.Bytes(b.divide.Of(n)).String()
	unit := strings.IndexFunc(text, unicode.IsLetter)
	return text[:unit] + " " + text[unit:]
}

// relayed prints what a gateway in a process of its own costs.
func (b *bench) relayed(ctx context.Context) error {
	idle, err := b.floorBenchmarks(ctx, "gateway", "Idle", "1x")
	if err != nil {
		return err
	}
	moved, err := b.floorBenchmarks(ctx, "gateway", "Throughput", b.divide.Times(2048)) // MiB
	if err != nil {
		return err
	}
	fmt.Print("\n| the gateway's process | plain | TLS | goal |\n|---|---|---|---|\n")
	fmt.Printf("| seconds of CPU for each GB that it carries | %.2f | %.2f | 1.00 |\n",
		moved["Throughput/plain"]["cpu-s/GB"], moved["Throughput/tls"]["cpu-s/GB"])
	for _, what := range []string{"connection", "channel"} {
		fmt.Printf("| memory of an idle %s | %.1f KiB | %.1f KiB | 64 KiB |\n", what,
			idle["Idle/plain-"+what]["B/each"]/1024, idle["Idle/tls-"+what]["B/each"]/1024)
	}
	return nil
}

// A served is a running server with all roles and a client of it.
type served struct {
	cmd    *exec.Cmd
	log    bytes.Buffer
	dir    string
	remote []string // variables of commands on the server
	token  string
}

// serve starts a server on the state directory of the other parts, so that both sides have the same
// templates and snapshots, and makes a client.
func (b *bench) serve(ctx context.Context, settings ...string) (*served, error) {
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
	s.cmd.Env = append(s.cmd.Env, settings...)
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
	s.token = strings.TrimSpace(token)
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

// asItIs changes nothing before a run.
func asItIs() error { return nil }

// forget makes the client forget the statements about sandboxes, so that it asks for one.
func (s *served) forget() error {
	return os.RemoveAll(filepath.Join(s.dir, "client", "statements"))
}

// end ends the server, waits for it, and removes its client, which knows it as bench: the next part's
// server has another address.
func (s *served) end() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// answer runs a command until it succeeds, for at most five minutes: a server needs time to start.
func (b *bench) answer(ctx context.Context, env []string, args ...string) (string, error) {
	for until := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
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
// There, each run begins with before.
func (b *bench) compare(ctx context.Context, s *served, here, there []string, before func() error) (
	d [2][]time.Duration, err error) {
	for i := range min(b.runs, serverRuns) + b.warmUps() {
		for side, args := range [][]string{here, there} {
			env := []string{"TURN_HOME=" + b.home.Root}
			if side == 1 {
				env = s.remote
				if err := before(); err != nil {
					return d, err
				}
			}
			began := time.Now()
			if _, err := b.output(ctx, env, args...); err != nil {
				return d, err
			}
			if i >= b.warmUps() {
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
	d, err := b.compare(ctx, s, args, args, asItIs)
	if err == nil {
		printRow("a turn of `true`, the whole process", d, 10*time.Millisecond)
	}
	return err
}

// remoteExec prints the time of exec, and returns the sandbox of this machine that it has made.
func (b *bench) remoteExec(ctx context.Context, s *served) (id string, err error) {
	here, there := []string{"TURN_HOME=" + b.home.Root}, s.remote
	ids := make([]string, 2)
	for side, env := range [][]string{here, there} {
		out, err := b.output(ctx, env, "sandbox", "create")
		if err != nil {
			b.remove(ctx, ids[0])
			return "", err
		}
		ids[side] = strings.TrimSpace(out)
	}
	defer func() {
		_, _ = b.output(context.WithoutCancel(ctx), there, "sandbox", "rm", ids[1])
		if err != nil {
			b.remove(ctx, ids[0])
		}
	}()
	args := func(id string) []string { return []string{"sandbox", "exec", id, "--", "true"} }
	for _, row := range []struct {
		name   string
		before func() error
	}{{"", asItIs}, {", its client's first", s.forget}} {
		d, err := b.compare(ctx, s, args(ids[0]), args(ids[1]), row.before)
		if err != nil {
			return ids[0], err
		}
		printRow("`sandbox exec` of `true`, the whole process"+row.name, d, 2*time.Millisecond)
	}
	return ids[0], nil
}

// remove removes a sandbox of this machine; none has the ID "".
func (b *bench) remove(ctx context.Context, id string) {
	if id != "" {
		_, _ = b.output(context.WithoutCancel(ctx), []string{"TURN_HOME=" + b.home.Root}, "sandbox",
			"rm", id)
	}
}

// floorBenchmarks runs benchmarks of a package, whose test binary is in the floors' folder, and
// returns their metrics by unit.
func (b *bench) floorBenchmarks(ctx context.Context, name, pattern, times string, env ...string) (
	map[string]map[string]float64, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.floors, name+".test"), "-test.run", "^$",
		"-test.bench", pattern, "-test.benchtime", times)
	cmd.Env = append(append(os.Environ(), b.divide.Environ()), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s.test: %w: %s", name, err, out)
	}
	all := map[string]map[string]float64{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		row := cpuSuffix.ReplaceAllString(strings.TrimPrefix(words[0], "Benchmark"), "")
		all[row] = map[string]float64{}
		for i := 2; i+1 < len(words); i += 2 {
			if all[row][words[i+1]], err = strconv.ParseFloat(words[i], 64); err != nil {
				return nil, fmt.Errorf("%s.test: %w", name, err)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s.test has measured nothing: %s", name, out)
	}
	return all, nil
}

// cpuSuffix is what package testing adds to a benchmark's name on several CPUs.
var cpuSuffix = regexp.MustCompile(`-\d+$`)
