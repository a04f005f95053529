package cdp

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// TestFlatSessions drives two sandboxes over a single connection, with messages and with binary
// frames whose stream numbers are the same in both.
func TestFlatSessions(t *testing.T) {
	s := serve(t, nil)
	ids := []turnstone.SandboxID{s.backend.add("one", echoAgent).ID,
		s.backend.add("two", echoAgent).ID}
	c := s.openBrowser(t)
	var sessions []string
	var channels []uint32
	for _, id := range ids {
		session, channel := c.attach(id)
		if e := c.event("Target.attachedToTarget"); e.SessionID != "" ||
			!strings.Contains(string(e.Params), session) {
			t.Errorf("%s", e.Params)
		}
		sessions, channels = append(sessions, session), append(channels, channel)
	}
	for _, session := range sessions {
		if m := c.call(session, "State.getSession",
			""); !strings.Contains(string(m.Result), `"cwd":"/`) {
			t.Errorf("%s %s", m.Result, m.Error)
		}
		if e := c.event("FileSystem.changed"); e.SessionID != session {
			t.Errorf("an event of session %q, want %q", e.SessionID, session)
		}
	}
	for n, session := range sessions {
		c.send(
			fmt.Sprintf(
				`{"id":%d,"method":"FileSystem.write","params":{"path":"/f","stream":7},"sessionId":%q}`, 100+n, session))
		text := []byte("for " + session)
		for _, f := range []wire.Frame{{Channel: channels[n], Stream: 7, Data: text},
			{Kind: 1, Channel: channels[n], Stream: 7, Offset: uint64(len(text))}} {
			if err := c.f.WriteBinary(f.Head(), f.Data); err != nil {
				t.Fatal(err)
			}
		}
	}
	for answered := 0; answered < 2; {
		m, _, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if m != nil && m.ID != nil {
			if m.Error != nil || m.SessionID != sessions[*m.ID-100] {
				t.Errorf("%+v %s", m, m.Error)
			}
			answered++
		}
	}
	for n, session := range sessions {
		c.send(
			fmt.Sprintf(
				`{"id":%d,"method":"FileSystem.read","params":{"path":"/f","stream":9},"sessionId":%q}`,
				200+n, session))
	}
	got := map[uint32]string{}
	for ends := 0; ends < 2; {
		_, f, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if f != nil && f.Stream == 9 && f.Kind == 0 {
			got[f.Channel] += string(f.Data)
		}
		if f != nil && f.Stream == 9 && f.Kind == 1 {
			ends++
		}
	}
	for n := range sessions {
		if got[channels[n]] != "for "+sessions[n] {
			t.Errorf("channel %d: %q", channels[n], got[channels[n]])
		}
	}
	// After the detachment the session is gone and the other session remains.
	if m := c.call("", "Target.detachFromTarget",
		fmt.Sprintf(`{"sessionId":%q}`, sessions[0])); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
	if m := c.call(sessions[0], "State.getSession",
		""); !strings.Contains(string(m.Error), "-32001") {
		t.Errorf("%s", m.Error)
	}
	if m := c.call(sessions[1], "State.getSession", ""); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
	if m := c.call("", "Target.detachFromTarget", `{"sessionId":""}`); m.Error == nil {
		t.Error("a client can detach the server from itself")
	}
}

