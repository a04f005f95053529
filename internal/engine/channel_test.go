package engine

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A node signs statements about the sandboxes of a store, and relays their channels.
type node struct {
	t     *testing.T
	store *sandboxes.Store
	key   *key.Signer
	pins  *key.Trust
}

func newNode(t *testing.T, store *sandboxes.Store) *node {
	t.Helper()
	_, private := ok2(t)(ed25519.GenerateKey(rand.Reader))
	s := ok[ssh.Signer](t)(ssh.NewSignerFromKey(private))
	n := &node{t: t, store: store, key: ok[*key.Signer](t)(key.NewSigner(s)), pins: &key.Trust{}}
	n.pins.Add(key.Entry{Key: n.key.Public, Role: key.Node})
	return n
}

func ok2(t *testing.T) func(ed25519.PublicKey, ed25519.PrivateKey, error) (ed25519.PublicKey,
	ed25519.PrivateKey) {
	return func(a ed25519.PublicKey, b ed25519.PrivateKey, err error) (ed25519.PublicKey,
		ed25519.PrivateKey) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
}

// attest returns what a client knows after it has asked for a statement and checked it.
func (n *node) attest(id turnstone.SandboxID) channel.ClientConfig {
	n.t.Helper()
	ctx := n.t.Context()
	client := channel.NewKeyPair()
	var nonce attest.Nonce
	_, _ = rand.Read(nonce[:])
	server := ok[sandboxes.ChannelKey](n.t)(n.store.Seal(ctx, id, sandboxes.Seal{}))
	now := time.Now()
	signed := ok[*attest.Signed](n.t)(attest.Sign(ctx, &attest.Statement{Sandbox: id,
		ServerKey: server, Clients: []channel.PublicKey{client.Public}, Nonce: nonce, Time: now,
		Expires: now.Add(time.Hour)}, n.key))
	again := ok[sandboxes.ChannelKey](n.t)(n.store.Seal(ctx, id, sandboxes.Seal{
		Statement: signed.Digest, Clients: []sandboxes.ChannelKey{client.Public},
		Expires: signed.Expires}))
	if again != server {
		n.t.Fatal("the sandbox has another key now")
	}
	// The client has the envelope only.
	got := ok[*attest.Signed](n.t)(attest.Open(ctx, signed.Envelope))
	if err := got.Check(attest.Expected{Pins: n.pins, About: string(id), Client: client.Public,
		Nonce: nonce}, time.Now()); err != nil {
		n.t.Fatal(err)
	}
	return channel.ClientConfig{Key: client, Server: got.ServerKey, Statement: got.Digest}
}

// relay returns a stream to the sandbox through a relay that copies bytes, or does to them what
// tamper does; nil: nothing.
func (n *node) relay(id turnstone.SandboxID, tamper func(io.Writer) io.Writer) net.Conn {
	n.t.Helper()
	guest := ok[sandboxes.ChannelStream](n.t)(n.store.OpenChannel(n.t.Context(), id))
	near, far := net.Pipe()
	var to io.Writer = far
	if tamper != nil {
		to = tamper(far)
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(guest, far)
		_ = guest.CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(to, guest)
		_ = far.Close()
	})
	n.t.Cleanup(func() {
		_, _, _ = near.Close(), far.Close(), guest.Close()
		both.Wait()
	})
	return near
}

// A tamperer changes the frames of one direction after the server's answer to the handshake.
type tamperer struct {
	to     io.Writer
	buf    []byte
	passed bool // the answer
	frames int
	do     func(n int, frame []byte) []byte
}

func (t *tamperer) Write(p []byte) (int, error) {
	const answer, head = 49, 10
	t.buf = append(t.buf, p...)
	for {
		size := answer
		if t.passed {
			if len(t.buf) < head {
				return len(p), nil
			}
			size = head + int(binary.BigEndian.Uint16(t.buf))
		}
		if len(t.buf) < size {
			return len(p), nil
		}
		out := bytes.Clone(t.buf[:size])
		t.buf = t.buf[size:]
		if t.passed {
			out = t.do(t.frames, out)
			t.frames++
		}
		t.passed = true
		if _, err := t.to.Write(out); err != nil {
			return 0, err
		}
	}
}

// commandIn runs a command in a channel and returns its output and the channel's fault.
func commandIn(ctx context.Context, stream net.Conn, config channel.ClientConfig) (string, error) {
	conn, err := channel.Client(ctx, stream, config)
	if err != nil {
		return "", err
	}
	kept := &keeper{Conn: conn}
	c := wire.NewClient(kept)
	defer func() { _ = c.Close(); c.Wait() }()
	var out bytes.Buffer
	_, err = c.Start(ctx, wire.ProcessStartParams{Argv: []string{"sh", "-c",
		"echo in $(hostname); cat"}}, wire.Stdio{In: strings.NewReader("hello\n"), Out: &out})
	if fault := kept.error(); fault != nil {
		return out.String(), fault
	}
	return out.String(), err
}

// A keeper keeps the error of a channel.
type keeper struct {
	*channel.Conn
	mu  sync.Mutex
	err error
}

func (k *keeper) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	k.mu.Lock()
	defer k.mu.Unlock()
	if channel.FaultOf(err) != "" {
		k.err = err
	}
	return n, err
}

