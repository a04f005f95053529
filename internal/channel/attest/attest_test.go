package attest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

var now = time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)

func signer(t testing.TB, seed byte) *key.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A scene is a node that has signed a statement for a client, and what the client expects.
type scene struct {
	node           *key.Signer
	client, server channel.KeyPair
	statement      Statement
	expected       Expected
}

func newScene(t testing.TB) *scene {
	t.Helper()
	s := &scene{node: signer(t, 1), client: channel.NewKeyPair(), server: channel.NewKeyPair()}
	var nonce Nonce
	_, _ = rand.Read(nonce[:])
	d := func(text string) turnstone.Digest { return turnstone.DigestBytes([]byte(text)) }
	s.statement = Statement{Sandbox: "sb_06h03ngqkbsd5up1q4", ServerKey: s.server.Public,
		Clients: []channel.PublicKey{s.client.Public}, Owner: signer(t, 2).String(), Nonce: nonce,
		Template: d("template"), Agent: d("agent"), Substrate: d("substrate"),
		Time: now.Add(123 * time.Millisecond), Expires: now.Add(time.Hour)}
	trust := &key.Trust{}
	trust.Add(key.Entry{Key: s.node.Public, Role: key.Node})
	s.expected = Expected{Pins: trust, About: string(s.statement.Sandbox),
		Client: s.client.Public, Owner: s.statement.Owner, Nonce: nonce, Template: d("template"),
		Agent: d("agent")}
	return s
}

