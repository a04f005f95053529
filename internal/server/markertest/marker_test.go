// Package markertest shows with running processes that gateways and controllers see no content.
package markertest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone/internal/fixedport"
	"turnstone.dev/turnstone/internal/turntest"
)

// TestMachineMarker runs a turn through a gateway, a controller and a node in three processes, with
// a marker in each place that content can be in. Whatever gateway and controller hold in memory,
// write to their logs and files, or send and receive, has none of the markers; the node's memory
// has, so the search can find them. No metric page, no span and no log of any role has a marker.
func TestMachineMarker(t *testing.T) {
	m := newMarkers()
	w := newWorld(t)
	w.collect()
	controller := w.start("controller",
		"TURN_SERVER_PEERS_LISTEN=unix:"+w.path("controller/peers.sock"),
		"TURN_SERVER_LISTEN_ADDRESS=off")
	toController := w.tap("unix:"+w.path("c.tap"), "unix:"+w.path("controller/peers.sock"))
	node := w.start("node",
		"TURN_SERVER_PEERS_LISTEN=unix:"+w.path("node/peers.sock"),
		"TURN_SERVER_PEERS_ADDRESS="+w.tap("unix:"+w.path("n.tap"), "unix:"+w.path("node/peers.sock")),
		"TURN_SERVER_PEERS_CONTROLLER="+toController,
		"TURN_SERVER_NODE_NAME=one",
		"TURN_SERVER_LISTEN_ADDRESS=off")
	port, err := fixedport.Free(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	gateway := w.start("gateway",
		"TURN_SERVER_LISTEN_ADDRESS="+port,
		"TURN_SERVER_PEERS_CONTROLLER="+toController)
	front := w.tap("127.0.0.1:0", port)

	operator := []string{"TURN_HOST=unix:" + w.path("controller/server.sock")}
	token := w.until(operator, "token", "create", "--name", "marker")
	pin := fingerprint(t, w.until(w.homes("node"), "key", "show", "node"))
	env := append(w.homes("client"), "TURN_TOKEN="+strings.TrimSpace(token),
		m.env("secret"))
	w.until(env, "host", "add", "--use", "--pin", pin, "marked", "http://"+front)

	w.write("client/doc.md", "---\nsession: marked\nenv:\n  PLAIN: "+m.of("env")+"\n---\n# "+
		m.of("title")+"\n\n"+m.of("prose")+"\n\n```bash\n: "+m.of("command")+
		"\ncat "+m.of("name")+"\necho "+cut(m.of("output"))+"\necho \"$PLAIN ${#SECRET}\" > "+
		m.of("made")+"\nwhile ! [ -e /tmp/go ] && [ $((n++)) -lt 20 ]; do sleep 0.1; done\n```\n")
	w.write("client/"+m.of("name"), m.of("file"))

	searched := w.searching(m, gateway, controller)
	receipt := w.turn(env, "run", "--session", "marked", "--grant", "session", "--secret", "SECRET",
		"--add", w.path("client/"+m.of("name"))+":/workspace/", w.path("client/doc.md"))
	for _, place := range []string{"title", "prose", "command", "output", "file"} {
		if !strings.Contains(receipt, m.of(place)) {
			t.Errorf("the receipt lacks the marker of the place %s", place)
		}
	}
	id := strings.TrimSpace(w.turn(env, "sandbox", "create"))
	out := w.turn(env, "sandbox", "exec", "--env", "PLAIN="+m.of("env"),
		"--secret", "SECRET", id, "--", "bash", "-c",
		"echo "+cut(m.of("output"))+"; : "+m.of("command"))
	if !strings.Contains(out, m.of("output")) {
		t.Errorf("the command printed %q", out)
	}
	w.searchWhile(env, m, id, gateway, controller)
	w.turn(env, "sandbox", "rm", id)
	w.turn(env, "log", "marked")
	w.turn(env, "diff", "marked@1")
	searched()
	w.search(m, gateway, controller)
	w.searchPages(m)

	if found := m.in(memory(t, node.Process.Pid)); len(found) == 0 {
		t.Error("the node's memory has no marker, so the search proves nothing")
	}
	for _, role := range []string{"gateway", "controller"} {
		w.searchFiles(m, role)
	}
	w.searchFiles(m, "node.log")
	w.searchPackets(m)
	w.end(gateway, controller, node) // exports the last spans
	w.searchCollected(m)
}

// cut returns a shell word whose text has not the marker, which its output has.
func cut(marker string) string { return marker[:10] + "''" + marker[10:] }

func fingerprint(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	at := slices.Index(words, ssh.KeyAlgoED25519)
	if at < 0 {
		t.Fatalf("no key in %q", line)
	}
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(strings.Join(words[at:], " ")))
	if err != nil {
		t.Fatal(err)
	}
	return ssh.FingerprintSHA256(k)
}

// markers are random texts, by the place that they are put in.
type markers struct{ random string }

func newMarkers() *markers {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return &markers{hex.EncodeToString(b[:])}
}

func (m *markers) of(place string) string { return "mk" + m.random + place }