func TestTargets(t *testing.T) {
	s := serve(t, nil)
	a := s.backend.add("one", echoAgent)
	c := s.openBrowser(t)
	if m := c.call("", "Target.setDiscoverTargets", `{"discover":true}`); m.Error != nil {
		t.Fatalf("%s", m.Error)
	}
	if e := c.event("Target.targetCreated"); !strings.Contains(string(e.Params), string(a.ID)) {
		t.Errorf("%s", e.Params)
	}
	m := c.call("", "Target.createTarget",
		`{"name":"two","memory":536870912,"network":false,"env":["A=b"],"ttl":1.5}`)
	var created wire.TargetCreateTargetResult
	if err := json.Unmarshal(m.Result, &created); err != nil {
		t.Fatalf("%s %s", m.Result, m.Error)
	}
	if sp := s.backend.specs[0]; sp.Shape.Memory != 512<<20 || sp.Shape.Network ||
		sp.TTL != 1500*time.Millisecond || sp.Image != "base" || sp.Env[0] != "A=b" {
		t.Errorf("%+v", sp)
	}
	if e := c.event("Target.targetCreated"); !strings.Contains(string(e.Params), created.TargetID) {
		t.Errorf("%s", e.Params)
	}
	session, _ := c.attach(turnstone.SandboxID(created.TargetID))
	if e := c.event("Target.targetInfoChanged"); !strings.Contains(string(e.Params),
		`"attached":true`) {
		t.Errorf("%s", e.Params)
	}
	m = c.call("", "Target.getTargets", "")
	var all wire.TargetGetTargetsResult
	if err := json.Unmarshal(m.Result, &all); err != nil || len(all.TargetInfos) != 2 ||
		all.TargetInfos[0].Attached || !all.TargetInfos[1].Attached {
		t.Errorf("%s", m.Result)
	}
	s.backend.set(a.ID, sandboxes.StateFailed, "it died")
	if e := c.event("Target.targetInfoChanged"); !strings.Contains(string(e.Params), "it died") {
		t.Errorf("%s", e.Params)
	}
	if m := c.call("", "Target.closeTarget", fmt.Sprintf(`{"targetId":%q}`,
		created.TargetID)); !strings.Contains(string(m.Result), "true") {
		t.Errorf("%s %s", m.Result, m.Error)
	}
	if e := c.event("Target.targetDestroyed"); !strings.Contains(string(e.Params),
		created.TargetID) {
		t.Errorf("%s", e.Params)
	}
	for params, want := range map[string]string{
		`{"targetId":"sb_none","flatten":true}`:                    "look elsewhere",
		fmt.Sprintf(`{"targetId":%q}`, a.ID):                       "flat",
		fmt.Sprintf(`{"targetId":%q,"flatten":true}`, a.ID):        "it died",
		fmt.Sprintf(`{"targetId":%q,"flatten":true,"x":1}`, a.ID):  "unknown field",
		fmt.Sprintf(`{"targetId":%q,"flatten":"yes"}`, a.ID):       "flatten",
		fmt.Sprintf(`{"targetId":["%s"],"flatten":true}`, session): "targetId",
	} {
		if m := c.call("", "Target.attachToTarget",
			params); !strings.Contains(string(m.Error), want) {
			t.Errorf("%s: %s, want %q", params, m.Error, want)
		}
	}
	for _, params := range []string{`{"ttl":-1}`, `{"ttl":1e300}`, `{"cpus":-1}`, `{"memory":1}`,
		`{"name":"a b"}`, `{"env":["x"]}`} {
		if m := c.call("", "Target.createTarget",
			params); !strings.Contains(string(m.Error), "invalid") {
			t.Errorf("%s: %s %s", params, m.Result, m.Error)
		}
	}
}

// TestSessionLimit: a client can neither open unlimited sessions nor take all connections of a
// sandbox.
func TestSessionLimit(t *testing.T) {
	s := serve(t, nil)
	var all []sandboxes.Info
	for n := range maxSessions/maxPerTarget + 1 {
		all = append(all, s.backend.add(fmt.Sprintf("s%d", n), echoAgent))
	}
	refused := func(c *client, id turnstone.SandboxID, why string) {
		t.Helper()
		if m := c.call("", "Target.attachToTarget",
			fmt.Sprintf(`{"targetId":%q,"flatten":true}`, id)); !strings.Contains(
			string(m.Error), why) {
			t.Errorf("%s %s, want %q", m.Result, m.Error, why)
		}
	}
	c := s.openBrowser(t)
	for _, a := range all[:len(all)-1] {
		for range maxPerTarget {
			c.attach(a.ID)
		}
		refused(c, a.ID, "of this connection")
	}
	refused(c, all[len(all)-1].ID, "sessions of this connection")
	for range maxAttached/maxPerTarget - 1 {
		more := s.openBrowser(t)
		for range maxPerTarget {
			more.attach(all[0].ID)
		}
		refused(more, all[0].ID, "sessions of this connection with")
	}
	last := s.openBrowser(t)
	refused(last, all[0].ID, "sessions of this server")
	page := &client{t: t, conn: s.open(t, pagePath+string(all[0].ID))}
	page.f = wire.NewFrames(page.conn, true)
	page.wantClosed(tryAgainLater, "limit of connections")
	session, _ := last.attach(all[1].ID)
	if m := last.call(session, "State.getSession", ""); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
}

