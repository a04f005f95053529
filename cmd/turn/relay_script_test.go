package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/testscript"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote"
)

// runningKey is the key of a script's relays and server processes.
type runningKey struct{}

// running has what a script changes while commands use it.
type running struct {
	relays  map[string]*relay
	servers map[string]*serverProcess
}

func runningOf(ts *testscript.TestScript) *running { return ts.Value(runningKey{}).(*running) }

func newRunning() *running {
	return &running{relays: map[string]*relay{}, servers: map[string]*serverProcess{}}
}

// A serverProcess is a process of turn serve.
type serverProcess struct {
	program string
	args    []string
	env     []string
	dir     string
	log     string
	cmd     *exec.Cmd
}

func (p *serverProcess) start() error {
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has it
	p.cmd = exec.Command(p.program, p.args...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stderr, p.cmd.Stdout = p.env, p.dir, log, log
	return p.cmd.Start()
}

func (p *serverProcess) end(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Wait()
}

// restart ends a process of a server, as a crash does unless a signal is named, and starts it again:
// "restart NAME [TERM]". NAME is that of its log. Clients are accepted again when the command ends.
func restart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 || len(args) > 2 || len(args) == 2 && args[1] != "TERM" {
		ts.Fatalf("usage: restart NAME [TERM]")
	}
	p := runningOf(ts).servers[args[0]]
	if p == nil {
		ts.Fatalf("%s is no server", args[0])
	}
	sig := syscall.SIGKILL
	if len(args) == 2 {
		sig = syscall.SIGTERM
	}
	p.end(sig)
	ts.Check(p.start())
	ts.Check(p.accepts())
}

// accepts waits until the process accepts connections at the address of its clients, if it has one:
// not every command waits for a server that starts.
func (p *serverProcess) accepts() error {
	i := slices.Index(p.args, "--listen")
	if i < 0 {
		return nil
	}
	for until := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", p.args[i+1])
		if err == nil {
			return c.Close()
		}
		if time.Now().After(until) {
			return fmt.Errorf("the server does not start again: %w", err)
		}
	}
}

// A relay passes connections on, and loses them when its script says so.
type relay struct {
	to string
	l  net.Listener

	mu     sync.Mutex
	open   map[net.Conn]bool
	down   bool
	left   int64         // bytes until the connections are cut; 0: any number
	passes chan struct{} // closed while bytes pass
}

// relayTo starts a relay before a server until the script's end: "relay NAME ADDRESS", or changes it:
// "relay NAME cut" resets its connections, "relay NAME after BYTES" does so once when that many bytes
// have passed, "relay NAME down" does so and takes no others, "relay NAME hold" passes no byte on, and
// "relay NAME up" ends both. NAME is also the variable with its address.
func relayTo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: relay NAME ADDRESS|cut|after BYTES|down|hold|up")
	}
	r := runningOf(ts).relays[args[0]]
	if r == nil {
		target, err := url.Parse(args[1])
		ts.Check(err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		r = &relay{to: target.Host, l: l, open: map[net.Conn]bool{}, passes: make(chan struct{})}
		close(r.passes)
		runningOf(ts).relays[args[0]] = r
		ts.Setenv(args[0], "http://"+l.Addr().String())
		go r.accept()
		ts.Defer(func() {
			_ = l.Close()
			r.change("up")
			r.change("cut")
		})
		return
	}
	if args[1] == "after" && len(args) == 3 {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, err := fmt.Sscan(args[2], &r.left); err != nil {
			ts.Fatalf("%v", err)
		}
		return
	}
	if !r.change(args[1]) {
		ts.Fatalf("usage: relay NAME cut|after BYTES|down|hold|up")
	}
}

func (r *relay) change(word string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.passes:
		if word == "hold" {
			r.passes = make(chan struct{})
		}
	default:
		if word != "hold" {
			close(r.passes)
		}
	}
	r.down = word == "down" || r.down && word != "up"
	if word == "cut" || word == "down" {
		r.cut()
	}
	return strings.Contains(" cut down hold up ", " "+word+" ")
}

// cut resets all connections. r.mu is held.
func (r *relay) cut() {
	for c := range r.open {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	clear(r.open)
}

func (r *relay) accept() {
	for {
		near, err := r.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		r.mu.Lock()
		if r.open[near], r.open[far] = true, true; r.down {
			r.cut()
		}
		r.mu.Unlock()
		go r.copy(near, far)
		go r.copy(far, near)
	}
}

func (r *relay) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		passes := r.passes
		r.mu.Unlock()
		<-passes
		if r.count(n); err == nil {
			_, err = to.Write(buf[:n])
		}
		if err == io.EOF {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
		if err != nil {
			_, _ = to.Close(), from.Close()
			r.mu.Lock()
			delete(r.open, to)
			delete(r.open, from)
			r.mu.Unlock()
			return
		}
	}
}

// count cuts the connections at a number of bytes.
func (r *relay) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return
	}
	if r.left -= int64(n); r.left <= 0 {
		r.left = 0
		r.cut()
	}
}

// states follows the sandboxes of a server until the script's end, and adds each state to a file, as
// a line "NAME STATE": "states FILE ADDRESS TOKENFILE".
func states(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: states FILE ADDRESS TOKENFILE")
	}
	at, err := remote.ParseAddress(args[1])
	ts.Check(err)
	token := strings.TrimSpace(ts.ReadFile(args[2]))
	out, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	s := remote.NewServer(remote.ServerOptions{Address: at,
		Token: func() (string, error) { return token, nil }})
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := s.Sandboxes.WatchSandboxes(ctx, connect.NewRequest(&v1.WatchSandboxesRequest{}))
	ts.Check(err)
	done, synced := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(done)
		for stream.Receive() {
			m := stream.Msg()
			if m.Event == v1.WatchEvent_WATCH_EVENT_SYNCED {
				select {
				case synced <- struct{}{}:
				default:
				}
			}
			if b := m.GetSandbox(); b != nil {
				state := strings.ToLower(strings.TrimPrefix(b.State.String(), "SANDBOX_STATE_"))
				_, _ = fmt.Fprintln(out, b.Name, state)
			}
		}
	}()
	ts.Defer(func() {
		cancel()
		<-done
		_, _, _ = stream.Close(), s.Close(), out.Close()
	})
	select { // what happens from now on is seen
	case <-synced:
	case <-done:
		ts.Fatalf("the sandboxes cannot be followed: %v", stream.Err())
	}
}