func (m *markers) env(place string) string { return "SECRET=" + m.of(place) }

// in returns the forms of the markers' common part that are in data: plain, in base64 at each
// offset, and in hexadecimal digits.
func (m *markers) in(data []byte) (found []string) {
	common := []byte("mk" + m.random)
	forms := map[string][]byte{"plain": common, "hex": []byte(hex.EncodeToString(common))}
	for shift := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), common...))
		forms[fmt.Sprintf("base64+%d", shift)] = []byte(text[4 : len(text)-2])
	}
	for name, form := range forms {
		if at := bytes.Index(data, form); at >= 0 {
			around := data[max(0, at-60):min(len(data), at+80)]
			found = append(found, fmt.Sprintf("%s: %q", name, around))
		}
	}
	return found
}

// world is the processes of a test, and the folder with their state.
type world struct {
	t    *testing.T
	dir  string
	bin  string
	mu   sync.Mutex
	taps []*bytes.Buffer
	// collector is the address of an OpenTelemetry collector, which keeps what it gets.
	collector string
	collected bytes.Buffer
}

func newWorld(t *testing.T) *world {
	home := turntest.Home(t).Root // also finds runsc
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"turn", "turn-server"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Skip("make build builds the programs of this test")
		}
	}
	w := &world{t: t, dir: t.TempDir(), bin: bin}
	if err := os.Chmod(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.mkdir("client")
	w.mkdir("node")
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		if err := os.MkdirAll(filepath.Join(home, part), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(home, part), w.path("node/"+part)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) mkdir(name string) {
	w.t.Helper()
	if err := os.MkdirAll(w.path(name), 0o700); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// homes returns the variables of a process with the state directory name.
func (w *world) homes(name string) []string {
	return []string{"TURN_HOME=" + w.path(name), "TURN_BACKGROUND=off"}
}

func (w *world) environ(more []string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "TMPDIR=" + os.TempDir()}
	for _, name := range []string{"TURN_RUNSC", "TURN_SUBSTRATE", "TURN_KERNEL"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return append(env, more...)
}

// start starts a server with one role, whose log is a file. The server ends with the test.
func (w *world) start(role string, settings ...string) *exec.Cmd {
	w.t.Helper()
	w.mkdir(role)
	log, err := os.Create(w.path(role + ".log"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(w.bin, "turn"), "serve", "--role", role)
	cmd.Env = append(w.environ(append(w.homes(role), settings...)), "TURN_SERVER_LOG_LEVEL=debug",
		"TURN_SERVER_NAME=marked", "TURN_SERVER_TELEMETRY_LISTEN=127.0.0.1:0",
		"TURN_SERVER_TELEMETRY_ENDPOINT="+w.collector, "TURN_SERVER_TELEMETRY_INTERVAL=1s",
		"TURN_SERVER_TELEMETRY_TENANTS=local")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		w.end(cmd)
		if w.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			w.t.Logf("%s:\n%s", role, text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

// end ends processes of start, once.
func (w *world) end(all ...*exec.Cmd) {
	for _, cmd := range all {
		if cmd.ProcessState != nil {
			continue
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
	}
}

// collect starts the collector.
func (w *world) collect() {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		in, err := gzip.NewReader(r.Body)
		if err != nil {
			w.t.Error(err)
			return
		}
		body, err := io.ReadAll(in)
		if err != nil {
			w.t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.collected.Write(body)
	}))
	w.t.Cleanup(s.Close)
	w.collector = s.URL
}

// searchCollected searches what the collector got: spans of all roles, and metrics.
func (w *world) searchCollected(m *markers) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.collected.Bytes()
	for _, found := range m.in(all) {
		w.t.Errorf("the collector has %s", found)
	}
	for _, want := range []string{"gateway TurnService/StartTurn", "controller TurnService/StartTurn",
		"node NodeService/ReserveTurn", "node NodeService/CreateSandbox", "channel handshake", "phase steps",
		"turnstone_turn_phase_seconds"} {
		if !bytes.Contains(all, []byte(want)) {
			w.t.Errorf("the collector has no %s", want)
		}
	}
}

// searchPages searches the pages with metrics.
func (w *world) searchPages(m *markers) {
	w.t.Helper()
	for role, want := range map[string]string{"gateway": "turnstone_gateway_requests_total",
		"controller": "turnstone_records_writes_total", "node": `turnstone_turns_total{result="passed"`} {
		log, err := os.ReadFile(w.path(role + ".log"))
		if err != nil {
			w.t.Fatal(err)
		}
		at := regexp.MustCompile(`msg="serving metrics" address=(\S+)`).FindSubmatch(log)
		if at == nil {
			w.t.Fatalf("%s has no page", role)
		}
		answer, err := http.Get("http://" + string(at[1]) + "/metrics")
		if err != nil {
			w.t.Fatal(err)
		}
		page, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		for _, found := range m.in(page) {
			w.t.Errorf("the page of %s has %s", role, found)
		}
		if err != nil || !bytes.Contains(page, []byte(want)) {
			w.t.Errorf("the page of %s has no %s: %v", role, want, err)
		}
	}
}

// turn runs a command as a user, and returns its standard output.
func (w *world) turn(env []string, args ...string) string {
	w.t.Helper()
	out, err := w.try(env, args...)
	if err != nil {
		w.t.Fatalf("turn %s: %v", args[0], err)
	}
	return out
}

func (w *world) try(env []string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(w.bin, "turn"), args...)
	cmd.Env, cmd.Dir = w.environ(env), w.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	return string(out), err
}

// until runs a command until it succeeds: servers need time to start and to find each other.
func (w *world) until(env []string, args ...string) string {
	w.t.Helper()
	if len(env) == 1 {
		env = append(w.homes("client"), env...)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		out, err := w.try(env, args...)
		if err == nil {
			return out
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("turn %s: %v", args[0], err)
		case <-time.After(200 * time.Millisecond): //wait: the loop polls
		}
	}
}

// tap listens at an address, unix:PATH or HOST:PORT, connects each connection with another one, and
// keeps all bytes of both directions. It returns its address.
func (w *world) tap(at, to string) string {
	w.t.Helper()
	network, address := split(at)
	l, err := net.Listen(network, address)
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	w.t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { w.copy(c, to) })
		}
	})
	if network == "tcp" {
		return l.Addr().String()
	}
	return at
}