func (s *scene) sign(t testing.TB) *Signed {
	t.Helper()
	signed, err := Sign(t.Context(), &s.statement, s.node)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func want(t rapid.TB, err error, f channel.Fault) {
	t.Helper()
	if channel.FaultOf(err) != f || turnstone.KindOf(err) != turnstone.KindIntegrity ||
		turnstone.HintOf(err) == "" {
		t.Fatalf("the error is %q (%s, %s), not %s", err, channel.FaultOf(err),
			turnstone.KindOf(err), f)
	}
}

func TestSignAndCheck(t *testing.T) {
	s := newScene(t)
	signed := s.sign(t)
	again, err := Open(t.Context(), signed.Envelope)
	if err != nil || again.Digest != signed.Digest {
		t.Fatal(err)
	}
	if err := again.Check(s.expected, now); err != nil {
		t.Fatal(err)
	}
	if !again.Time.Equal(now) || again.ServerKey != s.server.Public || again.Signer == "" {
		t.Fatalf("%+v", again.Statement)
	}
	// The clocks of the two may differ by less than a minute.
	if err := again.Check(s.expected, now.Add(-59*time.Second)); err != nil {
		t.Fatal(err)
	}
	s.statement.Sandbox, s.statement.Node = "", "node-1.example.org"
	s.expected.About = "node:node-1.example.org"
	if err := s.sign(t).Check(s.expected, now); err != nil {
		t.Fatal(err)
	}
}

// TestManipulations does what a gateway can do to a statement that is not changed, or that the
// gateway asked for.
func TestManipulations(t *testing.T) {
	other := channel.NewKeyPair().Public
	for what, c := range map[string]struct {
		fault  channel.Fault
		change func(s *scene)
		after  time.Duration
	}{
		"signed by another key": {channel.FaultUntrusted,
			func(s *scene) { s.node = signer(t, 3) }, 0},
		"signed by a caller's key": {channel.FaultUntrusted, func(s *scene) {
			trust := &key.Trust{}
			trust.Add(key.Entry{Key: s.node.Public, Role: key.Caller})
			s.expected.Pins = trust
		}, 0},
		"signed by a key that is trusted no longer": {channel.FaultUntrusted, func(s *scene) {
			trust := &key.Trust{}
			trust.Add(key.Entry{Key: s.node.Public, Role: key.Node,
				Before: now.Add(time.Second)})
			s.expected.Pins = trust
		}, time.Second},
		"signed by a revoked key": {channel.FaultUntrusted, func(s *scene) {
			s.expected.Pins.(*key.Trust).Revoke(s.node.ID())
		}, 0},
		"another request's": {channel.FaultReplayed,
			func(s *scene) { s.statement.Nonce[3]++ }, 0},
		"expired":     {channel.FaultExpired, func(*scene) {}, time.Hour},
		"in a future": {channel.FaultExpired, func(*scene) {}, -2 * time.Minute},
		"of another sandbox": {channel.FaultSpliced,
			func(s *scene) { s.statement.Sandbox = "sb_other" }, 0},
		"of a node": {channel.FaultSpliced,
			func(s *scene) { s.statement.Sandbox, s.statement.Node = "", "n" }, 0},
		"for another client": {channel.FaultSpliced,
			func(s *scene) { s.statement.Clients = []channel.PublicKey{other} }, 0},
		"for a further client": {channel.FaultWidened,
			func(s *scene) { s.statement.Clients = append(s.statement.Clients, other) }, 0},
		"for a further client that was named": {"", func(s *scene) {
			s.statement.Clients = append(s.statement.Clients, other)
			s.expected.Others = []channel.PublicKey{other}
		}, 0},
		"with another owner": {channel.FaultWidened,
			func(s *scene) { s.statement.Owner = signer(t, 4).String() }, 0},
		"with an owner that nobody named": {channel.FaultWidened,
			func(s *scene) { s.expected.Owner = "" }, 0},
		"with another template": {channel.FaultSpliced,
			func(s *scene) { s.statement.Template = turnstone.DigestBytes(nil) }, 0},
		"with another agent": {channel.FaultSpliced,
			func(s *scene) { s.statement.Agent = "" }, 0},
		"with another substrate, which nobody required": {"",
			func(s *scene) { s.statement.Substrate = turnstone.DigestBytes(nil) }, 0},
	} {
		t.Run(what, func(t *testing.T) {
			s := newScene(t)
			c.change(s)
			err := s.sign(t).Check(s.expected, now.Add(c.after))
			if c.fault != "" {
				want(t, err, c.fault)
			} else if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// seal signs any predicate with a subject, as Sign does with a statement that it has checked.
func seal(t testing.TB, s Statement, about subject, by *key.Signer) []byte {
	t.Helper()
	envelope, _, err := proof.Seal(t.Context(), proof.PayloadType,
		encoded{"https://in-toto.io/Statement/v1", []subject{about}, PredicateType, s}, by)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// TestForged gives Open envelopes that the named node did not sign, or that mean nothing.
func TestForged(t *testing.T) {
	s := newScene(t)
	good := *s.sign(t).Statement
	if _, err := Open(t.Context(), seal(t, good, good.subjects()[0], s.node)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), seal(t, good, good.subjects()[0], signer(t, 3)))
	want(t, err, channel.FaultForged)
	for what, change := range map[string]func(s *Statement){
		"nothing":        func(s *Statement) { s.Sandbox = "" },
		"both":           func(s *Statement) { s.Node = "n" },
		"odd name":       func(s *Statement) { s.Sandbox = "sb_\x1b[2J" },
		"long name":      func(s *Statement) { s.Sandbox, s.Node = "", strings.Repeat("a", 254) },
		"nobody":         func(s *Statement) { s.Clients = nil },
		"many":           func(s *Statement) { s.Clients = make([]channel.PublicKey, 17) },
		"weak client":    func(s *Statement) { s.Clients = []channel.PublicKey{{1}} },
		"weak server":    func(s *Statement) { s.ServerKey = channel.PublicKey{} },
		"client twice":   func(s *Statement) { s.Clients = append(s.Clients, s.Clients[0]) },
		"no nonce":       func(s *Statement) { s.Nonce = Nonce{} },
		"no time":        func(s *Statement) { s.Time = time.Time{} },
		"ends before":    func(s *Statement) { s.Expires = s.Time },
		"endless":        func(s *Statement) { s.Expires = s.Time.Add(MaxValidity + time.Second) },
		"nanoseconds":    func(s *Statement) { s.Time = s.Time.Add(1) },
		"another zone":   func(s *Statement) { s.Expires = s.Expires.In(time.FixedZone("", 3600)) },
		"no digest":      func(s *Statement) { s.Agent = "sha256:1" },
		"no owner":       func(s *Statement) { s.Owner = "ssh-ed25519 x" },
		"no signer":      func(s *Statement) { s.Signer = "" },
		"another signer": func(s *Statement) { s.Signer = signer(t, 3).String() },
	} {
		bad := good
		change(&bad)
		_, err := Open(t.Context(), seal(t, bad, bad.subjects()[0], s.node))
		if channel.FaultOf(err) != channel.FaultForged {
			t.Errorf("%s: %v", what, err)
		}
		if strings.HasSuffix(what, "signer") || what == "nanoseconds" || what == "another zone" {
			continue // Sign sets these
		}
		if _, err := Sign(t.Context(), &bad, s.node); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%s can be signed: %v", what, err)
		}
	}
	for what, about := range map[string]subject{
		"another name": {"sb_other", good.subjects()[0].Digest},
		"another key":  {string(good.Sandbox), map[string]string{"sha256": strings.Repeat("0", 64)}},
		"more digests": {string(good.Sandbox), map[string]string{
			"sha256": good.subjects()[0].Digest["sha256"], "sha512": "00"}},
	} {
		_, err := Open(t.Context(), seal(t, good, about, s.node))
		if channel.FaultOf(err) != channel.FaultForged {
			t.Errorf("%s: %v", what, err)
		}
	}
	bad := json.RawMessage(`{"_type":"https://in-toto.io/Statement/v1"}`)
	envelope, _, err := proof.Seal(t.Context(), proof.PayloadType, bad, s.node)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), envelope)
	want(t, err, channel.FaultForged)
	_, err = Open(t.Context(), make([]byte, 1<<20))
	want(t, err, channel.FaultForged)
}

// TestNoByteCanChange checks that an envelope has one spelling.
func TestNoByteCanChange(t *testing.T) {
	envelope := newScene(t).sign(t).Envelope
	rapid.Check(t, func(rt *rapid.T) {
		bad := bytes.Clone(envelope)
		i := rapid.IntRange(0, len(bad)-1).Draw(rt, "at")
		bad[i] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		_, err := Open(context.Background(), bad)
		want(rt, err, channel.FaultForged)
		j := rapid.IntRange(0, len(envelope)).Draw(rt, "where")
		more := rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(rt, "more")
		_, err = Open(context.Background(),
			append(append(bytes.Clone(envelope[:j]), more...), envelope[j:]...))
		want(rt, err, channel.FaultForged)
	})
}

// TestChannel is the whole way: a node signs, a client checks, and the channel is bound to the
// statement, whose digest a relay cannot exchange.
func TestChannel(t *testing.T) {
	s := newScene(t)
	signed := s.sign(t)
	if err := signed.Check(s.expected, now); err != nil {
		t.Fatal(err)
	}
	known := &channel.Statements{}
	if err := known.Add(signed.Digest, signed.Clients, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	served := make(chan error, 1)
	go func() {
		c, err := channel.Server(t.Context(), b, channel.ServerConfig{Key: s.server, Registry: known})
		if err == nil {
			// All is read before the answer, because the pipe holds nothing.
			var all []byte
			all, err = io.ReadAll(c)
			_, werr := c.Write(all)
			err = errors.Join(err, werr, c.Close())
		}
		served <- err
	}()
	c, err := channel.Client(t.Context(), a, channel.ClientConfig{Key: s.client,
		Server: signed.ServerKey, Statement: signed.Digest})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := errors.Join(<-served, c.Close()); err != nil {
		t.Fatal(err)
	}
}

// FuzzOpen checks that what Open accepts is signed, and has one spelling.
func FuzzOpen(f *testing.F) {
	s := newScene(f)
	signed := s.sign(f)
	f.Add(signed.Envelope)
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Open(t.Context(), b)
		switch {
		case err != nil && channel.FaultOf(err) != channel.FaultForged:
			t.Fatal(err)
		case err == nil && !bytes.Equal(got.Envelope, b):
			t.Fatal("the envelope is another one")
		case err == nil && got.check() != nil:
			t.Fatal("the statement means nothing")
		}
	})
}

// FuzzStatement signs payloads with a good key: what is decoded can be encoded again.
func FuzzStatement(f *testing.F) {
	s := newScene(f)
	good, err := json.Marshal(s.sign(f).Statement)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		var one Statement
		if json.Unmarshal(b, &one) != nil {
			return
		}
		signed, err := Sign(t.Context(), &one, s.node)
		if err != nil {
			if k := turnstone.KindOf(err); k != turnstone.KindInvalid {
				t.Fatal(k, err)
			}
			return
		}
		if signed.About() != one.About() {
			t.Fatalf("%q became %q", one.About(), signed.About())
		}
	})
}

