package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// attacker starts a gateway before a server until the script's end: "attacker NAME ADDRESS". It is
// the variable NAME. The file NAME.mode says how it manipulates what it passes on: a word, the number
// of a message or the ID of an object, and anything that makes the line differ from the last one. The
// file NAME.seen gets all that it sees.
//
//	forged untrusted replayed key_swapped   statements, and the key behind them
//	certificate FILE                        the certificate beside statements and introductions
//	introduction old|own                    an earlier introduction, or one that it signed
//	node FILE                               the name of the node, in all answers
//	ask ID, path ID                         another sandbox is asked for, or connected
//	ticket                                  the ticket of an earlier turn is answered
//	altered repeated reordered reflected truncated N     the node's message N; with up_ the client's; what
//	                                        is reflected is a message N or later, after frames came back
//	up_again                                the client's messages once more, over a connection
func attacker(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: attacker NAME ADDRESS")
	}
	target, err := url.Parse(args[1])
	ts.Check(err)
	seen, err := os.Create(ts.MkAbs(args[0] + ".seen"))
	ts.Check(err)
	m := &mallory{file: ts.MkAbs(args[0] + ".mode"), target: target.Host, seen: seen,
		pair: channel.NewKeyPair()}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = m.answer
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/turnstone/v1/") {
			m.channel(w, r)
			return
		}
		r.Header.Del("Accept-Encoding") // m reads the answers
		m.request(r)
		proxy.ServeHTTP(w, r)
	}))
	ts.Setenv(args[0], front.URL)
	ts.Defer(func() {
		front.Close()
		_ = seen.Close()
	})
}

// mallory is a gateway in hostile hands.
type mallory struct {
	file, target string
	pair         channel.KeyPair

	mu      sync.Mutex
	seen    io.Writer
	old     []byte // the first statement
	met     []byte // the first introduction
	tickets []string
	done    string // a manipulation that happened once
}

// A mode is what mallory does now.
type mode struct{ word, on, line string }

func (m *mallory) mode() mode {
	b, _ := os.ReadFile(m.file)
	f := append(strings.Fields(string(b)), "", "")
	return mode{f[0], f[1], string(b)}
}

// number is the number of the message that is manipulated.
func (o mode) number() int {
	n, _ := strconv.Atoi(o.on)
	return n
}

// once reports whether this is the first call in a mode.
func (m *mallory) once(o mode) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := m.done != o.line
	m.done = o.line
	return first
}

func (m *mallory) see(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = m.seen.Write(b)
}

// request manipulates what a client asks for.
func (m *mallory) request(r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	m.see(b)
	q := &v1.ConnectSandboxRequest{}
	if o := m.mode(); o.word == "ask" && strings.HasSuffix(r.URL.Path, "/ConnectSandbox") &&
		proto.Unmarshal(b, q) == nil {
		q.SandboxId = o.on
		b, _ = proto.Marshal(q)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
}

// answer manipulates the statements of answers, and tickets.
func (m *mallory) answer(r *http.Response) error {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	m.see(b)
	r.Body = io.NopCloser(bytes.NewReader(b))
	if r.StatusCode != http.StatusOK { // such as of a node that asks for a proof
		m.introduction(r, b)
		return nil
	}
	if o := m.mode(); o.word == "node" {
		return m.rename(r, b, o)
	}
	var body interface {
		proto.Message
		GetChannel() *v1.Channel
	}
	switch path := r.Request.URL.Path; {
	case strings.HasSuffix(path, "/StartTurn"):
		body = &v1.StartTurnResponse{}
	case strings.HasSuffix(path, "/ConnectTurn"):
		body = &v1.ConnectTurnResponse{}
	case strings.HasSuffix(path, "/ConnectNode"):
		body = &v1.ConnectNodeResponse{}
	case strings.HasSuffix(path, "/ConnectSandbox"):
		body = &v1.ConnectSandboxResponse{}
	default:
		return nil
	}
	if err := proto.Unmarshal(b, body); err != nil || body.GetChannel() == nil {
		return err
	}
	o := m.mode()
	m.statement(o, body.GetChannel())
	if s, ok := body.(*v1.StartTurnResponse); ok {
		m.mu.Lock()
		if m.tickets = append(m.tickets, s.Turn.TicketId); o.word == "ticket" {
			s.Turn.TicketId = m.tickets[0]
		}
		m.mu.Unlock()
	}
	b, err = proto.Marshal(body)
	replace(r, b)
	return err
}

// replace makes b the answer.
func replace(r *http.Response, b []byte) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	r.Header.Del("Content-Length")
}