// TestSandboxEnds: waiting commands are answered, and the session's end is reported.
func TestSandboxEnds(t *testing.T) {
	s := serve(t, nil)
	die, heard := make(chan struct{}), make(chan struct{}, 2)
	var connected atomic.Int64
	mute := func(c net.Conn) {
		connected.Add(1)
		go func() {
			if n, _ := c.Read(make([]byte, 1)); n > 0 {
				heard <- struct{}{}
			}
			_, _ = io.Copy(io.Discard, c)
		}()
		<-die
		_ = c.Close()
	}
	a, b := s.backend.add("one", mute), s.backend.add("two", echoAgent)
	c := s.openBrowser(t)
	dying, _ := c.attach(a.ID)
	living, _ := c.attach(b.ID)
	c.send(fmt.Sprintf(`{"id":501,"method":"State.getSession","sessionId":%q}`, dying))
	page := &client{t: t, conn: s.open(t, pagePath+string(a.ID))}
	page.f = wire.NewFrames(page.conn, true)
	<-heard // the command that waits
	for connected.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	s.backend.set(a.ID, sandboxes.StateFailed, "out of memory")
	close(die)
	e := c.event("Target.detachedFromTarget")
	if !strings.Contains(string(e.Params), dying) ||
		!strings.Contains(string(e.Params), "the sandbox is failed: out of memory") {
		t.Errorf("%s", e.Params)
	}
	if n := slices.IndexFunc(c.seen, func(m wire.Message) bool {
		return m.ID != nil &&
			*m.ID == 501
	}); n < 0 || !strings.Contains(string(c.seen[n].Error), "out of memory") {
		t.Errorf("the command that waited: %+v", c.seen)
	}
	if m := c.call(living, "State.getSession", ""); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
	page.wantClosed(1001, "the sandbox is failed: out of memory")
}

// TestHostileSandbox: a sandbox's messages reach only its own session.
func TestHostileSandbox(t *testing.T) {
	for name, tt := range map[string]struct {
		send    func(f *wire.Frames) error
		survive bool // the session survives, and the message is dropped; otherwise the session ends
	}{
		"an answer that nobody asked for": {
			func(f *wire.Frames) error { return f.WriteText([]byte(`{"id":77,"result":{}}`)) },
			true},
		"another session's event": {
			func(f *wire.Frames) error {
				return f.WriteText(
					[]byte(`{"method":"X.y","sessionId":"other"}`))
			}, true},
		"an event of the server's": {func(f *wire.Frames) error {
			return f.WriteText(
				[]byte(`{"method":"Target.detachedFromTarget","params":{"sessionId":"x"}}`))
		}, false},
		"a command": {
			func(f *wire.Frames) error {
				return f.WriteText(
					[]byte(`{"id":1,"method":"Target.getTargets"}`))
			}, false},
		"no UTF-8": {
			func(f *wire.Frames) error { return f.WriteText([]byte("{\"method\":\"X.\xff\"}")) },
			false},
		"no JSON": {func(f *wire.Frames) error { return f.WriteText([]byte(`hello`)) },
			false},
		"too deep": {
			func(f *wire.Frames) error { return f.WriteText([]byte(strings.Repeat("[", 1000))) },
			false},
		"a frame with a name": {
			func(f *wire.Frames) error {
				return f.WriteBinary(wire.Frame{Channel: 2,
					Stream: 1}.Head())
			}, false},
		"a frame that is none": {
			func(f *wire.Frames) error { return f.WriteBinary([]byte("short")) }, false},
		"nothing of the kind": {func(f *wire.Frames) error { return f.Farewell(nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil)
			bad := s.backend.add("bad", func(c net.Conn) {
				go func() { _, _ = io.Copy(io.Discard, c) }()
				_ = tt.send(wire.NewFrames(c, false))
			})
			good := s.backend.add("good", echoAgent)
			c := s.openBrowser(t)
			goodSession, _ := c.attach(good.ID)
			badSession, _ := c.attach(bad.ID)
			if !tt.survive {
				if e := c.event("Target.detachedFromTarget"); !strings.Contains(string(e.Params),
					badSession) {
					t.Errorf("%s", e.Params)
				}
			}
			for range 3 {
				if m := c.call(goodSession, "State.getSession", ""); m.Error != nil {
					t.Errorf("%s", m.Error)
				}
			}
			for _, m := range c.seen {
				if m.ID != nil || m.Method == "X.y" && m.SessionID != badSession {
					t.Errorf("the client saw %+v", m)
				}
			}
		})
	}
}

