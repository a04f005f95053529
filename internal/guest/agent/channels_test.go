package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/wire"
)

// A guest is a client of channels.
type guest struct {
	h      *harness
	key    channel.KeyPair
	server channel.PublicKey
	sealed turnstone.Digest
}

// seal admits a new client under a statement of its own.
func (h *harness) seal() *guest {
	h.t.Helper()
	g := &guest{h: h, key: channel.NewKeyPair()}
	res, err := h.SandboxSeal(h.t.Context(), &wire.SandboxSealParams{})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := g.server.UnmarshalText([]byte(res.Key)); err != nil {
		h.t.Fatal(err)
	}
	g.sealed = turnstone.DigestBytes([]byte(rand.Text()))
	again, err := h.SandboxSeal(h.t.Context(), g.params())
	if err != nil {
		h.t.Fatal(err)
	}
	if again.Key != res.Key {
		h.t.Fatalf("the key was %s and is %s", res.Key, again.Key)
	}
	return g
}

func (g *guest) params() *wire.SandboxSealParams {
	return &wire.SandboxSealParams{Statement: string(g.sealed),
		Clients: []string{g.key.Public.String()},
		Expires: time.Now().Add(time.Hour).Format(time.RFC3339)}
}

func (g *guest) dial() (*channel.Conn, error) {
	return channel.Client(g.h.t.Context(), g.h.open(), channel.ClientConfig{Key: g.key,
		Server: g.server, Statement: g.sealed})
}

// connect returns a client of the wire inside a channel.
func (g *guest) connect() *wire.Client {
	g.h.t.Helper()
	conn, err := g.dial()
	if err != nil {
		g.h.t.Fatal(err)
	}
	c := wire.NewClient(conn)
	g.h.t.Cleanup(func() { _ = c.Close(); c.Wait() })
	return c
}

// echo runs a process that repeats text.
func echo(t *testing.T, c *wire.Client, text string) {
	t.Helper()
	var out bytes.Buffer
	end, err := c.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"cat"}},
		wire.Stdio{In: strings.NewReader(text), Out: &out})
	if err != nil || out.String() != text || end.Exit.ExitCode != 0 {
		t.Fatalf("%d bytes came back of %d; %+v, %v", out.Len(), len(text), end, err)
	}
}

