package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/wire"
)

// patience bounds each wait, on a machine that does much else.
const patience = 2 * time.Minute

// soon are the times of tests.
func soon() clock {
	return clock{first: 5 * time.Millisecond, longest: 20 * time.Millisecond, reset: time.Hour}
}

// A world is a guest, and what was told of its container.
type world struct {
	*testing.T
	link *wire.Link
	dir  string

	mu     sync.Mutex
	told   []agents.Process
	opened int
	last   io.Closer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	g, err := sandboxtest.Boot(agent.Options{RunDir: filepath.Join(w.dir, "run"), Cwd: filepath.Join(w.dir, "workspace")}, nil)
	w.must(err)
	w.link, err = wire.NewLink(g.Agent(), true)
	w.must(err)
	t.Cleanup(func() {
		_ = w.link.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// follow follows a container until the test ends, or the function it returns was called.
func (w *world) follow(m agents.Main, c clock) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- follow(ctx, w.options(m), c)
	}()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-ended })
		return err
	}
	w.Cleanup(func() { _ = stop() })
	return stop
}

// options are those of a follower that tells the test.
func (w *world) options(m agents.Main) Options {
	return Options{Main: m,
		Open: func(context.Context) (io.ReadWriteCloser, error) {
			s, err := w.link.Open()
			w.mu.Lock()
			defer w.mu.Unlock()
			w.opened, w.last = w.opened+1, s
			return s, err
		},
		Tell: func(p agents.Process) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, p)
		}}
}

// until waits until something was told.
func (w *world) until(what string, f func(p agents.Process) bool) agents.Process {
	w.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		all := slices.Clone(w.told)
		w.mu.Unlock()
		if n := slices.IndexFunc(all, f); n >= 0 {
			return all[n]
		}
		if time.Now().After(end) {
			w.Fatalf("waiting until %s took too long; told were %+v", what, all)
		}
	}
}

func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = nil
}

// client returns a connection of the test.
func (w *world) client() *wire.Client {
	w.Helper()
	s, err := w.link.Open()
	w.must(err)
	c := wire.NewClient(s)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// read returns a file, if there is one.
func (w *world) read(path string) []byte {
	b, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		w.must(err)
	}
	return b
}

// reads waits until a file has a content.
func (w *world) reads(path, want string) {
	w.Helper()
	for end := time.Now().Add(patience); string(w.read(path)) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("%s has %q", path, w.read(path))
		}
	}
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// TestEnds: what becomes of a container that ends, by its restartPolicy.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		again  agents.Restart
		script string
		failed bool
		text   string
	}{
		{agents.Never, "exit 0", false, "the process has ended (Completed)"},
		{agents.Never, "exit 3", true, "the process has ended with the status 3"},
		{agents.Never, "kill -9 $$", true, `the process was ended by the signal "SIGKILL"`},
		{agents.OnFailure, "exit 0", false, "the process has ended (Completed)"},
	} {
		t.Run(fmt.Sprint(c.again, c.script), func(t *testing.T) {
			w := newWorld(t)
			stop := w.follow(agents.Main{Argv: sh(c.script), Again: c.again}, soon())
			p := w.until("it has ended", func(p agents.Process) bool { return p.Ended })
			if p.Failed != c.failed || p.Message != c.text || p.Ready || p.Restarts != 0 {
				t.Errorf("%+v", p)
			}
			w.must(stop())
			w.forget()
			w.follow(agents.Main{Argv: sh(c.script), Again: c.again}, soon()) // another operator
			if again := w.until("it has ended", func(p agents.Process) bool { return p.Ended }); again != p {
				t.Errorf("%+v, and to another operator %+v", p, again)
			}
		})
	}
}

