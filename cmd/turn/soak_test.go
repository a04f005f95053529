package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fixedport"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

// Sizes of TestSoak. The variables TURN_SOAK_TURNS and TURN_SOAK_FOR (a duration, which counts in
// place of the number of turns) make it longer, TURN_SOAK_FAULTS is how many faults of each kind come
// in 100 turns, and TURN_SOAK_SEED repeats the places of one's faults.
const (
	soakTurns   = 40
	soakWorkers = 4
	soakTenants = 3
	// soakPatience bounds one command: a client that takes longer hangs.
	soakPatience = 6 * time.Minute
)

// TestSoak runs short turns of several tenants through a real server, and kills its node, its gateway,
// its controller and the connections of clients meanwhile: about one of each for a hundred turns, and
// one at least.
// Each turn adds its number to a file of its session, so the file says which turns ran, and how often.
// No turn is lost, none runs twice, no client hangs, and nothing is left behind.
func TestSoak(t *testing.T) {
	s := newSoak(t)
	var wg sync.WaitGroup
	for w := range soakWorkers {
		wg.Go(func() { s.work(w) })
	}
	wg.Wait()
	s.kills.Wait()
	for w := range soakWorkers {
		s.checkSession(w)
	}
	s.checkRemains()
	s.checkGrowth()
	t.Logf("%d turns passed, %d were interrupted, %d commands were repeated; %v", s.passed,
		s.interrupted, s.repeated, s.killed)
	if s.passed == 0 {
		t.Error("no turn passed")
	}
}

// A soak is one run of TestSoak.
type soak struct {
	t         *testing.T
	dir       string
	processes map[string]*soakProcess // by role
	relay     *relay
	turns     int
	until     time.Time // zero: turns counts
	kills     sync.WaitGroup

	mu          sync.Mutex
	random      *rand.Rand
	next        int
	faults      map[int][]string // by turn, what is killed while it runs
	kept        [soakWorkers][]int
	failed      map[int]string // by turn that was interrupted, what its client was told
	passed      int
	interrupted int
	repeated    int
	killed      map[string]int
}

// A soakProcess is a process of the server, which is killed and started again.
type soakProcess struct {
	mu sync.Mutex
	serverProcess
}

// restart kills the process as a crash does, and starts it again.
func (p *soakProcess) restart() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(syscall.SIGKILL)
	p.log += "+" // the log before stays
	return p.start()
}