// TestClientFaults: a client that violates the protocol gets the reason and is disconnected, and
// other clients are not affected.
func TestClientFaults(t *testing.T) {
	s := serve(t, nil)
	a := s.backend.add("one", echoAgent)
	other := s.openBrowser(t)
	session, _ := other.attach(a.ID)
	head := func(h ws.Header) func(*client) {
		return func(c *client) { _ = ws.WriteHeader(c.conn, h) }
	}
	text := func(p string) func(*client) { return func(c *client) { _ = c.f.WriteText([]byte(p)) } }
	frame := func(f wire.Frame) func(*client) {
		return func(c *client) {
			_ = c.f.WriteBinary(f.Head())
		}
	}
	for name, tt := range map[string]struct {
		send   func(*client)
		code   int
		reason string
	}{
		"no JSON":   {text("hello"), 1002, "not a JSON"},
		"no object": {text("[]"), 1002, "not a JSON object"},
		"no method": {text(`{"id":1}`), 1002, "not a command"},
		"no id":     {text(`{"method":"Target.getTargets"}`), 1002, "not a command"},
		"an id that is none": {text(`{"id":"1","method":"Target.getTargets"}`),
			1002, "not a JSON object"},
		"too deep":   {text(strings.Repeat(`{"a":`, 100)), 1002, "nested deeper"},
		"no UTF-8":   {text("{\"id\":1,\"method\":\"\xff\"}"), 1007, "UTF-8"},
		"no channel": {frame(wire.Frame{Stream: 1}), 1002, "unknown session"},
		"a channel of nobody": {frame(wire.Frame{Channel: 9, Stream: 1}), 1002,
			"unknown session"},
		"a frame that is none": {func(c *client) { _ = c.f.WriteBinary([]byte("x")) },
			1002, "shorter than"},
		"a reserved opcode": {head(ws.Header{Fin: true, OpCode: 5, Masked: true}), 1002,
			"opcode"},
		"an unknown extension": {head(ws.Header{Fin: true, Rsv: 4, OpCode: ws.OpText,
			Masked: true}), 1002, "extension"},
		"a message without end": {head(ws.Header{Fin: true, OpCode: ws.OpText, Masked: true,
			Length: 1 << 40}), 1009, "longer than"},
		"a large binary frame": {head(ws.Header{Fin: true, OpCode: ws.OpBinary, Masked: true,
			Length: 1 << 20}), 1009, "longer than"},
		"a farewell": {func(c *client) { _ = c.f.Farewell(nil) }, 1000, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.openBrowser(t)
			c.attach(a.ID)
			tt.send(c)
			c.wantClosed(tt.code, tt.reason)
			if m := other.call(session, "State.getSession", ""); m.Error != nil {
				t.Errorf("another client: %s", m.Error)
			}
		})
	}
	// On a sandbox's own connection the agent itself reports the fault.
	c := &client{t: t, conn: s.open(t, pagePath+string(a.ID))}
	c.f = wire.NewFrames(c.conn, true)
	_ = c.f.WriteText([]byte("hello"))
	c.wantClosed(1002, "not a JSON")
}