// TestRestarts: a container that ends again and again is started again, at once and then with back-off,
// and each of its processes once. Another operator goes on counting.
func TestRestarts(t *testing.T) {
	w := newWorld(t)
	log := filepath.Join(w.dir, "log")
	script := `echo x >>"$0"; exit 1`
	m := agents.Main{Argv: append(sh(script), log), Again: agents.Always}
	stop := w.follow(m, soon())
	p := w.until("it is in back-off", func(p agents.Process) bool { return p.Restarts > 2 && p.Reason == "CrashLoopBackOff" })
	if !strings.Contains(p.Message, "has ended with the status 1") || p.Ready || p.Ended {
		t.Errorf("%+v", p)
	}
	_ = stop()
	runs, err := os.ReadFile(log)
	w.must(err)
	w.forget()
	slow := clock{first: time.Hour, longest: time.Hour, reset: 2 * time.Hour}
	w.follow(m, slow)
	p = w.until("the other operator waits", func(p agents.Process) bool { return p.Reason == "CrashLoopBackOff" })
	if n := len(runs) / 2; p.Restarts != n-1 {
		t.Errorf("the other operator counts %d restarts, and there were %d runs", p.Restarts, n)
	}
}

// TestBackoff: the times of a kubelet.
func TestBackoff(t *testing.T) {
	s := &session{follower: &follower{clock: usualClock()}}
	at := time.Now()
	for n, want := range []time.Duration{0, 10, 20, 40, 80, 160, 300, 300} {
		s.next(time.Second, at)
		if got := s.due.Sub(at); got != want*time.Second {
			t.Errorf("restart %d follows in %s", n, got)
		}
	}
	if s.next(10*time.Minute, at); !s.due.Equal(at) {
		t.Error("after 10 minutes it does not begin anew")
	}
	s.next(0, at.Add(24*time.Hour)) // says the sandbox
	if left := time.Until(s.due); left > 10*time.Second {
		t.Errorf("a sandbox chooses a restart in %s", left)
	}
}

// TestAnother: another operator finds the process, and does not start it again, also after the sandbox has
// ended connections.
func TestAnother(t *testing.T) {
	w := newWorld(t)
	log := filepath.Join(w.dir, "log")
	m := agents.Main{Argv: append(sh(`echo x >>"$0"; exec sleep 1000`), log), Again: agents.Always}
	stop := w.follow(m, soon())
	w.until("it runs", func(p agents.Process) bool { return p.Ready })
	w.mu.Lock()
	_ = w.last.Close()
	w.mu.Unlock()
	w.until("the connection was lost", func(p agents.Process) bool { return p.Lost > 0 && p.Ready })
	_ = stop()
	w.forget()
	w.follow(m, soon())
	if p := w.until("it runs", func(agents.Process) bool { return true }); !p.Ready || p.Restarts != 0 {
		t.Errorf("%+v", p)
	}
	w.reads(log, "x\n")
	c := w.client()
	w.must(c.ProcessSignal(t.Context(), &wire.ProcessSignalParams{ProcessID: "main-1", Signal: "KILL"}))
	w.until("it runs again", func(p agents.Process) bool { return p.Ready && p.Restarts == 1 })
	w.reads(log, "x\nx\n")
}

// TestForgotten: a sandbox that has forgotten the process of an object which has ended does not run it again.
func TestForgotten(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	for n := range keptEnded {
		_, err := c.Start(t.Context(), wire.ProcessStartParams{ProcessID: fmt.Sprint("other-", n), Argv: []string{"true"}}, wire.Stdio{})
		w.must(err)
	}
	log := filepath.Join(w.dir, "log")
	m := agents.Main{Argv: append(sh(`echo x >>"$0"`), log), Again: agents.Never, Was: agents.Was{Ended: true, Failed: true}}
	stop := w.follow(m, soon())
	if p := w.until("it has ended", func(p agents.Process) bool { return p.Ended }); !p.Failed {
		t.Errorf("%+v", p)
	}
	_ = stop()
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Error("it ran again")
	}
	// A status that says so of a new sandbox is forged.
	w = newWorld(t)
	w.follow(m, soon())
	w.until("it has ended", func(p agents.Process) bool { return p.Ended && !p.Failed })
	if _, err := os.Stat(log); err != nil {
		t.Error("it did not run")
	}
}