func newSoak(t *testing.T) *soak {
	shared := turntest.Home(t).Root // skips with -short
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TURN_SOAK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TURN_SOAK_SEED=%d", seed)
	s := &soak{t: t, dir: t.TempDir(), turns: soakTurns, killed: map[string]int{},
		failed: map[int]string{}, processes: map[string]*soakProcess{},
		random: rand.New(rand.NewPCG(seed, 1)), faults: map[int][]string{}}
	if text := os.Getenv("TURN_SOAK_TURNS"); text != "" {
		var err error
		if s.turns, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	var length time.Duration
	if text := os.Getenv("TURN_SOAK_FOR"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		length, s.turns = d, 1<<30
	}
	faults := 1
	if text := os.Getenv("TURN_SOAK_FAULTS"); text != "" {
		var err error
		if faults, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, what := range append(soakRoles(), "connections") {
		for range max(1, faults*min(s.turns, 100_000)/100) {
			// the first turns build what later ones use
			i := soakWorkers + s.random.IntN(min(s.turns, 100_000)-soakWorkers)
			s.faults[i] = append(s.faults[i], what)
		}
	}
	s.serve(shared)
	if length > 0 {
		s.until = time.Now().Add(length)
	}
	return s
}

// serve starts the server, and makes a client of each tenant.
func (s *soak) serve(shared string) {
	program := filepath.Join(s.dir, "turn-server")
	if out, err := exec.Command("go", "build", "-o", program, "../turn-server").CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	for _, home := range soakRoles() {
		s.check(os.MkdirAll(s.path(home), 0o700))
	}
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		s.check(os.MkdirAll(filepath.Join(shared, part), 0o700))
		s.check(os.Symlink(filepath.Join(shared, part), s.path("node", part)))
	}
	at := freeAddress(s.t)
	peers := func(role string) string { return "unix:" + s.path(role, "peers.sock") }
	start := func(role string, args []string, settings ...string) {
		p := &soakProcess{serverProcess: serverProcess{program: program, dir: s.dir,
			args: append([]string{"serve", "--role", role}, args...), log: s.path(role + ".log"),
			env: append(soakEnviron(s.path(role)), settings...)}}
		s.check(p.start())
		s.t.Cleanup(func() { p.end(syscall.SIGTERM) })
		s.processes[role] = p
	}
	start("controller", nil, "TURN_SERVER_PEERS_LISTEN="+peers("controller"))
	start("gateway", []string{"--listen", at}, "TURN_SERVER_PEERS_CONTROLLER="+peers("controller"),
		"TURN_SERVER_LIMITS_RATE=10000", "TURN_SERVER_LIMITS_BURST=10000")
	start("node", nil, "TURN_SERVER_PEERS_LISTEN="+peers("node"),
		"TURN_SERVER_PEERS_CONTROLLER="+peers("controller"), "TURN_SERVER_NODE_WARM_IDLE=2s")
	s.awaitText(s.path("node.log"), "node registered")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	s.relay = &relay{to: at, l: l, open: map[net.Conn]bool{}, passes: make(chan struct{})}
	close(s.relay.passes)
	go s.relay.accept()
	s.t.Cleanup(func() { _ = l.Close(); s.relay.change("cut") })
	signer, err := key.Ring{Dir: &statedir.Dir{Root: s.path("node")}}.NodeKey(context.Background())
	s.check(err)
	for i := range soakTenants {
		token, errs, err := s.turn("controller", "token", "create", "--name", "soak", "--tenant",
			fmt.Sprintf("t%d", i))
		if err != nil {
			s.t.Fatalf("%v: %s", err, errs)
		}
		file := s.path(fmt.Sprintf("token%d", i))
		s.check(os.WriteFile(file, token, 0o600))
		if _, errs, err := s.turn(s.client(i), "host", "add", "--use", "soak",
			"http://"+l.Addr().String(), "--token-file", file, "--pin", signer.ID()); err != nil {
			s.t.Fatalf("%v: %s", err, errs)
		}
	}
}

// soakRoles are the processes of the server.
func soakRoles() []string { return []string{"controller", "gateway", "node"} }

func (s *soak) path(elem ...string) string { return filepath.Join(append([]string{s.dir}, elem...)...) }

func (s *soak) client(worker int) string { return fmt.Sprintf("client%d", worker%soakTenants) }

func (s *soak) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func freeAddress(t *testing.T) string {
	at, err := fixedport.Free(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// soakEnviron is the environment of a program with this state directory.
func soakEnviron(home string) []string {
	env := []string{"TURN_HOME=" + home, "TURN_BACKGROUND=off"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TURN_SUBSTRATE", "TURN_RUNSC",
		"TURN_KERNEL", "GOCOVERDIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// turn runs the command turn with this state directory.
func (s *soak) turn(home string, args ...string) (out, errs []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), soakPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "turn", args...)
	cmd.Env, cmd.Dir = soakEnviron(s.path(home)), s.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("turn %q hangs: %w", args, context.Cause(ctx))
	}
	return stdout.Bytes(), stderr.Bytes(), err
}

func (s *soak) awaitText(path, text string) {
	s.t.Helper()
	for until := time.Now().Add(4 * time.Minute); time.Now().Before(until); time.Sleep(
		50 * time.Millisecond) {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(text)) {
			return
		}
	}
	b, _ := os.ReadFile(path)
	s.t.Fatalf("%s has no %q:\n%s", path, text, b)
}

// take returns the number of the next turn; false: there are enough.
func (s *soak) take() (n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next >= s.turns || !s.until.IsZero() && time.Now().After(s.until) {
		return 0, false
	}
	s.next++
	for _, what := range s.faults[s.next-1] {
		wait := time.Duration(s.random.IntN(700)) * time.Millisecond
		s.killed[what]++
		s.kills.Go(func() {
			time.Sleep(wait) // a random moment of the turn, not a wait for anything
			s.kill(what)
		})
	}
	return s.next - 1, true
}

// kill kills a part of the server.
func (s *soak) kill(what string) {
	if what == "connections" {
		s.relay.change("cut")
		return
	}
	if err := s.processes[what].restart(); err != nil {
		s.t.Error(err)
	}
}

// work runs turns of one session, one after the other.
func (s *soak) work(w int) {
	for n, ok := s.take(); ok && !s.t.Failed(); n, ok = s.take() {
		doc := s.path(fmt.Sprintf("turn-%d.md", n))
		text := fmt.Sprintf("# Turn %d\n\n```bash\necho %d >> /root/log\n```\n", n, n)
		args := []string{"run", "-q", "--json", "--session", fmt.Sprintf("s%d", w)}
		if n%3 == 0 {
			text += "\n```bash\ntail -1 /root/log\n```\n"
			args = append(args, "--checkpoint", "step")
		}
		if err := os.WriteFile(doc, []byte(text), 0o600); err != nil {
			s.t.Error(err)
			return
		}
		for tries := 0; !s.once(w, n, append(args, doc)); tries++ {
			if tries > 20 {
				s.t.Errorf("turn %d does not start", n)
				return
			}
			time.Sleep(200 * time.Millisecond) // the server is being started again
		}
		_ = os.Remove(doc)
	}
}

// once runs a turn, and reports whether it began. One that did not may be tried again; if it ran in
// spite of that, its number is twice in the session's file.
func (s *soak) once(w, n int, args []string) (began bool) {
	out, errs, err := s.turn(s.client(w), args...)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0) {
		s.t.Errorf("turn %d: %v\n%s", n, err, errs)
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var rep turnstone.TurnReport
	if json.Unmarshal(out, &rep) != nil { // there is no report: nothing ran, as the client says
		if code := exit.ExitCode(); code != 3 {
			s.t.Errorf("turn %d: exit status %d\n%s%s", n, code, out, errs)
		}
		s.repeated++
		s.failed[n] += fmt.Sprintf("did not begin: %s", errs)
		s.t.Logf("turn %d did not begin: %s", n, errs)
		return false
	}
	switch rep.Result {
	case turnstone.ResultPassed:
		s.kept[w] = append(s.kept[w], n)
		s.passed++
	case turnstone.ResultError:
		if !strings.Contains(rep.Receipt, "result: error") || !strings.Contains(rep.Receipt,
			fmt.Sprintf("# Turn %d\n", n)) {
			s.t.Errorf("turn %d has no receipt: %+v", n, rep)
		}
		s.interrupted++
		s.failed[n] += fmt.Sprintf("%s: %s (%s)\n%s", rep.ID, rep.Error, rep.Hint, rep.Receipt)
	default:
		s.t.Errorf("turn %d: %s %s\n%s", n, rep.Result, rep.Error, rep.Receipt)
	}
	return true
}

// checkSession compares the file of a worker's session with what the worker was told.
func (s *soak) checkSession(w int) {
	name := fmt.Sprintf("s%d", w)
	if len(s.kept[w]) == 0 {
		return
	}
	out, errs, err := s.turn(s.client(w), "cat", name+":/root/log")
	if err != nil {
		s.t.Errorf("%s: %v\n%s", name, err, errs)
		return
	}
	var ran []int
	for line := range strings.Lines(string(out)) {
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			s.t.Error(err)
		}
		ran = append(ran, n)
	}
	if !slices.Equal(ran, s.kept[w]) {
		s.t.Errorf("%s has the turns %v, and its client was told of %v", name, ran, s.kept[w])
		for i, n := range ran {
			if !slices.Contains(s.kept[w], n) || slices.Contains(ran[:i], n) {
				s.t.Errorf("of turn %d, the client was told: %s", n, s.failed[n])
			}
		}
		out, errs, err := s.turn(s.client(w), "log", name, "--json")
		s.t.Errorf("%v\n%.20000s%s", err, out, errs)
	}
	if out, errs, err = s.turn(s.client(w), "verify", name); err != nil {
		s.t.Errorf("%s: %v\n%s%s", name, err, out, errs)
	}
}

