package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gobwas/ws"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/websocket"
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
	build := exec.Command("go", append(append([]string{"build"}, flags...), "-o", path, pkg)...)
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	at := l.Addr().String()
	_ = l.Close()
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

// attacker starts a gateway before a server until the script's end: "attacker NAME ADDRESS MODE". It
// is the variable NAME, and manipulates what it passes on as MODE says.
func attacker(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: attacker NAME ADDRESS MODE")
	}
	target, err := url.Parse(args[1])
	ts.Check(err)
	m := &mallory{mode: args[2], target: target.Host, pair: channel.NewKeyPair()}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = m.answer
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/turnstone/v1/") {
			m.channel(w, r)
			return
		}
		r.Header.Del("Accept-Encoding") // m reads the answers
		proxy.ServeHTTP(w, r)
	}))
	ts.Setenv(args[0], front.URL)
	ts.Defer(front.Close)
}

// mallory is a gateway in hostile hands.
type mallory struct {
	mode, target string
	pair         channel.KeyPair

	mu   sync.Mutex
	old  []byte // the first statement
	done bool   // a manipulation that happens once
}

// once reports whether this is the first call.
func (m *mallory) once() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.done
	m.done = true
	return first
}

// answer manipulates the statements of answers.
func (m *mallory) answer(r *http.Response) error {
	if r.StatusCode != http.StatusOK { // such as of a node that asks for a proof
		return nil
	}
	var body proto.Message
	var get func() *v1.Channel
	switch path := r.Request.URL.Path; {
	case strings.HasSuffix(path, "/StartTurn"):
		a := &v1.StartTurnResponse{}
		body, get = a, a.GetChannel
	case strings.HasSuffix(path, "/ConnectTurn"):
		a := &v1.ConnectTurnResponse{}
		body, get = a, a.GetChannel
	case strings.HasSuffix(path, "/ConnectNode"):
		a := &v1.ConnectNodeResponse{}
		body, get = a, a.GetChannel
	default:
		return nil
	}
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(b, body)
	}
	if err != nil || get() == nil {
		r.Body = io.NopCloser(bytes.NewReader(b))
		return err
	}
	m.statement(get())
	if b, err = proto.Marshal(body); err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	r.Header.Del("Content-Length")
	return nil
}

func (m *mallory) statement(c *v1.Channel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.mode {
	case "forged": // a key of its own in the node's statement
		c.Attestation = bytes.Replace(c.Attestation, []byte(`"payload":"eyJ`),
			[]byte(`"payload":"eyI`), 1)
	case "untrusted": // a statement of its own
		s, err := attest.Open(context.Background(), c.Attestation)
		if err != nil {
			return
		}
		dir, err := os.MkdirTemp("", "mallory")
		if err != nil {
			return
		}
		defer func() { _ = os.RemoveAll(dir) }()
		own, err := key.Ring{Dir: &statedir.Dir{Root: dir}}.NodeKey(context.Background())
		if err != nil {
			return
		}
		s.ServerKey = m.pair.Public
		if mine, err := attest.Sign(context.Background(), s.Statement, own); err == nil {
			c.Attestation = mine.Envelope
		}
	case "replayed":
		if m.old == nil {
			m.old = c.Attestation
		}
		c.Attestation = m.old
	}
}

// channel carries a channel, and manipulates what the node says.
func (m *mallory) channel(w http.ResponseWriter, r *http.Request) {
	if m.mode == "key_swapped" { // its own end behind the node's statement
		if s, err := websocket.Accept(w, r); err == nil {
			b := make([]byte, 4+32+96)
			_, _ = io.ReadFull(s, b)
			_, _ = rand.Read(b)
			_, _ = s.Write(append([]byte{0}, b[:48]...))
			_, _ = io.Copy(io.Discard, s)
			_ = s.Close()
		}
		return
	}
	far, err := net.DialTimeout("tcp", m.target, 10*time.Second)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	if r.Write(far) != nil {
		return
	}
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	answer := bufio.NewReader(far)
	head, err := http.ReadResponse(answer, r)
	if err != nil || head.Write(near) != nil {
		return
	}
	go func() {
		_, _ = io.Copy(far, buffered)
		_ = far.Close()
	}()
	m.frames(near, answer)
}

// frames passes the node's messages on, and manipulates the fourth or all after it.
func (m *mallory) frames(near io.Writer, far io.Reader) {
	var held *ws.Frame
	for n := 1; ; n++ {
		f, err := ws.ReadFrame(far)
		if err != nil {
			return
		}
		send := []ws.Frame{f}
		if n == 4 && f.Header.OpCode == ws.OpBinary {
			switch m.mode {
			case "altered":
				f.Payload[len(f.Payload)-1] ^= 1
			case "repeated":
				send = append(send, f)
			case "reordered":
				held, send = &f, nil
			case "truncated":
				if m.once() {
					return
				}
			}
		} else if held != nil {
			send, held = append(send, *held), nil
		}
		for _, one := range send {
			if ws.WriteFrame(near, one) != nil {
				return
			}
		}
	}
}

// client puts the client of macOS and Windows into the script's PATH: "client".
func client(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: client")
	}
	path, err := builtProgram(ts, "turn-client", ".", "-tags", "turnstone_client")
	ts.Check(err)
	ts.Setenv("PATH", filepath.Dir(path)+string(filepath.ListSeparator)+ts.Getenv("PATH"))
}