func TestChannel(t *testing.T) {
	if channelByte != channel.Magic[0] {
		t.Fatal("channels begin with another byte")
	}
	h := newHarness(t)
	one, two := h.seal(), h.seal()
	if one.server != two.server {
		t.Error("a sandbox has two keys")
	}
	a, b := one.connect(), two.connect()
	echo(t, a, strings.Repeat("0123456789", 1<<18)) // larger than every window
	echo(t, b, "b")
	// Shell, files and the session are the same as on the host's connection.
	if _, err := a.Execute(t.Context(), wire.ShellExecuteParams{Trace: new(bool)}, "export A=1",
		wire.Stdio{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := h.bash("echo $A"); got.stdout != "1\n" {
		t.Errorf("%q", got.stdout)
	}
	// The end of a channel, in good order or not, disturbs no other.
	_ = a.Close()
	echo(t, b, "after a")
	s := h.open()
	cut, err := channel.Client(t.Context(), s, channel.ClientConfig{Key: one.key,
		Server: one.server, Statement: one.sealed})
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(cut)
	echo(t, c, "c")
	s.Abort()
	<-c.Done()
	c.Wait()
	echo(t, b, "after c")
	echo(t, one.connect(), "again")
}

// TestChannelIsNotTheHost sends every command of the protocol over a channel: those of the host are
// rejected, and no other is.
func TestChannelIsNotTheHost(t *testing.T) {
	var p struct {
		Domains []struct {
			Domain   string
			Commands []struct{ Name string }
		}
	}
	if err := json.Unmarshal(wire.Descriptor(), &p); err != nil {
		t.Fatal(err)
	}
	h := newHarness(t)
	g := h.seal()
	conn, err := g.dial()
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(conn, wire.Options{}) // a Client checks events
	defer func() { _ = c.Close(); c.Wait() }()
	var hosts []string
	for _, d := range p.Domains {
		for _, cmd := range d.Commands {
			method := d.Domain + "." + cmd.Name
			err := c.Call(t.Context(), method, nil, nil)
			if d.Domain == "Target" {
				kindIs(t, err, turnstone.KindInvalid) // an agent does not have it
				continue
			}
			if err != nil && strings.Contains(err.Error(), "only the host") {
				kindIs(t, err, turnstone.KindInvalid)
				hosts = append(hosts, method)
			}
		}
	}
	if want := []string{"Sandbox.configure", "Sandbox.suspend", "Sandbox.renew", "Sandbox.network",
		"Sandbox.seal", "Sandbox.activity", "Sandbox.record", "Sandbox.setDefaults",
		"Process.prepare", "State.freeze", "State.export", "State.thaw"}; !slices.Equal(hosts, want) {
		t.Errorf("the host's commands are %q, not %q", hosts, want)
	}
	echo(t, g.connect(), "another channel")
}

func TestSealRejects(t *testing.T) {
	h := newHarness(t)
	g := h.seal()
	weak := make([]byte, channel.KeySize)
	for what, change := range map[string]func(*wire.SandboxSealParams){
		"no statement": func(p *wire.SandboxSealParams) { p.Statement = "" },
		"no digest":    func(p *wire.SandboxSealParams) { p.Statement = "sha256:ab" },
		"no client":    func(p *wire.SandboxSealParams) { p.Clients = nil },
		"many clients": func(p *wire.SandboxSealParams) {
			p.Clients = slices.Repeat(p.Clients, channel.MaxClients+1)
		},
		"no key":           func(p *wire.SandboxSealParams) { p.Clients[0] = "AAAA" },
		"weak key":         func(p *wire.SandboxSealParams) { p.Clients[0] = channel.PublicKey(weak).String() },
		"no time":          func(p *wire.SandboxSealParams) { p.Expires = "tomorrow" },
		"no withdrawn key": func(p *wire.SandboxSealParams) { p.Withdrawn = "AAAA" },
	} {
		p := g.params()
		change(p)
		if _, err := h.SandboxSeal(t.Context(), p); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	busy := channel.NewKeyPair().Public.String()
	for i := range 200 { // which are more than an agent keeps
		p := g.params()
		p.Statement, p.Clients = string(turnstone.DigestBytes([]byte{byte(i)})), []string{busy}
		if _, err := h.SandboxSeal(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	echo(t, g.connect(), "g")
}

// TestChannelRefuses opens streams that must not become channels.
func TestChannelRefuses(t *testing.T) {
	h := newHarness(t)
	none := &guest{h: h, key: channel.NewKeyPair(), server: channel.NewKeyPair().Public,
		sealed: turnstone.DigestBytes(nil)}
	if _, err := none.dial(); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("a sandbox without statements: %v", err)
	}
	g := h.seal()
	stays := g.connect()
	other := h.seal()

	stranger := *g
	stranger.key = channel.NewKeyPair()
	_, err := stranger.dial()
	kindIs(t, err, turnstone.KindInvalid)
	spliced := *g
	spliced.sealed = other.sealed // which does not name this client
	_, err = spliced.dial()
	kindIs(t, err, turnstone.KindInvalid)
	swapped := *g
	swapped.server = channel.NewKeyPair().Public
	_, err = swapped.dial()
	kindIs(t, err, turnstone.KindIntegrity)
	unknown := *g
	unknown.sealed = turnstone.DigestBytes(nil)
	_, err = unknown.dial()
	kindIs(t, err, turnstone.KindNotFound)
	late := g.params()
	late.Statement, late.Expires = string(turnstone.DigestBytes([]byte("late"))),
		time.Now().Add(-time.Second).Format(time.RFC3339)
	if _, err := h.SandboxSeal(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	expired := *g
	expired.sealed = turnstone.Digest(late.Statement)
	if _, err := expired.dial(); !strings.Contains(err.Error(), "has expired") {
		t.Errorf("%v", err)
	}

	sealed, err := hex.DecodeString(g.sealed.Hex())
	if err != nil {
		t.Fatal(err)
	}
	hello := append([]byte(channel.Magic), sealed...)
	for what, bytes := range map[string][]byte{
		"random bytes":          []byte(rand.Text() + rand.Text()),
		"almost a channel":      []byte("TSC2" + rand.Text()),
		"a random statement":    []byte("TSC1" + strings.Repeat("\xa5", 128)),
		"a random message":      append(slices.Clone(hello), make([]byte, 96)...),
		"an HTTP request":       []byte("GET / HTTP/1.1\r\n\r\n"),
		"a key of low order":    append(slices.Clone(hello), slices.Repeat([]byte{0}, 96)...),
		"a frame in the clear":  {0x81, 0x85, 0, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'},
		"the end of the stream": nil,
	} {
		s := h.open()
		if _, err := s.Write(bytes); err != nil {
			t.Fatal(err)
		}
		if bytes == nil {
			_ = s.CloseWrite()
		}
		// The other side ends the stream at once. What it says is a reason or a closing frame.
		if said, _ := io.ReadAll(s); len(said) > 200 {
			t.Errorf("%s: %d bytes came", what, len(said))
		}
		_ = s.Close()
	}
	echo(t, stays, "still there")
}

// TestReplayedHello plays a recorded first message again: nothing comes of it.
func TestReplayedHello(t *testing.T) {
	h := newHarness(t)
	g := h.seal()
	tap := &tapped{LinkStream: h.open()}
	conn, err := channel.Client(t.Context(), tap, channel.ClientConfig{Key: g.key,
		Server: g.server, Statement: g.sealed})
	if err != nil {
		t.Fatal(err)
	}
	first := wire.NewClient(conn)
	defer first.Close()
	echo(t, first, "first")
	sent := slices.Concat(tap.sent...)
	s := h.open()
	if _, err := s.Write(sent); err != nil { // the handshake, its confirmation, and commands
		t.Fatal(err)
	}
	// The answer, and a frame under the new keys that says "altered": a client whose confirmation was
	// changed can read it, and whoever replays cannot.
	const answer, report = 1 + 48, 2 + 8 + 1 + len(channel.FaultAltered) + 16
	if said, err := io.ReadAll(s); len(said) != answer+report {
		t.Errorf("%d bytes came, %v", len(said), err)
	}
	res, err := h.ProcessList(t.Context())
	if err != nil || len(res.Processes) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

// A tapped stream keeps what is written.
type tapped struct {
	wire.LinkStream
	sent [][]byte
}

func (s *tapped) Write(p []byte) (int, error) {
	s.sent = append(s.sent, slices.Clone(p))
	return s.LinkStream.Write(p)
}

// TestChannelsAreBounded opens more handshakes and channels than there may be. The host and the
// channels that are there do not notice.
func TestChannelsAreBounded(t *testing.T) {
	h := newHarness(t)
	g := h.seal()
	stays := g.connect()
	echo(t, stays, "a channel") // the agent's side of its handshake has ended too
	var slow []wire.LinkStream
	for range maxHandshakes {
		s := h.open()
		if _, err := s.Write([]byte("TS")); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, s)
	}
	waitFor(t, "handshakes", func() bool {
		h.a.channels.mu.Lock()
		defer h.a.channels.mu.Unlock()
		return h.a.channels.handshakes == maxHandshakes
	})
	if _, err := g.dial(); turnstone.KindOf(err) != turnstone.KindDead {
		t.Fatalf("one handshake more: %v", err)
	}
	echo(t, stays, "a channel")
	echo(t, h.Client, "the host")
	for _, s := range slow {
		s.Abort()
	}
	waitFor(t, "the ends of handshakes", func() bool {
		h.a.channels.mu.Lock()
		defer h.a.channels.mu.Unlock()
		return h.a.channels.open == 1
	})
	all := []*wire.Client{stays}
	for len(all) < maxChannels {
		c := g.connect()
		echo(t, c, "the handshake has ended")
		all = append(all, c)
	}
	if _, err := g.dial(); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("one channel more: %v", err)
	}
	for _, c := range all {
		echo(t, c, "one of many")
	}
	echo(t, h.connect(), "the host")
	_ = all[7].Close()
	waitFor(t, "room for a channel", func() bool {
		c, err := g.dial()
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// configurable returns an agent that waits for Sandbox.configure and can be suspended.
func configurable(t *testing.T, reseeded bool) *Agent {
	t.Helper()
	dir := t.TempDir()
	a, err := New(Options{RunDir: dir + "/run", Cwd: dir,
		Configure: func(*wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
			return &wire.SandboxConfigureResult{Reseeded: reseeded}, nil
		},
		Renew: func(*wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
			return &wire.SandboxRenewResult{Reseeded: reseeded}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (k *channels) hasKey() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made
}

// TestKeyComesAfterTheReseed checks that no key is made before the random numbers are confirmed to
// be the sandbox's own, and none that others can compute.
func TestKeyComesAfterTheReseed(t *testing.T) {
	for _, c := range []struct {
		what                    string
		reseeded, deterministic bool
	}{{"an ordinary sandbox", true, false}, {"not reseeded", false, false},
		{"deterministic", true, true}} {
		a := configurable(t, c.reseeded)
		h := serve(t, a)
		_, err := h.SandboxSeal(t.Context(), &wire.SandboxSealParams{})
		kindIs(t, err, turnstone.KindInvalid) // it is not configured yet
		if a.channels.hasKey() {
			t.Errorf("%s: there is a key before the reseed", c.what)
		}
		if _, err := h.SandboxConfigure(t.Context(),
			&wire.SandboxConfigureParams{Deterministic: c.deterministic}); err != nil {
			t.Fatal(err)
		}
		if a.channels.hasKey() {
			t.Errorf("%s: there is a key before it is asked for", c.what)
		}
		_, err = h.SandboxSeal(t.Context(), &wire.SandboxSealParams{})
		if good := c.reseeded && !c.deterministic; good && err != nil {
			t.Errorf("%s: %v", c.what, err)
		} else if !good {
			kindIs(t, err, turnstone.KindUnavailable)
			if a.channels.hasKey() {
				t.Errorf("%s: there is a key", c.what)
			}
		}
	}
}

// TestSuspendErasesTheKey checks that a snapshot of a running sandbox has no key, that the sandbox
// makes another one afterwards, and that a handshake cannot delay that.
func TestSuspendErasesTheKey(t *testing.T) {
	a := configurable(t, true)
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- a.Serve(t.Context(), far) }()
	port := wire.NewPort(near, true)
	h := &harness{t: t, a: a}
	dial := func() {
		t.Helper()
		var err error
		if h.link, err = port.Link(); err != nil {
			t.Fatal(err)
		}
		h.Client = h.connect()
	}
	dial()
	if _, err := h.SandboxConfigure(t.Context(), &wire.SandboxConfigureParams{}); err != nil {
		t.Fatal(err)
	}
	old := h.seal()
	echo(t, old.connect(), "before")
	slow := h.open()
	if _, err := slow.Write([]byte("TSC1")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the handshake", func() bool {
		a.channels.mu.Lock()
		defer a.channels.mu.Unlock()
		return a.channels.handshakes == 1
	})
	private := a.channels.key // its private part is shared
	marker := bytes.Repeat([]byte{0xa5}, wire.MarkerSize)
	if err := port.Expect(marker); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SandboxSuspend(t.Context(),
		&wire.SandboxSuspendParams{Marker: marker}); err != nil {
		t.Fatal(err)
	}
	if a.channels.hasKey() || !bytes.Equal(private.Private(), make([]byte, channel.KeySize)) {
		t.Error("a suspended sandbox has its key")
	}
	// A command that passed the gate before makes no key either.
	_, err := (&sandbox{a}).Seal(t.Context(), nil, &wire.SandboxSealParams{})
	kindIs(t, err, turnstone.KindUnavailable)
	if err := port.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	dial()
	if _, err := h.SandboxRenew(t.Context(), &wire.SandboxRenewParams{}); err != nil {
		t.Fatal(err)
	}
	old.h = h
	_, err = old.dial()
	kindIs(t, err, turnstone.KindNotFound) // which tells the client to ask for a statement
	fresh := h.seal()
	if fresh.server == old.server {
		t.Error("the key is the same after the suspension")
	}
	echo(t, fresh.connect(), "after")
	_ = port.Close()
	if err := errors.Join(<-served, a.Close()); err != nil {
		t.Error(err)
	}
}