// TestFloodOfRequests: a client that sends without reading is disconnected, and meanwhile no other client has
// to wait.
func TestFloodOfRequests(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *testServer,
		sandboxes.Info) (*client, string){
		"a session's": func(t *testing.T, s *testServer, a sandboxes.Info) (*client, string) {
			c := s.openBrowser(t)
			session, _ := c.attach(a.ID)
			return c, fmt.Sprintf(`{"id":1,"method":"State.getSession","sessionId":%q}`, session)
		},
		"the server's": func(t *testing.T, s *testServer, _ sandboxes.Info) (*client, string) {
			return s.openBrowser(t), `{"id":1,"method":"Target.getTargets"}`
		},
		"a page's": func(t *testing.T, s *testServer, a sandboxes.Info) (*client, string) {
			c := &client{t: t, conn: s.open(t, pagePath+string(a.ID))}
			c.f = wire.NewFrames(c.conn, true)
			return c, `{"id":1,"method":"State.getSession"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, nil)
			a := s.backend.add("one", echoAgent)
			other := s.openBrowser(t)
			session, _ := other.attach(a.ID)
			s.writeTime = 500 * time.Millisecond // for the bad client alone: a busy machine delays the other one, too
			bad, command := open(t, s, a)
			cut := make(chan struct{})
			go func() {
				defer close(cut)
				for bad.f.WriteText([]byte(command)) == nil {
				}
			}()
			for flooding := true; flooding; {
				began := time.Now()
				if m := other.call(session, "State.getSession", ""); m.Error != nil {
					t.Errorf("another client: %s", m.Error)
				}
				other.seen = nil
				if took := time.Since(began); took > time.Minute {
					t.Errorf("another client waited for %s", took)
				}
				select {
				case <-cut:
					flooding = false
				case <-time.After(10 * time.Millisecond): //wait: the loop polls
				}
			}
			if !strings.Contains(s.log.String(), "accepted no data") {
				t.Errorf("the log does not tell of it: %s", s.log)
			}
		})
	}
}

// TestSandboxThatDoesNotRead: only that sandbox is disconnected.
func TestSandboxThatDoesNotRead(t *testing.T) {
	s := serve(t, nil)
	deaf := s.backend.add("deaf", func(net.Conn) {})
	good := s.backend.add("good", echoAgent)
	c := s.openBrowser(t)
	session, _ := c.attach(good.ID)
	s.writeTime = 300 * time.Millisecond // for the deaf one alone: a busy machine delays the good one, too
	deafSession, _ := c.attach(deaf.ID)
	c.send(fmt.Sprintf(`{"id":900,"method":"State.getSession","sessionId":%q}`, deafSession))
	if m := c.call(session, "State.getSession", ""); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
	if e := c.event("Target.detachedFromTarget"); !strings.Contains(string(e.Params),
		"accepted no data for 300ms") {
		t.Errorf("%s", e.Params)
	}
	if m := c.call(session, "State.getSession", ""); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
}

// TestFullQueue: a sandbox that accepts nothing does not block a client, and commands for an ended
// session are answered.
func TestFullQueue(t *testing.T) {
	// A client that waits for the sandbox's limit waits longer than the test.
	s := serve(t, func(s *Server) { s.writeTime = time.Hour })
	deaf := s.backend.add("deaf", func(net.Conn) {})
	good := s.backend.add("good", echoAgent)
	c := s.openBrowser(t)
	deafSession, channel := c.attach(deaf.ID)
	session, _ := c.attach(good.ID)
	frame := append(wire.Frame{Channel: channel, Stream: 1}.Head(), make([]byte, 64<<10)...)
	for range maxQueue/len(frame) + 64 {
		_ = c.conn.SetWriteDeadline(time.Now().Add(2 * time.Minute))
		if err := c.f.WriteBinary(frame); err != nil {
			t.Fatal(err)
		}
	}
	if m := c.call(session, "State.getSession", ""); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
	if e := c.event("Target.detachedFromTarget"); !strings.Contains(string(e.Params),
		"has not accepted 16 MiB") {
		t.Errorf("%s", e.Params)
	}
	if m := c.call(deafSession, "State.getSession",
		""); !strings.Contains(string(m.Error), "-32001") {
		t.Errorf("%s", m.Error)
	}
}

// TestTooManyPending: commands without answers do not use unbounded memory.
func TestTooManyPending(t *testing.T) {
	s := serve(t, nil)
	mute := s.backend.add("mute", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	c := s.openBrowser(t)
	session, _ := c.attach(mute.ID)
	for n := range maxPending + 1 {
		c.send(fmt.Sprintf(`{"id":%d,"method":"State.getSession","sessionId":%q}`, 1000+n, session))
	}
	m, _, err := c.next()
	for err == nil && m != nil && m.ID == nil {
		m, _, err = c.next()
	}
	if err != nil || m == nil || *m.ID != 1000+maxPending ||
		!strings.Contains(string(m.Error), "too many") {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestServerEnds: clients are told.
func TestServerEnds(t *testing.T) {
	s := serve(t, nil)
	a := s.backend.add("one", echoAgent)
	c := s.openBrowser(t)
	c.attach(a.ID)
	page := &client{t: t, conn: s.open(t, pagePath+string(a.ID))}
	page.f = wire.NewFrames(page.conn, true)
	s.stop()
	c.wantClosed(1001, "the server is shutting down")
	page.wantClosed(1001, "the server is shutting down")
}