func split(at string) (network, address string) {
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		return "unix", path
	}
	return "tcp", at
}

func (w *world) copy(c net.Conn, to string) {
	defer func() { _ = c.Close() }()
	network, address := split(to)
	s, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, s}, {s, c}} {
		kept := new(bytes.Buffer)
		w.mu.Lock()
		w.taps = append(w.taps, kept)
		w.mu.Unlock()
		both.Go(func() {
			_, _ = io.Copy(pair[0], io.TeeReader(pair[1], lockedWriter{w, kept}))
			_ = pair[0].Close()
			_ = pair[1].Close()
		})
	}
	both.Wait()
}

type lockedWriter struct {
	w *world
	b *bytes.Buffer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.b.Write(p)
}

// searchPackets searches all bytes that went through the taps.
func (w *world) searchPackets(m *markers) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	total := 0
	for _, b := range w.taps {
		total += b.Len()
		for _, found := range m.in(b.Bytes()) {
			w.t.Errorf("a connection has %s", found)
		}
	}
	if total < 10_000 {
		w.t.Errorf("only %d bytes went through the taps", total)
	}
}

// searchFiles searches the log and the state directory of a role.
func (w *world) searchFiles(m *markers, role string) {
	w.t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(w.dir, path)
		if err != nil || !d.Type().IsRegular() || !strings.HasPrefix(rel, role) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range m.in(append(text, path...)) {
			w.t.Errorf("%s has %s", rel, found)
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}

// search searches the memory of processes.
func (w *world) search(m *markers, processes ...*exec.Cmd) {
	for _, p := range processes {
		for _, found := range m.in(memory(w.t, p.Process.Pid)) {
			w.t.Errorf("the memory of %s has %s", p.Args[3], found)
		}
	}
}

// searchWhile searches the memory of processes while a command runs whose input and output have
// markers: it ends when its input ends.
func (w *world) searchWhile(env []string, m *markers, id string, processes ...*exec.Cmd) {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(w.bin, "turn"), "sandbox", "exec", id, "--", "cat")
	cmd.Env = w.environ(env)
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	_, _ = io.WriteString(in, m.of("input")+"\n")
	if line, err := bufio.NewReader(out).ReadString('\n'); line != m.of("input")+"\n" {
		w.t.Errorf("the command printed %q, %v", line, err)
	}
	w.search(m, processes...)
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		w.t.Errorf("cat: %v", err)
	}
}

// searching searches the memory of processes again and again, until end is called.
func (w *world) searching(m *markers, processes ...*exec.Cmd) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			w.search(m, processes...)
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond): //wait: a pause of a loop
			}
		}
	}()
	end = sync.OnceFunc(func() { close(stop); <-done })
	w.t.Cleanup(end) // before the processes end
	return end
}

// memory returns the memory of a process that it can write, and its anonymous memory.
func memory(t *testing.T, pid int) (all []byte) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = maps.Close() }()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = mem.Close() }()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to, offset, inode uint64
		var mode, device string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &from, &to, &mode, &offset,
			&device, &inode); err != nil {
			t.Errorf("%q: %v", lines.Text(), err)
			continue
		}
		if mode[0] != 'r' || mode[1] != 'w' && inode != 0 || strings.Contains(lines.Text(), "[v") {
			continue
		}
		part := make([]byte, to-from)
		n, err := mem.ReadAt(part, int64(from))
		if err != nil && n == 0 && !errors.Is(err, syscall.EIO) { // it may be unmapped by now
			t.Errorf("memory %x-%x: %v", from, to, err)
		}
		all = append(all, part[:n]...)
	}
	if len(all) < 1<<20 {
		t.Errorf("only %d bytes of memory of process %d were read", len(all), pid)
	}
	return all
}