// rename gives the node of an answer the name in a file.
func (m *mallory) rename(r *http.Response, b []byte, o mode) error {
	name := string(m.read(o.on))
	var body proto.Message
	switch path := r.Request.URL.Path; {
	case strings.HasSuffix(path, "/StartTurn"):
		a := &v1.StartTurnResponse{}
		if err := proto.Unmarshal(b, a); err != nil {
			return err
		}
		a.Turn.Node, body = name, a
	case strings.HasSuffix(path, "/ConnectNode"):
		a := &v1.ConnectNodeResponse{}
		if err := proto.Unmarshal(b, a); err != nil {
			return err
		}
		a.Node, body = name, a
	case strings.HasSuffix(path, "/CreateSandbox"):
		a := &v1.CreateSandboxResponse{}
		if err := proto.Unmarshal(b, a); err != nil {
			return err
		}
		a.Sandbox.Node, body = name, a
	case strings.HasSuffix(path, "/ListNodes"):
		a := &v1.ListNodesResponse{}
		if err := proto.Unmarshal(b, a); err != nil {
			return err
		}
		for _, n := range a.Nodes {
			n.Name = name
		}
		body = a
	default:
		return nil
	}
	b, err := proto.Marshal(body)
	replace(r, b)
	return err
}

// read returns the content of a file beside the mode's.
func (m *mallory) read(name string) []byte {
	b, _ := os.ReadFile(filepath.Join(filepath.Dir(m.file), name))
	return b
}

// introduction manipulates the introduction of a node in an error.
func (m *mallory) introduction(r *http.Response, b []byte) {
	var sent map[string]any
	if json.Unmarshal(b, &sent) != nil {
		return
	}
	details, _ := sent["details"].([]any)
	for _, one := range details {
		detail, _ := one.(map[string]any)
		text, _ := detail["value"].(string)
		raw, err := base64.RawStdEncoding.DecodeString(text)
		e := &v1.Error{}
		if err != nil || proto.Unmarshal(raw, e) != nil || len(e.Introduction) == 0 {
			continue
		}
		o := m.mode()
		c := &v1.Channel{Attestation: e.Introduction, Certificate: e.Certificate}
		m.mu.Lock()
		if m.met == nil {
			m.met = e.Introduction
		}
		switch {
		case o.word == "certificate":
			c.Certificate = m.read(o.on)
		case o.word == "introduction" && o.on == "old":
			c.Attestation = m.met
		case o.word == "introduction" && o.on == "own":
			m.sign(c)
		}
		m.mu.Unlock()
		e.Introduction, e.Certificate = c.Attestation, c.Certificate
		if raw, err = proto.Marshal(e); err == nil {
			detail["value"] = base64.RawStdEncoding.EncodeToString(raw)
			delete(detail, "debug")
		}
	}
	if b, err := json.Marshal(sent); err == nil {
		replace(r, b)
	}
}

func (m *mallory) statement(o mode, c *v1.Channel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.old == nil {
		m.old = c.Attestation
	}
	switch o.word {
	case "forged": // a key of its own in the node's statement
		c.Attestation = bytes.Replace(c.Attestation, []byte(`"payload":"eyJ`),
			[]byte(`"payload":"eyI`), 1)
	case "replayed":
		c.Attestation = m.old
	case "untrusted":
		m.sign(c)
	case "certificate":
		c.Certificate = m.read(o.on)
	}
}

// sign replaces a statement by one of its own.
func (m *mallory) sign(c *v1.Channel) {
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
}

// channel carries a channel, and manipulates what is said in it.
func (m *mallory) channel(w http.ResponseWriter, r *http.Request) {
	o := m.mode()
	switch {
	case o.word == "key_swapped": // its own end behind the node's statement
		if s, err := websocket.Accept(w, r); err == nil {
			b := make([]byte, 4+32+96)
			_, _ = io.ReadFull(s, b)
			_, _ = rand.Read(b)
			_, _ = s.Write(append([]byte{0}, b[:48]...))
			_, _ = io.Copy(io.Discard, io.TeeReader(s, writer(m.see)))
			_ = s.Close()
		}
		return
	case o.word == "path":
		r.URL.Path, r.RequestURI = "/turnstone/v1/sandboxes/"+o.on+"/channel", ""
	}
	far, answer, head, err := m.dial(r)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	if head.Write(near) != nil {
		return
	}
	t := &tap{m: m, o: o}
	go func() {
		t.carry(true, far, buffered)
		_ = far.Close()
	}()
	t.carry(false, near, answer)
	if o.word == "up_again" {
		t.again(r)
	}
}