// checkRemains checks that the node has nothing of ended turns.
func (s *soak) checkRemains() {
	homes := []string{s.path("node")}
	for i := range soakTenants {
		homes = append(homes, s.path("node", "tenants", fmt.Sprintf("t%d", i)))
	}
	var left []string
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(
		100 * time.Millisecond) {
		left = s.remains(homes)
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		s.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	for _, home := range homes {
		if _, err := os.Stat(home); err != nil {
			s.t.Errorf("%v: the check is of nothing", err)
		}
	}
}

func (s *soak) remains(homes []string) (left []string) {
	for _, home := range homes {
		left = append(left, leftovers(home)...)
		leases, _ := filepath.Glob(filepath.Join(home, "leases", "t_*"))
		left = append(left, leases...)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.dir) {
			left = append(left, line)
		}
	}
	own := map[int]bool{}
	for _, p := range s.processes {
		own[p.cmd.Process.Pid] = true
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, err := os.ReadFile(path)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && bytes.Contains(text, []byte(s.dir)) && !own[pid] {
			left = append(left, fmt.Sprintf("process %d: %s", pid,
				bytes.ReplaceAll(text, []byte{0}, []byte(" "))))
		}
	}
	return left
}

// soakRounds is how many turns each session gets without faults.
const soakRounds = 3