// TestImage: without a command, what the image starts runs; an image that starts nothing is a fault.
func TestImage(t *testing.T) {
	w := newWorld(t)
	stop := w.follow(agents.Main{Image: true, Again: agents.Always}, soon())
	if p := w.until("it is refused", func(agents.Process) bool { return true }); p.Reason != agents.ReasonInvalid ||
		!strings.Contains(p.Message, "ENTRYPOINT") {
		t.Errorf("%+v", p)
	}
	w.must(stop())
	w.forget()
	data := filepath.Join(w.dir, "data")
	file := filepath.Join(w.dir, "volume", "key")
	stop = w.follow(agents.Main{Again: agents.Always, Dirs: []string{data}, // no process is to be started
		Inputs: func(context.Context) (agents.Inputs, error) {
			return agents.Inputs{Files: []agents.File{{Path: file, Mode: 0o600, Content: []byte("content")}}}, nil
		}}, soon())
	if p := w.until("it is ready", func(agents.Process) bool { return true }); !p.Ready {
		t.Errorf("%+v", p)
	}
	if i, err := os.Stat(data); err != nil || !i.IsDir() {
		t.Error(err)
	}
	if got := w.read(file); string(got) != "content" {
		t.Errorf("a file of a volume has %q", got)
	}
	_ = stop()
	log := filepath.Join(w.dir, "log")
	w.must(w.client().SandboxSetDefaults(t.Context(), &wire.SandboxSetDefaultsParams{
		Entrypoint: append(sh(`echo "$*" >"$0"`), log), Cmd: []string{"the", "cmd"}}))
	for want, args := range map[string][]string{"the cmd\n": nil, "of a pod\n": {"of", "a", "pod"}} {
		w.forget()
		stop := w.follow(agents.Main{Image: true, Argv: args, Again: agents.Never}, soon())
		w.until("it has ended", func(p agents.Process) bool { return p.Ended && !p.Failed })
		w.must(stop())
		if b, err := os.ReadFile(log); err != nil || string(b) != want {
			t.Errorf("%q: %q %v", want, b, err)
		}
		w.must(w.client().ProcessRelease(t.Context(), &wire.ProcessReleaseParams{ProcessID: "main-1"}))
	}
}

// TestMissing: a program that is not there counts as a container that fails.
func TestMissing(t *testing.T) {
	w := newWorld(t)
	m := agents.Main{Argv: []string{"/no/such/program"}, Again: agents.Never}
	w.follow(m, soon())
	if p := w.until("it has failed", func(p agents.Process) bool { return p.Ended }); !p.Failed ||
		!strings.Contains(p.Message, "cannot start") {
		t.Errorf("%+v", p)
	}
	w = newWorld(t)
	m.Again = agents.Always
	w.follow(m, soon())
	w.until("it is in back-off", func(p agents.Process) bool { return p.Reason == "CrashLoopBackOff" && p.Restarts > 1 })
}

// TestInputs: what of the cluster a container needs is there before it, and is awaited.
func TestInputs(t *testing.T) {
	w := newWorld(t)
	file, log := filepath.Join(w.dir, "volume", "key"), filepath.Join(w.dir, "log")
	asked := 0
	m := agents.Main{Argv: sh("exit 9"), Again: agents.Never, Dirs: []string{filepath.Join(w.dir, "data")}}
	m.Inputs = func(context.Context) (agents.Inputs, error) {
		if asked++; asked == 1 {
			return agents.Inputs{}, turnstone.Errorf("test", turnstone.KindNotFound, "Secret s", "is not there")
		}
		return agents.Inputs{Argv: append(sh(`echo $PASSWORD; cat "$1"; stat -c %a "$1" "$2"; exec >"$0"; echo $PASSWORD; cat "$1"`),
			log, file, m.Dirs[0]), Env: []string{"PASSWORD=sesame"},
			Files: []agents.File{{Path: file, Mode: 0o600, Content: []byte("content\n")}}}, nil
	}
	w.follow(m, soon())
	if p := w.until("it waits", func(agents.Process) bool { return true }); p.Reason != "CreateContainerConfigError" ||
		!strings.Contains(p.Message, "Secret s") {
		t.Errorf("%+v", p)
	}
	w.until("it has ended", func(p agents.Process) bool { return p.Ended && !p.Failed })
	if b, err := os.ReadFile(log); err != nil || string(b) != "sesame\ncontent\n" {
		t.Errorf("%q %v", b, err)
	}
	c := w.client()
	id, restarts, err := Last(t.Context(), c, false)
	w.must(err)
	o, err := Tail(t.Context(), c, id, 1<<20)
	w.must(err)
	if restarts != 0 || o.Exit == nil || !strings.HasPrefix(o.Stdout, "sesame\ncontent\n600\n7") {
		t.Errorf("%d restarts: %+v", restarts, o)
	}
	// An error about the object itself is no reason to ask again.
	w = newWorld(t)
	m.Inputs = func(context.Context) (agents.Inputs, error) {
		return agents.Inputs{}, agents.Unsupported{Field: "env", Why: "no"}
	}
	w.follow(m, soon())
	if p := w.until("it is refused", func(agents.Process) bool { return true }); p.Reason != agents.ReasonInvalid {
		t.Errorf("%+v", p)
	}
}