// dial makes a client's request to the server.
func (m *mallory) dial(r *http.Request) (net.Conn, *bufio.Reader, *http.Response, error) {
	far, err := net.DialTimeout("tcp", m.target, 10*time.Second)
	if err != nil {
		return nil, nil, nil, err
	}
	answer := bufio.NewReader(far)
	err = r.Write(far)
	var head *http.Response
	if err == nil {
		head, err = http.ReadResponse(answer, r)
	}
	if err != nil {
		_ = far.Close()
	}
	return far, answer, head, err
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// A tap is the manipulation of one channel.
type tap struct {
	m *mallory
	o mode

	mu   sync.Mutex
	last [2][]byte  // message of the node, and of the client
	all  []ws.Frame // of the client
}

// carry passes the messages of the client, or of the node, on.
func (t *tap) carry(up bool, to io.Writer, from io.Reader) {
	word, mine := strings.CutPrefix(t.o.word, "up_")
	var held *ws.Frame
	for n, due := 0, mine == up; ; {
		f, err := ws.ReadFrame(from)
		if err != nil {
			return
		}
		send := []ws.Frame{f}
		if f.Header.OpCode == ws.OpBinary {
			n++
			other, framed := t.note(up, f)
			// A side's handshake is no frame: one that came back would be altered data.
			if due && n >= t.o.number() && (framed || word != "reflected") {
				due = false
				if send, held = t.manipulate(word, f, other); send == nil && held == nil {
					return
				}
			} else if held != nil {
				send, held = append(send, *held), nil
			}
		}
		for _, one := range send {
			if ws.WriteFrame(to, one) != nil {
				return
			}
		}
	}
}

// note keeps a message, and returns the last one of the other side, as a message of this side, and
// whether it consists of whole frames of the channel.
func (t *tap) note(up bool, f ws.Frame) (other ws.Frame, framed bool) {
	plain := ws.UnmaskFrame(f).Payload
	t.m.see(plain)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !up {
		t.last[0] = plain
		return ws.NewBinaryFrame(bytes.Clone(t.last[1])), isFrames(t.last[1])
	}
	t.last[1], t.all = plain, append(t.all, f)
	return ws.MaskFrame(ws.NewBinaryFrame(bytes.Clone(t.last[0]))), isFrames(t.last[0])
}

// isFrames reports whether a message is one or more whole frames, each with its size and number before it.
func isFrames(message []byte) bool {
	const head = 2 + 8
	n := 0
	for ; len(message) >= head; n++ {
		size := head + int(binary.BigEndian.Uint16(message))
		if size > len(message) {
			return false
		}
		message = message[size:]
	}
	return n > 0 && len(message) == 0
}

// manipulate returns what is sent in place of f, and what is held until the next message; nothing of
// both ends the connection.
func (t *tap) manipulate(word string, f, other ws.Frame) (send []ws.Frame, held *ws.Frame) {
	switch word {
	case "altered":
		f.Payload = bytes.Clone(f.Payload)
		f.Payload[len(f.Payload)-1] ^= 1
	case "repeated":
		return []ws.Frame{f, f}, nil
	case "reordered":
		return []ws.Frame{}, &f
	case "reflected":
		return []ws.Frame{other, f}, nil
	case "truncated":
		if t.m.once(t.o) {
			return nil, nil
		}
	}
	return []ws.Frame{f}, nil
}

// again says what the client said over a connection of its own, and waits for the node's end of it.
func (t *tap) again(r *http.Request) {
	far, answer, _, err := t.m.dial(r)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.all {
		if ws.WriteFrame(far, f) != nil {
			break
		}
	}
	_ = far.SetReadDeadline(time.Now().Add(time.Minute))
	_, _ = io.Copy(writer(t.m.see), answer)
	t.m.see([]byte("\nthe client's messages were sent again\n"))
}