// few bounds the descriptors that a process may have more after these turns, such as connections
// that are kept for later: less than one for every two turns.
const few = soakRounds*soakWorkers/2 - 1

// checkGrowth runs some more turns, without faults. The processes of the server then have hardly more
// descriptors than before, and no goroutine of a turn or a connection.
func (s *soak) checkGrowth() {
	round := func() {
		var wg sync.WaitGroup
		for w := range soakWorkers {
			wg.Go(func() {
				if out, errs, err := s.turn(s.client(w), "run", "-q", "--session",
					fmt.Sprintf("s%d", w), s.path("quiet.md")); err != nil {
					s.t.Errorf("%v\n%s%s", err, out, errs)
				}
			})
		}
		wg.Wait()
	}
	s.check(os.WriteFile(s.path("quiet.md"), []byte("```bash\ntrue\n```\n"), 0o600))
	round() // a process that was just started opens what it keeps
	s.checkRemains()
	before := map[string]int{}
	for name, p := range s.processes {
		before[name] = p.descriptors()
	}
	for range soakRounds {
		round()
	}
	s.checkRemains()
	for name, p := range s.processes {
		now := p.descriptors()
		for until := time.Now().Add(time.Minute); now > before[name]+few && time.Now().Before(
			until); time.Sleep(100 * time.Millisecond) {
			now = p.descriptors()
		}
		if now == 0 || now > before[name]+few {
			s.t.Errorf("%s: %d descriptors, %d before:\n%s", name, now, before[name],
				strings.Join(p.names(), "\n"))
		}
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints the goroutines, and ends it
		_ = p.cmd.Wait()
		text, err := os.ReadFile(p.log)
		s.check(err)
		for _, of := range []string{"node/turns.(*Service).run(", "turn.(*run).", "relay.Copy",
			"node.(*Node).serve"} {
			if bytes.Contains(text, []byte(of)) {
				s.t.Errorf("%s: a goroutine of %s is left:\n%s", name, of, text)
			}
		}
		n := bytes.Count(text, []byte("\ngoroutine "))
		s.t.Logf("%s: %d goroutines, %d descriptors", name, n, now)
		if n == 0 || n > idleGoroutines {
			s.t.Errorf("%s has %d goroutines without clients:\n%s", name, n, text)
		}
	}
}

// idleGoroutines bounds the goroutines of a process of the server without clients.
const idleGoroutines = 150

func (p *soakProcess) descriptors() int { return len(p.names()) }

// names lists the open descriptors, without the packs that the store keeps open, which it bounds.
func (p *soakProcess) names() (all []string) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	for _, l := range links {
		if name, err := os.Readlink(l); err == nil && !strings.Contains(name, "/packs/") {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}
