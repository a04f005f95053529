package attest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// certificate returns a certificate of the node with the key 1 by the root with the key by.
func certificate(t testing.TB, by byte, epoch uint64, change ...func(*Certificate)) []byte {
	t.Helper()
	c := Certificate{Node: "n1", Key: signer(t, 1).String(), Epoch: epoch, Time: now,
		Expires: now.Add(time.Hour)}
	for _, f := range change {
		f(&c)
	}
	b, err := SignCertificate(t.Context(), c, signer(t, by))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func succession(t testing.TB, from, to byte, epoch uint64) []byte {
	t.Helper()
	b, err := SignSuccession(t.Context(), Succession{Next: signer(t, to).String(), Epoch: epoch,
		Time: now}, signer(t, from))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func chain(t testing.TB, certificate []byte, successions ...[]byte) *Chain {
	t.Helper()
	c, err := OpenChain(t.Context(), JoinChain(certificate, successions))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func root(t testing.TB, seed byte, epoch uint64) Root {
	t.Helper()
	return Root{Key: signer(t, seed).String(), Epoch: epoch}
}

// TestChainCheck: a certificate is believed by clients that pin its root or one before it, in its
// time, unless they have seen a later epoch; each refusal has its name and a hint.
func TestChainCheck(t *testing.T) {
	second := time.Second
	for name, tc := range map[string]struct {
		chain *Chain
		pin   Root
		at    time.Time
		fault channel.Fault
		known Root
	}{
		"the pinned root": {chain(t, certificate(t, 10, 3)), root(t, 10, 0), now, "", root(t, 10, 3)},
		"same epoch":      {chain(t, certificate(t, 10, 3)), root(t, 10, 3), now, "", root(t, 10, 3)},
		"old epoch": {chain(t, certificate(t, 10, 3)), root(t, 10, 4), now, FaultOldEpoch,
			root(t, 10, 4)},
		"another root": {chain(t, certificate(t, 11, 3)), root(t, 10, 0), now, FaultOtherRoot,
			root(t, 10, 0)},
		"early, within the skew": {chain(t, certificate(t, 10, 3)), root(t, 10, 0),
			now.Add(-skew), "", root(t, 10, 3)},
		"early": {chain(t, certificate(t, 10, 3)), root(t, 10, 0), now.Add(-skew - second),
			FaultCertEarly, root(t, 10, 0)},
		"last second": {chain(t, certificate(t, 10, 3)), root(t, 10, 0),
			now.Add(time.Hour - second), "", root(t, 10, 3)},
		"expired": {chain(t, certificate(t, 10, 3)), root(t, 10, 0), now.Add(time.Hour),
			FaultCertExpired, root(t, 10, 0)},
		"rotated": {chain(t, certificate(t, 11, 4), succession(t, 10, 11, 4)), root(t, 10, 3), now,
			"", root(t, 11, 4)},
		"rotated, followed before": {chain(t, certificate(t, 11, 4), succession(t, 10, 11, 4)),
			root(t, 11, 4), now, "", root(t, 11, 4)},
		"rotated twice": {chain(t, certificate(t, 12, 7), succession(t, 10, 11, 4),
			succession(t, 11, 12, 5)), root(t, 10, 3), now, "", root(t, 12, 7)},
		"rotated twice, from the middle": {chain(t, certificate(t, 12, 7), succession(t, 10, 11, 4),
			succession(t, 11, 12, 5)), root(t, 11, 4), now, "", root(t, 12, 7)},
		"the old root, after the rotation": {chain(t, certificate(t, 10, 3)), root(t, 11, 4), now,
			FaultOtherRoot, root(t, 11, 4)},
		"a successor that was withdrawn": {chain(t, certificate(t, 11, 9), succession(t, 10, 11, 4)),
			root(t, 10, 4), now, FaultOldEpoch, root(t, 10, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			known, err := tc.chain.Check(tc.pin, tc.at)
			if known != tc.known {
				t.Errorf("the client knows %v, not %v", known, tc.known)
			}
			if tc.fault == "" && err != nil {
				t.Error(err)
			} else if tc.fault != "" {
				want(t, err, tc.fault)
			}
		})
	}
}

// TestCheckNode: a certificate is about one key, and about one name if it has one.
func TestCheckNode(t *testing.T) {
	c := chain(t, certificate(t, 10, 1))
	any := chain(t, certificate(t, 10, 1, func(c *Certificate) { c.Node = "" }))
	for _, err := range []error{c.CheckNode("n1", signer(t, 1).Public),
		c.CheckNode("", signer(t, 1).Public), any.CheckNode("n2", signer(t, 1).Public)} {
		if err != nil {
			t.Error(err)
		}
	}
	want(t, c.CheckNode("n2", signer(t, 1).Public), FaultOtherNode)
	want(t, c.CheckNode("n1", signer(t, 2).Public), FaultOtherNode)
	want(t, any.CheckNode("n1", signer(t, 2).Public), FaultOtherNode)
	want(t, Uncertified(signer(t, 10).String()), FaultUncertified)
	want(t, Revoked(signer(t, 10).Public), FaultRootRevoked)
}

// TestSignCertificate: nobody can sign a certificate or a succession that means nothing.
func TestSignCertificate(t *testing.T) {
	for name, f := range map[string]func(*Certificate){
		"its own key":  func(c *Certificate) { c.Key = signer(t, 10).String() },
		"no key":       func(c *Certificate) { c.Key = "" },
		"no epoch":     func(c *Certificate) { c.Epoch = 0 },
		"huge epoch":   func(c *Certificate) { c.Epoch = MaxEpoch + 1 },
		"no time":      func(c *Certificate) { c.Time, c.Expires = time.Time{}, time.Time{} },
		"backwards":    func(c *Certificate) { c.Expires = c.Time },
		"for ever":     func(c *Certificate) { c.Expires = c.Time.Add(MaxCertificateValidity + time.Second) },
		"another name": func(c *Certificate) { c.Node = "a b" },
		"a long name":  func(c *Certificate) { c.Node = strings.Repeat("a", maxName+1) },
	} {
		c := Certificate{Node: "n1", Key: signer(t, 1).String(), Epoch: 1, Time: now,
			Expires: now.Add(time.Hour)}
		f(&c)
		if _, err := SignCertificate(t.Context(), c, signer(t, 10)); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, s := range map[string]Succession{
		"itself":   {Next: signer(t, 10).String(), Epoch: 1, Time: now},
		"no key":   {Epoch: 1, Time: now},
		"no epoch": {Next: signer(t, 11).String(), Time: now},
		"no time":  {Next: signer(t, 11).String(), Epoch: 1},
	} {
		if _, err := SignSuccession(t.Context(), s, signer(t, 10)); turnstone.KindOf(err) !=
			turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenChainHostile: a chain is what the roots signed, in one spelling and order.
func TestOpenChainHostile(t *testing.T) {
	good := certificate(t, 12, 7)
	one, two := succession(t, 10, 11, 4), succession(t, 11, 12, 5)
	join := func(lines ...[]byte) []byte { return append(bytes.Join(lines, []byte("\n")), '\n') }
	statement := newScene(t).sign(t).Envelope
	var long [][]byte
	for i := range byte(MaxSuccessions + 1) {
		long = append(long, succession(t, 20+i, 21+i, uint64(i+1)))
	}
	for name, text := range map[string][]byte{
		"nothing":                     {},
		"no end":                      good,
		"two ends":                    append(join(good), '\n'),
		"white space":                 join(append(bytes.Clone(good), ' ')),
		"a carriage return":           append(bytes.Clone(good), "\r\n"...),
		"too large":                   bytes.Repeat([]byte("x"), MaxChain+1),
		"no certificate":              join(one, two),
		"another order":               join(good, two, one),
		"a gap":                       join(good, one),
		"more than leads to its root": join(good, one, two, succession(t, 12, 13, 8)),
		"epochs that go back":         join(good, succession(t, 10, 11, 5), two),
		"a later epoch than its own":  join(good, succession(t, 11, 12, 8)),
		"a circle":                    join(certificate(t, 10, 9), one, succession(t, 11, 10, 6)),
		"a succession twice":          join(good, one, one, two),
		"two certificates":            join(good, good),
		"too many":                    join(append([][]byte{certificate(t, 29, 20)}, long...)...),
		"a node's statement":          join(statement),
		"a statement as succession":   join(good, statement),
	} {
		if _, err := OpenChain(t.Context(), text); channel.FaultOf(err) != channel.FaultForged ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	text := join(good, one, two)
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 1
		if _, err := OpenChain(t.Context(), changed); channel.FaultOf(err) != channel.FaultForged {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	if _, err := Open(t.Context(), good); channel.FaultOf(err) != channel.FaultForged {
		t.Errorf("a certificate as a statement: %v", err)
	}
	if _, err := OpenGrant(t.Context(), good); channel.FaultOf(err) != channel.FaultForged {
		t.Errorf("a certificate as a grant: %v", err)
	}
}

// TestForeignSigner: what names a root and is signed by another key is forged.
func TestForeignSigner(t *testing.T) {
	c := Certificate{Node: "n1", Key: signer(t, 1).String(), Epoch: 1, Time: now,
		Expires: now.Add(time.Hour), Signer: signer(t, 10).String()}
	forged, err := signPredicate(t.Context(), "the certificate", CertificatePredicateType, c,
		signer(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenChain(t.Context(), JoinChain(forged, nil))
	want(t, err, channel.FaultForged)
	s := Succession{Next: signer(t, 11).String(), Epoch: 1, Time: now, Signer: signer(t, 10).String()}
	forged, err = signPredicate(t.Context(), "the succession", SuccessionPredicateType, s,
		signer(t, 11))
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenChain(t.Context(), JoinChain(certificate(t, 11, 1), [][]byte{forged}))
	want(t, err, channel.FaultForged)
}

// named pins a root, as hosts do.
type named struct{ err error }

func (n named) Vouch(key.Public, key.Role, time.Time) (key.Entry, error) { return key.Entry{}, n.err }

// TestCheckKeepsNames: the reason that a certificate is refused for is the statement's.
func TestCheckKeepsNames(t *testing.T) {
	s := newScene(t)
	s.expected.Pins = named{Uncertified(signer(t, 10).String())}
	want(t, s.sign(t).Check(s.expected, now), FaultUncertified)
	s.expected.Pins = named{errors.New("no")}
	want(t, s.sign(t).Check(s.expected, now), channel.FaultUntrusted)
}

// FuzzChain checks that what OpenChain accepts is signed, has one spelling, and leads to one root.
func FuzzChain(f *testing.F) {
	good := JoinChain(certificate(f, 12, 7), [][]byte{succession(f, 10, 11, 4),
		succession(f, 11, 12, 5)})
	f.Add(good)
	f.Add(JoinChain(certificate(f, 10, 1), nil))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := OpenChain(context.Background(), b)
		if err != nil {
			if channel.FaultOf(err) != channel.FaultForged {
				t.Fatal(err)
			}
			return
		}
		if c.Certificate.check() != nil || len(c.Roots()) != len(c.Successions)+1 ||
			bytes.Count(b, []byte("\n")) != len(c.Roots()) {
			t.Fatal("the chain means nothing")
		}
	})
}

// resealed returns an envelope with any payload, which by has signed.
func resealed(t testing.TB, payload []byte, by *key.Signer) ([]byte, error) {
	t.Helper()
	s, err := dsse.NewEnvelopeSigner(by)
	if err != nil {
		return nil, err
	}
	e, err := s.SignPayload(t.Context(), proof.PayloadType, payload)
	if err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

// FuzzCertificate opens payloads that a root has signed: what is decoded means something, and has
// one spelling.
func FuzzCertificate(f *testing.F) {
	for _, envelope := range [][]byte{certificate(f, 10, 3), succession(f, 10, 11, 4)} {
		sealed, err := proof.Unseal(envelope, proof.PayloadType)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(sealed.Payload)
	}
	by := signer(f, 10)
	f.Fuzz(func(t *testing.T, payload []byte) {
		envelope, err := resealed(t, payload, by)
		if err != nil {
			return
		}
		c, err := OpenChain(t.Context(), JoinChain(envelope, nil))
		if err != nil {
			if channel.FaultOf(err) != channel.FaultForged {
				t.Fatal(err)
			}
			return
		}
		again, err := SignCertificate(t.Context(), c.Certificate, by)
		if err != nil || !bytes.Equal(again, envelope) {
			t.Fatalf("it has another spelling: %v", err)
		}
	})
}
