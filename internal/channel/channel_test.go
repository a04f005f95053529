package channel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// pattern returns n bytes that do not repeat soon.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * i >> 7)
	}
	return b
}

// ends are a client and a server that know each other by one statement.
type ends struct {
	client ClientConfig
	server ServerConfig
}

func newEnds(t testing.TB) ends {
	t.Helper()
	client, server := NewKeyPair(), NewKeyPair()
	d := turnstone.DigestBytes([]byte("statement"))
	known := &Statements{}
	if err := known.Add(d, []PublicKey{client.Public}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	return ends{ClientConfig{Key: client, Server: server.Public, Statement: d},
		ServerConfig{Key: server, Registry: known}}
}

// result is what a handshake returned.
type result struct {
	conn *Conn
	err  error
}

// shake performs a handshake over two streams.
func (e ends) shake(ctx context.Context, c, s io.ReadWriteCloser) (client, server result) {
	var wg sync.WaitGroup
	wg.Go(func() { server.conn, server.err = Server(ctx, s, e.server) })
	client.conn, client.err = Client(ctx, c, e.client)
	wg.Wait()
	return client, server
}

// pair returns the two ends of a channel over a pipe.
func pair(t testing.TB) (client, server *Conn) {
	t.Helper()
	a, b := net.Pipe()
	c, s := newEnds(t).shake(t.Context(), a, b)
	if c.err != nil || s.err != nil {
		t.Fatal(c.err, s.err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return c.conn, s.conn
}

// want checks that err names a manipulation, and has the kind that goes with it.
func want(t testing.TB, err error, f Fault) {
	t.Helper()
	kind := turnstone.KindIntegrity
	if f == FaultTruncated {
		kind = turnstone.KindDead
	}
	if FaultOf(err) != f || turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
		t.Fatalf("the error is %q (%s, %s, hint %q), not %s", err, FaultOf(err),
			turnstone.KindOf(err), turnstone.HintOf(err), f)
	}
}

func TestBothWays(t *testing.T) {
	client, server := pair(t)
	if server.Peer() == client.Peer() || client.Statement() != server.Statement() {
		t.Fatal("the ends do not know each other")
	}
	there, back := pattern(3*maxData+5), pattern(1<<20+1)
	var wg sync.WaitGroup
	send := func(c *Conn, b []byte) {
		if n, err := c.Write(b); n != len(b) || err != nil {
			t.Error(n, err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
		if _, err := c.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	receive := func(c *Conn, b []byte) {
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes of %d, %v", len(got), len(b), err)
		}
	}
	wg.Go(func() { send(client, there) })
	wg.Go(func() { send(server, back) })
	wg.Go(func() { receive(client, back) })
	receive(server, there)
	wg.Wait()
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if client.buf != nil || server.buf != nil {
		t.Error("an idle channel holds a frame")
	}
}

func TestManyWritersDoNotMix(t *testing.T) {
	client, server := pair(t)
	var wg sync.WaitGroup
	const size = maxData + 100
	for i := range 8 {
		wg.Go(func() {
			if _, err := client.Write(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
				t.Error(err)
			}
		})
	}
	seen, one := map[byte]bool{}, make([]byte, size)
	for range 8 {
		if _, err := io.ReadFull(server, one); err != nil {
			t.Fatal(err)
		}
		if seen[one[0]] || bytes.Count(one, one[:1]) != size {
			t.Fatal("two writes are mixed")
		}
		seen[one[0]] = true
	}
	wg.Wait()
}

func TestCloseUnblocks(t *testing.T) {
	client, server := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() { // blocks: nobody reads
		if _, err := server.Write(pattern(maxData)); err == nil {
			t.Error("a write to nobody has ended well")
		}
	})
	wg.Go(func() {
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	time.Sleep(10 * time.Millisecond) //wait: both are probably blocked; the test holds if not
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	_, err := io.ReadAll(client)
	want(t, err, FaultTruncated)
}

// link is a stream whose Close does not end a blocked Read, as that of a link.
type link struct{ net.Conn }

func (l link) Close() error { return nil }
func (l link) Abort()       { _ = l.Conn.Close() }

func TestHandshakeEndsWithItsContext(t *testing.T) {
	e := newEnds(t)
	for what, shake := range map[string]func(context.Context, io.ReadWriteCloser) error{
		"client": func(ctx context.Context, s io.ReadWriteCloser) error {
			_, err := Client(ctx, s, e.client)
			return err
		},
		"server": func(ctx context.Context, s io.ReadWriteCloser) error {
			_, err := Server(ctx, s, e.server)
			return err
		},
	} {
		a, b := net.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) //wait: it is meant to expire
		if err := shake(ctx, link{a}); turnstone.KindOf(err) != turnstone.KindTimeout {
			t.Errorf("%s: %v", what, err)
		}
		cancel()
		a, b2 := net.Pipe()
		if err := shake(ctx, a); turnstone.KindOf(err) == turnstone.KindInternal || err == nil {
			t.Errorf("%s with an ended context: %v", what, err)
		}
		_, _ = b.Close(), b2.Close()
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	k := NewKeyPair()
	again, err := LoadKeyPair(k.Private())
	if err != nil || again.Public != k.Public {
		t.Fatal(err)
	}
	if _, err := LoadKeyPair(k.Private()[1:]); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatal(err)
	}
	if k.String() != k.Public.String() || k.GoString() != k.Public.String() {
		t.Fatal("the key prints otherwise than its public key")
	}
	text, _ := k.Public.MarshalText()
	var p PublicKey
	if err := p.UnmarshalText(text); err != nil || p != k.Public {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "AAAA", string(text) + "\n", strings.TrimRight(string(text), "="),
		" " + string(text)} {
		if err := p.UnmarshalText([]byte(bad)); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// weakKeys are the points of low order, as RFC 7748 and "May the Fourth Be With You" (2015) list
// them.
func weakKeys() (all []PublicKey) {
	p := PublicKey{}
	for i := range p {
		p[i] = 0xff
	}
	p[31] = 0x7f
	at := func(low byte) PublicKey { k := p; k[0] = low; return k }
	order8 := PublicKey{0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1,
		0x9f, 0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16,
		0x5f, 0x49, 0xb8, 0x00}
	all = []PublicKey{{}, {1}, order8, at(0xec), at(0xed), at(0xee)}
	for _, k := range slices.Clone(all) {
		k[31] |= 0x80 // the bit that X25519 ignores
		all = append(all, k)
	}
	return all
}

func TestWeakKeys(t *testing.T) {
	if err := NewKeyPair().Public.Check(); err != nil {
		t.Fatal(err)
	}
	for _, k := range weakKeys() {
		want(t, k.Check(), FaultWeakKey)
		err := new(Statements).Add(turnstone.DigestBytes(nil), []PublicKey{k}, time.Now())
		if FaultOf(err) != FaultWeakKey {
			t.Error(err)
		}
		e := newEnds(t)
		e.client.Server = k
		a, b := net.Pipe()
		_, err = Client(t.Context(), a, e.client)
		want(t, err, FaultWeakKey)
		// As the ephemeral key of either side.
		e = newEnds(t)
		e.weakEphemeral(t, k)
		_ = b.Close()
	}
}

// weakEphemeral sends k as the ephemeral key of the client, then as that of the server.
func (e ends) weakEphemeral(t *testing.T, k PublicKey) {
	t.Helper()
	digest := sha256.Sum256([]byte("statement"))
	hello := slices.Concat([]byte(magic), digest[:], k[:], make([]byte, firstSize-KeySize))
	_, err := Server(t.Context(), &tape{in: bytes.NewReader(hello)}, e.server)
	want(t, err, FaultWeakKey)
	second := slices.Concat([]byte{answerSecond}, k[:], make([]byte, tagSize))
	_, err = Client(t.Context(), &tape{in: bytes.NewReader(second)}, e.client)
	want(t, err, FaultWeakKey)
}

// TestWithdraw: all statements of a client end, and no other one.
func TestWithdraw(t *testing.T) {
	s := new(Statements)
	later := time.Now().Add(time.Hour)
	gone, other := NewKeyPair().Public, NewKeyPair().Public
	d := func(n byte) turnstone.Digest { return turnstone.DigestBytes([]byte{n}) }
	for n, clients := range [][]PublicKey{{gone}, {other}, {other, gone}} {
		if err := s.Add(d(byte(n)), clients, later); err != nil {
			t.Fatal(err)
		}
	}
	s.Withdraw(gone)
	for n, stays := range []bool{false, true, false} {
		if _, err := s.Clients(d(byte(n))); (err == nil) != stays {
			t.Errorf("statement %d: %v", n, err)
		}
	}
}

// TestStatementsOfBusyClient connects more often than statements are kept: the client loses its
// oldest ones, and no other client loses one.
func TestStatementsOfBusyClient(t *testing.T) {
	var dropped []turnstone.Digest
	s := &Statements{Dropped: func(d turnstone.Digest) { dropped = append(dropped, d) }}
	later := time.Now().Add(time.Hour)
	d := func(i int) turnstone.Digest { return turnstone.DigestBytes([]byte(strconv.Itoa(i))) }
	add := func(i int, k PublicKey) error { return s.Add(d(i), []PublicKey{k}, later) }
	quiet, busy := NewKeyPair().Public, NewKeyPair().Public
	if err := add(-1, quiet); err != nil {
		t.Fatal(err)
	}
	for i := range 10 * maxStatements {
		if err := add(i, busy); err != nil {
			t.Fatal(i, err)
		}
		for _, one := range []int{-1, i, max(0, i-maxStatements/2)} {
			if _, err := s.Clients(d(one)); err != nil {
				t.Fatal(i, one, err)
			}
		}
	}
	if _, err := s.Clients(d(0)); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error("the oldest statement is kept:", err)
	}
	if len(s.all) > maxStatements || len(dropped)+len(s.all) != 10*maxStatements+1 {
		t.Errorf("%d statements are kept, and %d were dropped", len(s.all), len(dropped))
	}
	for i := 0; ; i++ { // each with a key of its own, until all have one
		err := add(10000+i, NewKeyPair().Public)
		if err == nil && i < maxStatements {
			continue
		}
		if turnstone.KindOf(err) != turnstone.KindExhausted || i != maxStatements-2 {
			t.Error(i, err)
		}
		break
	}
}

func TestStatements(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := &Statements{now: func() time.Time { return now }}
	k := []PublicKey{NewKeyPair().Public}
	d := func(i int) turnstone.Digest { return turnstone.DigestBytes([]byte{byte(i)}) }
	for i := range maxStatements {
		if err := s.Add(d(i), k, now.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Add(d(0), k, now.Add(time.Minute)); err != nil {
		t.Error("renewed:", err)
	}
	if _, err := s.Clients(d(99)); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error(err)
	}
	if got, err := s.Clients(d(1)); err != nil || !slices.Equal(got, k) {
		t.Error(got, err)
	}
	now = now.Add(time.Minute)
	_, err := s.Clients(d(1))
	want(t, err, FaultExpired)
	if err := s.Add(d(99), k, now.Add(time.Minute)); err != nil {
		t.Error("expired statements keep their place:", err)
	}
	if _, err := s.Clients(d(1)); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error(err)
	}
	for what, err := range map[string]error{"no digest": s.Add("x", k, now),
		"no client": s.Add(d(1), nil, now), "many": s.Add(d(1), make([]PublicKey, 17), now)} {
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Error(what, err)
		}
	}
}

// TestWireFrameFits: data of the wire is one frame of a channel, which is one message of a WebSocket.
func TestWireFrameFits(t *testing.T) {
	var out written
	f := wire.Frame{Stream: 1, Data: make([]byte, wire.SendChunk)}
	if err := wire.NewFrames(&out, true).WriteBinary(f.Head(), f.Data); err != nil {
		t.Fatal(err)
	}
	if len(out) > maxData || maxFrame > wire.MaxBinary {
		t.Errorf("%d bytes of %d; a frame has up to %d, a message %d", len(out), maxData, maxFrame,
			wire.MaxBinary)
	}
}

// written is a stream that keeps what is written.
type written []byte

func (w *written) Write(p []byte) (int, error) { *w = append(*w, p...); return len(p), nil }
func (w *written) Read([]byte) (int, error)    { return 0, io.EOF }
func (w *written) Close() error                { return nil }

// TestErase checks that an erased key is gone in both forms, and that ephemeral keys are erased.
func TestErase(t *testing.T) {
	none := make([]byte, KeySize)
	k := NewKeyPair()
	d := &dh{static: k.private}
	made, err := d.GenerateKeypair(nil)
	if err != nil || bytes.Equal(made.Private, none) {
		t.Fatal("there is no ephemeral key", err)
	}
	if _, err := d.DH(NewKeyPair().Private(), k.Public[:]); !errors.Is(err, errForeign) {
		t.Errorf("a key of another exchange: %v", err)
	}
	ephemeral := d.ephemeral
	d.erase()
	k.Erase()
	for name, p := range map[string]*private{"static": k.private, "ephemeral": ephemeral} {
		if !bytes.Equal(p.bytes[:], none) || !bytes.Equal(p.key.Bytes(), none) {
			t.Errorf("the %s key is not erased", name)
		}
	}
}