func (k *keeper) error() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// TestChannelsOfSandboxes runs commands in real sandboxes through relays: a relay that copies bytes
// sees nothing of them, and what a relay does to the bytes is named.
func TestChannelsOfSandboxes(t *testing.T) {
	h := turntest.Home(t)
	store := sandboxes.NewStore(h.Root)
	store.Holder = sandboxes.Holder{Path: "/proc/self/exe",
		Args: []string{"turn", "sandbox", "hold"}}
	n := newNode(t, store)
	var ids []turnstone.SandboxID
	for range 2 { // both are clones of one snapshot
		i := ok[sandboxes.Info](t)(store.Create(t.Context(), sandboxes.Spec{Image: "base",
			Shape: turnstone.DefaultShape(), Substrate: driver.GVisor, TTL: time.Hour}, nil))
		t.Cleanup(func() {
			if err := store.Remove(context.WithoutCancel(t.Context()), i.ID); err != nil {
				t.Error(err)
			}
		})
		ids = append(ids, i.ID)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	one, two := n.attest(ids[0]), n.attest(ids[1])
	if one.Server == two.Server {
		t.Fatal("two clones of a snapshot have one key")
	}
	if again := n.attest(ids[0]); again.Server != one.Server {
		t.Error("a sandbox has two keys")
	}

	host := strings.ReplaceAll(string(ids[0]), "_", "-")
	var seen recorder
	out, err := commandIn(ctx, n.relay(ids[0], seen.tap), one)
	if err != nil || out != "in "+host+"\nhello\n" {
		t.Fatalf("%q, %v", out, err)
	}
	if all := seen.all(); len(all) == 0 || bytes.Contains(all, []byte(host)) ||
		bytes.Contains(all, []byte("Process")) {
		t.Errorf("the relay saw %d bytes in the clear", len(all))
	}

	for what, c := range map[string]struct {
		fault channel.Fault
		do    func(n int, frame []byte) []byte
	}{
		"a byte changed": {channel.FaultAltered, func(n int, f []byte) []byte {
			if n == 1 {
				f[len(f)-1] ^= 1
			}
			return f
		}},
		"a frame dropped": {channel.FaultReordered, func(n int, f []byte) []byte {
			if n == 0 {
				return nil
			}
			return f
		}},
		"a frame repeated": {channel.FaultRepeated, func(n int, f []byte) []byte {
			if n == 0 {
				return append(f, f...)
			}
			return f
		}},
	} {
		_, err := commandIn(ctx, n.relay(ids[0], func(to io.Writer) io.Writer {
			return &tamperer{to: to, do: c.do}
		}), one)
		if channel.FaultOf(err) != c.fault || turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %q (%s)", what, err, channel.FaultOf(err))
		}
	}

	// The stream of the other sandbox, which does not know the statement.
	if _, err := commandIn(ctx, n.relay(ids[1], nil), one); turnstone.KindOf(
		err) != turnstone.KindNotFound {
		t.Errorf("another sandbox: %v", err)
	}
	// The other sandbox, even if the statement were sealed to it: it does not have the key.
	if _, err := store.Seal(ctx, ids[1], sandboxes.Seal{Statement: one.Statement,
		Clients: []sandboxes.ChannelKey{one.Key.Public},
		Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, err := commandIn(ctx, n.relay(ids[1], nil), one); turnstone.KindOf(
		err) != turnstone.KindIntegrity {
		t.Errorf("another sandbox with the statement: %v", err)
	}
	// An end of the relay's own, with a key that the statement does not name.
	near, far := net.Pipe()
	var admits channel.Statements
	if err := admits.Add(one.Statement, []channel.PublicKey{one.Key.Public},
		time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = channel.Server(ctx, far, channel.ServerConfig{Key: channel.NewKeyPair(),
			Registry: &admits})
	}()
	if _, err := commandIn(ctx, near, one); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("the relay's own end: %v", err)
	}

	// A fork continues with the memory of its parent, and still has a key of its own. So has the
	// parent, because the snapshot must not have its key.
	forks := ok[[]sandboxes.Info](t)(store.Fork(ctx, ids[0], sandboxes.Fork{Count: 1}, nil))
	t.Cleanup(func() {
		if err := store.Remove(context.WithoutCancel(t.Context()), forks[0].ID); err != nil {
			t.Error(err)
		}
	})
	if _, err := commandIn(ctx, n.relay(ids[0], nil), one); turnstone.KindOf(
		err) != turnstone.KindNotFound {
		t.Errorf("the statement before the fork: %v", err)
	}
	parent, fork := n.attest(ids[0]), n.attest(forks[0].ID)
	if parent.Server == one.Server || fork.Server == one.Server || fork.Server == parent.Server {
		t.Error("a fork has its parent's key")
	}
	for id, config := range map[turnstone.SandboxID]channel.ClientConfig{ids[0]: parent,
		forks[0].ID: fork} {
		if out, err := commandIn(ctx, n.relay(id, nil), config); err != nil ||
			!strings.HasSuffix(out, "\nhello\n") {
			t.Errorf("%s: %q, %v", id, out, err)
		}
	}
}

// A recorder keeps what a relay sees of one direction.
type recorder struct {
	mu   sync.Mutex
	seen bytes.Buffer
}

func (r *recorder) tap(to io.Writer) io.Writer { return io.MultiWriter(to, r) }

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen.Write(p)
}

func (r *recorder) all() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.seen.Bytes())
}