func testGrant() *Grant {
	return &Grant{Session: "s_06h03ngqkbsd5up1q4", Client: channel.NewKeyPair().Public,
		Scopes: []Scope{ScopeRead, ScopeWrite}, Number: 1, Time: now, Expires: now.Add(time.Hour)}
}

// TestGrant signs grants and opens them: each changed byte is noticed, and none can be signed that
// means nothing.
func TestGrant(t *testing.T) {
	owner := signer(t, 7)
	envelope, err := SignGrant(t.Context(), testGrant(), owner)
	if err != nil {
		t.Fatal(err)
	}
	g, err := OpenGrant(t.Context(), envelope)
	if err != nil || g.Signer != owner.String() || g.Number != 1 || len(g.Scopes) != 2 {
		t.Fatalf("%+v %v", g, err)
	}
	for i := range envelope {
		bad := bytes.Clone(envelope)
		bad[i] ^= 1
		_, err := OpenGrant(t.Context(), bad)
		want(t, err, channel.FaultForged)
	}
	for what, change := range map[string]func(g *Grant){
		"nothing":    func(g *Grant) { g.Session = "" },
		"both":       func(g *Grant) { g.Sandbox = "sb_x" },
		"odd name":   func(g *Grant) { g.Session = "s_\n" },
		"no number":  func(g *Grant) { g.Number = 0 },
		"weak key":   func(g *Grant) { g.Client = channel.PublicKey{} },
		"odd scope":  func(g *Grant) { g.Scopes = []Scope{"own"} },
		"same scope": func(g *Grant) { g.Scopes = []Scope{ScopeRead, ScopeRead} },
		"endless":    func(g *Grant) { g.Expires = now.Add(MaxGrantValidity + time.Second) },
		"no time":    func(g *Grant) { g.Time = time.Time{} },
	} {
		g := testGrant()
		change(g)
		if _, err := SignGrant(t.Context(), g, owner); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%s can be signed: %v", what, err)
		}
	}
	// an attestation is no grant, and a grant is no attestation
	s := newScene(t)
	_, err = OpenGrant(t.Context(), s.sign(t).Envelope)
	want(t, err, channel.FaultForged)
	_, err = Open(t.Context(), envelope)
	want(t, err, channel.FaultForged)
	// the key that it names has to be the one that signed
	g.Signer = signer(t, 8).String()
	forged, _, err := proof.Seal(t.Context(), proof.PayloadType, encodedGrant{
		"https://in-toto.io/Statement/v1", g.subjects(), GrantPredicateType, *g}, owner)
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenGrant(t.Context(), forged)
	want(t, err, channel.FaultForged)
}

func FuzzGrant(f *testing.F) {
	envelope, err := SignGrant(f.Context(), testGrant(), signer(f, 7))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(envelope)
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := OpenGrant(t.Context(), b)
		if err != nil && channel.FaultOf(err) != channel.FaultForged {
			t.Fatal(err)
		}
		if err == nil && g.check() != nil {
			t.Fatal("the grant means nothing")
		}
	})
}