// TestLastWords: what a container says at its end is told; its output only if its object asks for it, and no
// more than some of it.
func TestLastWords(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "message")
	flood := `head -c 3000000 /dev/zero | tr '\0' x; echo; printf 'the \033[31mlast\n' >&2; exit 1`
	for n, c := range []struct {
		m    agents.Main
		want string
	}{
		{agents.Main{Argv: sh("echo secret; exit 1")}, "the process has ended with the status 1"},
		{agents.Main{Argv: append(sh(`echo why >"$0"; exit 1`), file), Message: file}, "the process has ended with the status 1: why"},
		{agents.Main{Argv: sh(flood), Output: true}, "the process has ended with the status 1: the  [31mlast"},
		{agents.Main{Argv: sh("echo out; exit 0"), Output: true}, "the process has ended (Completed)"},
		{agents.Main{Argv: sh("echo out; exit 2"), Output: true}, "the process has ended with the status 2: out"},
	} {
		w = newWorld(t)
		c.m.Again = agents.Never
		w.follow(c.m, soon())
		if p := w.until("it has ended", func(p agents.Process) bool { return p.Ended }); p.Message != c.want {
			t.Errorf("%d: %q, not %q", n, p.Message, c.want)
		}
	}
	if s := cut(strings.Repeat("é\x00", 2000)); len(s) > maxText+3 || strings.ContainsRune(s, 0) {
		t.Errorf("a long text has %d bytes", len(s))
	}
}

// TestProbes: a container is ready when its probes say so.
func TestProbes(t *testing.T) {
	w := newWorld(t)
	up := filepath.Join(w.dir, "up")
	exec := func(script string) *agents.Probe {
		return &agents.Probe{Exec: append(sh(script), up), Period: 5 * time.Millisecond, Timeout: patience, Success: 1, Failure: 3}
	}
	m := agents.Main{Argv: []string{"sleep", "1000"}, Again: agents.Always, Readiness: exec(`. "$0"`)}
	stop := w.follow(m, soon())
	if p := w.until("it runs", func(agents.Process) bool { return true }); p.Ready || p.Message == "" || p.Reason != "" {
		t.Errorf("%+v", p)
	}
	w.until("its probe fails", func(p agents.Process) bool { return strings.Contains(p.Message, "readinessProbe fails") })
	w.must(os.WriteFile(up, nil, 0o600))
	w.until("it is ready", func(p agents.Process) bool { return p.Ready })
	_ = stop()
	w.forget()
	stop = w.follow(m, soon()) // another operator does not tell that it is not ready meanwhile
	if p := w.until("it is ready", func(agents.Process) bool { return true }); !p.Ready {
		t.Errorf("%+v", p)
	}
	w.must(os.Remove(up))
	w.until("it is not ready", func(p agents.Process) bool { return !p.Ready && p.Restarts == 0 })
	asked := filepath.Join(w.dir, "asked")
	w.must(os.WriteFile(up, []byte("echo x >>"+asked), 0o600))
	for end := time.Now().Add(patience); len(w.read(asked)) < 2*keptEnded; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it was asked %d times", len(w.read(asked))/2)
		}
	}
	_ = stop()
	all, err := w.client().ProcessList(t.Context())
	w.must(err)
	if n := len(all.Processes); n > 10 { // main-1, and for each operator the last probes, which its end has ended
		t.Errorf("the sandbox remembers %d processes", n)
	}
}

