package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/turntest"
)

// asServer makes the test's program be turn-server.
const asServer = "TURNSTONE_TEST_AS_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		_ = os.Unsetenv(asServer)
		mountHome()
		main()
		return
	}
	os.Exit(m.Run())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bin returns the folder with the built programs; a test without them is skipped.
func bin(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	check(t, err)
	if _, err := os.Stat(filepath.Join(dir, "turn")); err != nil {
		t.Skip("make build has not built turn")
	}
	return dir
}

// environ is an environment with nothing of the test's but where programs are.
func environ(t *testing.T, home string, more ...string) []string {
	t.Helper()
	all := []string{"PATH=" + bin(t) + ":" + os.Getenv("PATH"), "TURN_HOME=" + home,
		"HOME=" + t.TempDir(), "TURN_BACKGROUND=off", "TMPDIR=" + os.TempDir()}
	for _, name := range []string{"TURN_RUNSC", "TURN_KERNEL", "TURN_SUBSTRATE", "GORACE"} {
		if v := os.Getenv(name); v != "" {
			all = append(all, name+"="+v)
		}
	}
	return append(all, more...)
}

// A process is a running server.
type process struct {
	t    *testing.T
	home string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of its end, after done

	mu  sync.Mutex
	log bytes.Buffer
}

// Write collects the log.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start starts a server and waits until it listens.
func start(t *testing.T, home string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, home: home, done: make(chan struct{})}
	p.cmd = asServerCommand(t, home, env, append([]string{"serve"}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.begin(args...)
	return p
}

// asServerCommand returns a command that makes this program be turn-server.
func asServerCommand(t *testing.T, home string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	check(t, err)
	c := exec.Command(self, args...)
	c.Env = append(environ(t, home, env...), asServer+"=1")
	return c
}

// begin starts p and waits until it listens.
func (p *process) begin(args ...string) {
	t := p.t
	t.Helper()
	check(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("the log of %q in %s:\n%s", args, filepath.Base(p.home), p.text())
		}
	})
	p.await("msg=serving")
}

// await waits for a text in the log.
func (p *process) await(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if strings.Contains(p.text(), text) {
			return
		}
		select {
		case <-p.done:
			p.t.Fatalf("the server ended: %v\n%s", p.err, p.text())
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the log does not have %q:\n%s", text, p.text())
		}
	}
}

func (p *process) kill(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// end ends the server as a service manager does.
func (p *process) end() {
	p.t.Helper()
	p.kill(syscall.SIGTERM)
	<-p.done
	if p.err != nil {
		p.t.Errorf("the server ended with %v:\n%s", p.err, p.text())
	}
}

var tcp = regexp.MustCompile(`listeners="?\[(?:unix:\S+ )?([0-9.]+:[0-9]+)`)

// address is where the server listens on TCP.
func (p *process) address() string {
	p.t.Helper()
	m := tcp.FindStringSubmatch(p.text())
	if m == nil {
		p.t.Fatalf("there is no address in %s", p.text())
	}
	return m[1]
}

// socket is the operator's TURN_HOST.
func (p *process) socket() string { return "unix:" + filepath.Join(p.home, "server.sock") }

// homeWithTemplates returns a state directory with the templates, kernel and snapshots that tests
// share.
func homeWithTemplates(t *testing.T) string {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	check(t, os.Mkdir(home, 0o700))
	shareTemplates(t, home)
	return home
}

// shareTemplates makes a state directory have what tests share.
func shareTemplates(t *testing.T, home string) {
	t.Helper()
	shared := turntest.Home(t).Root
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		check(t, os.MkdirAll(filepath.Join(shared, part), 0o700))
		check(t, os.Symlink(filepath.Join(shared, part), filepath.Join(home, part)))
	}
}

// A client is a user's state directory and environment.
type client struct {
	t    *testing.T
	home string
	env  []string
}

// turn runs the command and returns its outputs.
func (c *client) turn(args ...string) (stdout, stderr string, err error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	return c.until(ctx, args...)
}

// until is turn, killed at the end of ctx.
func (c *client) until(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin(c.t), "turn"), args...)
	cmd.Env = environ(c.t, c.home, c.env...)
	cmd.Dir = c.t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// must is turn without an error.
func (c *client) must(args ...string) string {
	c.t.Helper()
	out, errs, err := c.turn(args...)
	if err != nil {
		c.t.Fatalf("turn %q: %v\n%s%s", args, err, out, errs)
	}
	return out
}

// token creates a token on the operator's socket of p.
func token(t *testing.T, p *process) string {
	t.Helper()
	operator := &client{t, filepath.Join(t.TempDir(), "home"), []string{"TURN_HOST=" + p.socket()}}
	var made struct {
		Token string `json:"token"`
	}
	check(t, json.Unmarshal([]byte(operator.must("token", "create", "--name", "ci", "--ttl", "1h",
		"--json")), &made))
	if made.Token == "" {
		t.Fatal("there is no token")
	}
	return made.Token
}