// TestLiveness: a container whose liveness or startup fails is ended, and started again.
func TestLiveness(t *testing.T) {
	bad := &agents.Probe{Exec: []string{"false"}, Period: time.Millisecond, Timeout: patience, Success: 1, Failure: 2}
	for name, m := range map[string]agents.Main{"liveness": {Liveness: bad}, "startup": {Startup: bad}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m.Argv, m.Again, m.Grace = sh("trap '' TERM; while :; do sleep 1000; done"), agents.Always, time.Millisecond
			w.follow(m, soon())
			w.until("it is ended", func(p agents.Process) bool {
				return p.Reason == "Unhealthy" && strings.Contains(p.Message, name+"Probe fails: the command has ended with the status 1")
			})
			w.until("it runs again", func(p agents.Process) bool { return p.Restarts > 0 })
		})
	}
}

// TestStartup: until a container has started, its liveness is not asked for.
func TestStartup(t *testing.T) {
	w := newWorld(t)
	up := filepath.Join(w.dir, "up")
	p := &agents.Probe{Exec: append(sh(`test -e "$0"`), up), Period: time.Millisecond, Timeout: patience, Success: 1, Failure: 1000000}
	live := *p
	live.Failure = 1
	w.follow(agents.Main{Argv: []string{"sleep", "1000"}, Again: agents.Always, Startup: p, Liveness: &live}, soon())
	w.until("it is asked", func(p agents.Process) bool { return !p.Ready && strings.Contains(p.Message, "startupProbe") })
	w.must(os.WriteFile(up, nil, 0o600))
	if p := w.until("it is ready", func(p agents.Process) bool { return p.Ready }); p.Restarts != 0 {
		t.Errorf("%+v", p)
	}
	w.must(os.Remove(up))
	w.until("it is ended", func(p agents.Process) bool { return p.Reason == "Unhealthy" })
}

// TestNetworkProbes: probes of HTTP and TCP reach the sandbox's ports, and what they get is bounded.
func TestNetworkProbes(t *testing.T) {
	w := newWorld(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(a http.ResponseWriter, r *http.Request) {
		if r.Host != "named" || r.Header.Get("X-Own") != "value" {
			a.WriteHeader(http.StatusTeapot)
		}
		for r.Context().Err() == nil { // without an end
			if _, err := a.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/bad", func(a http.ResponseWriter, _ *http.Request) { a.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/near", func(a http.ResponseWriter, r *http.Request) { http.Redirect(a, r, "/bad", http.StatusFound) })
	mux.HandleFunc("/far", func(a http.ResponseWriter, r *http.Request) {
		http.Redirect(a, r, "http://elsewhere.example/bad", http.StatusFound)
	})
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	port := func(s *httptest.Server) uint16 {
		u, err := url.Parse(s.URL)
		w.must(err)
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		w.must(err)
		return uint16(n)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	closed := uint16(l.Addr().(*net.TCPAddr).Port)
	w.must(l.Close())
	get := func(s *httptest.Server, path string) *agents.Probe {
		return &agents.Probe{HTTP: &agents.HTTPGet{Port: port(s), TLS: s == secure, Path: path,
			Names: []string{"host", "X-Own"}, Values: []string{"named", "value"}}}
	}
	s := &session{follower: &follower{Options: Options{Loopback: true}}, w: w.client()}
	for _, c := range []struct {
		q    *agents.Probe
		want string
	}{
		{get(plain, "/ok"), ""}, {get(plain, "ok"), ""}, {get(secure, "/ok"), ""},
		{get(plain, "/bad"), "the answer has the status 503"}, {get(plain, "/near"), "the answer has the status 503"},
		{get(plain, "/far"), ""}, {get(plain, "/%zz"), "invalid URL escape"},
		{&agents.Probe{TCP: port(plain)}, ""}, {&agents.Probe{TCP: closed}, "refused"},
	} {
		c.q.Timeout = patience
		why, err := s.probe(t.Context(), c.q)
		if err != nil || (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%+v: %q, not %q; %v", c.q, why, c.want, err)
		}
	}
	never := get(plain, "/never")
	never.Timeout = 10 * time.Millisecond
	if why, err := s.probe(t.Context(), never); err != nil || !strings.Contains(why, "no answer") {
		t.Errorf("%q %v", why, err)
	}
}
