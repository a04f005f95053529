package hosts

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

var update = flag.Bool("update", false, "write the golden file")

// attestationFile is what the tests of the SDKs in all languages read.
const attestationFile = "../../../sdk/testdata/attestation.json"

// sdkNow is the time of the clients of most cases.
var sdkNow = time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)

// A sdkCase is a statement that a client gets for a channel, and whether the client believes it.
type sdkCase struct {
	Name        string      `json:"name"`
	Statement   string      `json:"statement"`   // the envelope, untrusted
	Certificate string      `json:"certificate"` // what the node shows, untrusted; may be empty
	Expected    sdkExpected `json:"expected"`
	Pins        sdkPins     `json:"pins"`
	Now         time.Time   `json:"now"`
	// Fault is why the client refuses the statement; empty: it believes it, and knows Accepted then.
	Fault    channel.Fault `json:"fault"`
	Accepted *sdkAccepted  `json:"accepted,omitempty"`
}

// A sdkExpected is what the client asked for.
type sdkExpected struct {
	About  string            `json:"about"` // "node:" and a name, or a sandbox's ID
	Node   string            `json:"node"`  // whose pins count; empty: those of all nodes
	Client channel.PublicKey `json:"client"`
	Nonce  attest.Nonce      `json:"nonce"`
	Owner  string            `json:"owner"` // "TYPE BASE64"; empty: nobody
}

// A sdkPins is whom the client trusts: keys of nodes, or a root.
type sdkPins struct {
	Nodes   map[string][]string `json:"nodes,omitempty"`
	Root    *sdkRoot            `json:"root,omitempty"`
	Revoked []string            `json:"revoked,omitempty"` // fingerprints
}

type sdkRoot struct {
	Key    string   `json:"key"`
	Epoch  uint64   `json:"epoch"`
	Former []string `json:"former,omitempty"`
}

// A sdkAccepted is what a client knows of a statement that it believes.
type sdkAccepted struct {
	ServerKey channel.PublicKey `json:"server_key"`
	Digest    turnstone.Digest  `json:"digest"` // in the prologue of the handshake
	Node      string            `json:"node,omitempty"`
	Tenant    string            `json:"tenant,omitempty"`
	Root      *sdkRoot          `json:"root,omitempty"` // as the client knows it then
}

func sdkSigner(t testing.TB, seed byte) *key.Signer {
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

func sdkKey(t testing.TB, seed byte) channel.PublicKey {
	t.Helper()
	k, err := channel.LoadKeyPair(bytes.Repeat([]byte{seed}, channel.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k.Public
}

// The keys of the cases, by their seeds.
const (
	sdkNodeOne, sdkNodeTwo            = 1, 2
	sdkRootOne, sdkRootTwo, sdkRootNo = 10, 11, 12
	sdkClient, sdkServer, sdkOther    = 20, 21, 22
	sdkOwner                          = 3
)

// sdkStatement returns the statement about the node n1 that its client asked for.
func sdkStatement(t testing.TB) attest.Statement {
	s := attest.Statement{Node: "n1", ServerKey: sdkKey(t, sdkServer),
		Clients: []channel.PublicKey{sdkKey(t, sdkClient)}, Tenant: "acme",
		Template: turnstone.DigestBytes([]byte("template")),
		Time:     sdkNow, Expires: sdkNow.Add(time.Hour)}
	copy(s.Nonce[:], bytes.Repeat([]byte{7}, len(s.Nonce)))
	return s
}

// sdkBase returns a case that a client accepts by its pin of n1.
func sdkBase(t testing.TB, name string, s attest.Statement) *sdkCase {
	t.Helper()
	signed, err := attest.Sign(t.Context(), &s, sdkSigner(t, sdkNodeOne))
	if err != nil {
		t.Fatal(name, err)
	}
	return &sdkCase{Name: name, Statement: string(signed.Envelope),
		Expected: sdkExpected{About: "node:n1", Node: "n1", Client: sdkKey(t, sdkClient),
			Nonce: sdkStatement(t).Nonce},
		Pins: sdkPins{Nodes: map[string][]string{"n1": {sdkSigner(t, sdkNodeOne).String()}}},
		Now:  sdkNow}
}

// rooted makes the case one of a client that pins the first root, and of a node with a certificate.
func (c *sdkCase) rooted(t testing.TB, certificate []byte) {
	c.Pins = sdkPins{Root: &sdkRoot{Key: sdkSigner(t, sdkRootOne).String()}}
	c.Certificate = string(certificate)
}

// sdkCertificate returns a certificate of n1 by a root.
func sdkCertificate(t testing.TB, root byte, epoch uint64, change ...func(*attest.Certificate)) []byte {
	t.Helper()
	c := attest.Certificate{Node: "n1", Key: sdkSigner(t, sdkNodeOne).String(), Epoch: epoch,
		Time: sdkNow.Add(-time.Hour), Expires: sdkNow.Add(time.Hour)}
	for _, f := range change {
		f(&c)
	}
	b, err := attest.SignCertificate(t.Context(), c, sdkSigner(t, root))
	if err != nil {
		t.Fatal(err)
	}
	return attest.JoinChain(b, nil)
}

// sdkFollowed adds the succession of the first root by the second one to a certificate.
func sdkFollowed(t testing.TB, certificate []byte, epoch uint64) []byte {
	t.Helper()
	s, err := attest.SignSuccession(t.Context(), attest.Succession{
		Next: sdkSigner(t, sdkRootTwo).String(), Epoch: epoch, Time: sdkNow}, sdkSigner(t, sdkRootOne))
	if err != nil {
		t.Fatal(err)
	}
	return attest.JoinChain(bytes.TrimSuffix(certificate, []byte("\n")), [][]byte{s})
}

// check decides as a client does.
func (c *sdkCase) check(ctx context.Context) (*sdkAccepted, error) {
	trust := &key.Trust{}
	h := &Host{Nodes: c.Pins.Nodes}
	if err := h.Pin(trust, c.Expected.Node); err != nil {
		return nil, err
	}
	for _, id := range c.Pins.Revoked {
		trust.Revoke(id)
	}
	var pins attest.Pins = trust
	if r := c.Pins.Root; r != nil {
		h.Root = &Root{Key: r.Key, Epoch: r.Epoch, Former: r.Former}
		one := &rooted{trust: trust, node: c.Expected.Node}
		if one.why = attest.Uncertified(r.Key); c.Certificate != "" {
			one.chain, one.why = attest.OpenChain(ctx, []byte(c.Certificate))
		}
		if one.why == nil {
			one.learn(&List{Hosts: map[string]*Host{"h": h}}, h, c.Now)
		}
		pins = one
	}
	s, err := attest.Open(ctx, []byte(c.Statement))
	if err != nil {
		return nil, err
	}
	err = s.Check(attest.Expected{Pins: pins, About: c.Expected.About, Client: c.Expected.Client,
		Owner: c.Expected.Owner, Nonce: c.Expected.Nonce}, c.Now)
	if err != nil {
		return nil, err
	}
	a := &sdkAccepted{ServerKey: s.ServerKey, Digest: s.Digest, Node: s.Node, Tenant: s.Tenant}
	if h.Root != nil {
		a.Root = &sdkRoot{h.Root.Key, h.Root.Epoch, h.Root.Former}
	}
	return a, nil
}

// TestSDKAttestations compares what a client believes with the list that the SDKs test against.
// -update writes the list again.
func TestSDKAttestations(t *testing.T) {
	all := append(sdkStatements(t), sdkForged(t)...)
	all = append(all, sdkCertificates(t)...)
	faults, names := map[channel.Fault]bool{}, map[string]bool{}
	for _, c := range all {
		accepted, err := c.check(t.Context())
		if got := channel.FaultOf(err); got != c.Fault || (err == nil) != (c.Fault == "") {
			t.Errorf("%s: %v", c.Name, err)
		}
		if names[c.Name] {
			t.Errorf("there are two cases %q", c.Name)
		}
		c.Accepted, faults[c.Fault], names[c.Name] = accepted, true, true
	}
	for _, f := range []channel.Fault{"", channel.FaultForged, channel.FaultUntrusted,
		channel.FaultReplayed, channel.FaultExpired, channel.FaultSpliced, channel.FaultWidened,
		attest.FaultUncertified, attest.FaultOtherRoot, attest.FaultCertExpired, attest.FaultCertEarly,
		attest.FaultOldEpoch, attest.FaultOtherNode, attest.FaultRootRevoked} {
		if !faults[f] {
			t.Errorf("no case has the fault %q", f)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(map[string]any{"cases": all}); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(attestationFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(attestationFile); err != nil || !bytes.Equal(b.Bytes(), want) {
		t.Errorf("the cases are not those of %s: %v", attestationFile, err)
	}
}

// sdkStatements are honest statements, and what a gateway can do with statements of nodes.
func sdkStatements(t testing.TB) (all []*sdkCase) {
	for _, one := range []struct {
		name   string
		fault  channel.Fault
		sign   func(*attest.Statement)
		change func(*sdkCase)
	}{
		{"a node that is pinned", "", nil, nil},
		{"a node without a tenant", "", func(s *attest.Statement) { s.Tenant = "" }, nil},
		{"one of two keys of a node", "", nil, func(c *sdkCase) {
			c.Pins.Nodes["n1"] = append([]string{sdkSigner(t, sdkNodeTwo).String()}, c.Pins.Nodes["n1"]...)
		}},
		{"a sandbox of any node", "", func(s *attest.Statement) { s.Sandbox, s.Node = "sb_1", "" },
			func(c *sdkCase) { c.Expected.About, c.Expected.Node = "sb_1", "" }},
		{"an owner that the client named", "",
			func(s *attest.Statement) { s.Owner = sdkSigner(t, sdkOwner).String() },
			func(c *sdkCase) { c.Expected.Owner = sdkSigner(t, sdkOwner).String() }},
		{"a clock that is 60 seconds behind", "", nil,
			func(c *sdkCase) { c.Now = sdkNow.Add(-time.Minute) }},
		{"the last second", "", nil, func(c *sdkCase) { c.Now = sdkNow.Add(time.Hour - time.Second) }},
		{"a statement from the future", channel.FaultExpired, nil,
			func(c *sdkCase) { c.Now = sdkNow.Add(-61 * time.Second) }},
		{"expired", channel.FaultExpired, nil, func(c *sdkCase) { c.Now = sdkNow.Add(time.Hour) }},
		{"no pin", channel.FaultUntrusted, nil, func(c *sdkCase) { c.Pins.Nodes = nil }},
		{"a pin of another key", channel.FaultUntrusted, nil, func(c *sdkCase) {
			c.Pins.Nodes["n1"] = []string{sdkSigner(t, sdkNodeTwo).String()}
		}},
		{"the pin of another node", channel.FaultUntrusted, nil, func(c *sdkCase) {
			c.Pins.Nodes = map[string][]string{"n2": c.Pins.Nodes["n1"]}
		}},
		{"a revoked key", channel.FaultUntrusted, nil, func(c *sdkCase) {
			c.Pins.Revoked = []string{sdkSigner(t, sdkNodeOne).ID()}
		}},
		{"the answer to another request", channel.FaultReplayed, nil,
			func(c *sdkCase) { c.Expected.Nonce[31]++ }},
		{"of another node", channel.FaultSpliced, func(s *attest.Statement) { s.Node = "n2" }, nil},
		{"of another sandbox", channel.FaultSpliced,
			func(s *attest.Statement) { s.Sandbox, s.Node = "sb_2", "" },
			func(c *sdkCase) { c.Expected.About, c.Expected.Node = "sb_1", "" }},
		{"of a node, where a sandbox was asked for", channel.FaultSpliced, nil,
			func(c *sdkCase) { c.Expected.About, c.Expected.Node = "sb_1", "" }},
		{"for another client", channel.FaultSpliced, func(s *attest.Statement) {
			s.Clients = []channel.PublicKey{sdkKey(t, sdkOther)}
		}, nil},
		{"for a further client", channel.FaultWidened, func(s *attest.Statement) {
			s.Clients = append(s.Clients, sdkKey(t, sdkOther))
		}, nil},
		{"an owner that nobody named", channel.FaultWidened,
			func(s *attest.Statement) { s.Owner = sdkSigner(t, sdkOwner).String() }, nil},
		{"another owner", channel.FaultWidened,
			func(s *attest.Statement) { s.Owner = sdkSigner(t, sdkNodeTwo).String() },
			func(c *sdkCase) { c.Expected.Owner = sdkSigner(t, sdkOwner).String() }},
		{"no owner, where one was named", channel.FaultWidened, nil,
			func(c *sdkCase) { c.Expected.Owner = sdkSigner(t, sdkOwner).String() }},
	} {
		s := sdkStatement(t)
		if one.sign != nil {
			one.sign(&s)
		}
		c := sdkBase(t, one.name, s)
		if c.Fault = one.fault; one.change != nil {
			one.change(c)
		}
		all = append(all, c)
	}
	return all
}

// sdkForged are envelopes that the named node did not sign, or that mean nothing.
func sdkForged(t testing.TB) (all []*sdkCase) {
	good := sdkBase(t, "", sdkStatement(t))
	sealed, err := proof.Unseal([]byte(good.Statement), proof.PayloadType)
	if err != nil {
		t.Fatal(err)
	}
	payload := string(sealed.Payload)
	replace := func(old, by string) string {
		if strings.Count(payload, old) != 1 {
			t.Fatalf("%q is not once in %s", old, payload)
		}
		return strings.Replace(payload, old, by, 1)
	}
	client, weak := sdkKey(t, sdkClient).String(), channel.PublicKey{1}.String()
	add := func(name, envelope string) {
		c := *good
		c.Name, c.Statement, c.Fault = name, envelope, channel.FaultForged
		all = append(all, &c)
	}
	changed := sdkSeal(t, replace(`"tenant":"acme"`, `"tenant":"acme2"`), sdkNodeOne)
	before, _, _ := strings.Cut(changed, `"signatures"`)
	_, after, _ := strings.Cut(good.Statement, `"signatures"`)
	add("changed after it was signed", before+`"signatures"`+after)
	add("the signature of another key", sdkSeal(t, payload, sdkNodeTwo))
	add("white space in the envelope", " "+good.Statement)
	add("an empty envelope", "")
	add("no JSON", "{")
	add("a further key in the envelope", strings.Replace(good.Statement, "{", `{"x":1,`, 1))
	add("no signature", good.Statement[:strings.Index(good.Statement, `"signatures":[`)]+`"signatures":[]}`)
	add("base64 in another spelling", strings.Replace(good.Statement, `=="}]}`, `"}]}`, 1))
	for _, one := range []struct{ name, payload string }{
		{"another type of predicate", replace("/attestations/channel/v1", "/attestations/grant/v1")},
		{"a further field", replace(`"tenant":`, `"admin":true,"tenant":`)},
		{"a field that is there twice", replace(`"tenant":`, `"tenant":"other","tenant":`)},
		{"fields in another order", replace(`"node":"n1",`, ``)[:strings.LastIndex(
			replace(`"node":"n1",`, ``), "}}")] + `,"node":"n1"}}`},
		{"a subject of another name", replace(`[{"name":"node:n1"`, `[{"name":"node:n2"`)},
		{"about nothing", replace(`"node":"n1",`, ``)},
		{"about a node and a sandbox", replace(`"node":"n1"`, `"sandbox":"sb_1","node":"n1"`)},
		{"an odd name", strings.ReplaceAll(payload, "n1", "n 1")},
		{"no client", replace(`["`+client+`"]`, `[]`)},
		{"a client that is there twice", replace(`["`+client+`"]`, `["`+client+`","`+client+`"]`)},
		{"a weak client", replace(client, weak)},
		{"a weak server", strings.Replace(strings.Replace(payload, sdkKey(t, sdkServer).String(), weak, 1),
			sdkSum(sdkKey(t, sdkServer)), sdkSum(channel.PublicKey{1}), 1)},
		{"no nonce", replace(sdkStatement(t).Nonce.String(), attest.Nonce{}.String())},
		{"a short nonce", replace(sdkStatement(t).Nonce.String(), "AAAA")},
		{"valid for too long", replace("2026-11-23T02:02:03Z", "2026-11-24T01:02:04Z")},
		{"ends before it begins", replace("2026-11-23T02:02:03Z", "2026-11-23T01:02:03Z")},
		{"a time with a fraction", replace("2026-11-23T02:02:03Z", "2026-11-23T02:02:03.5Z")},
		{"a time of another zone", replace("2026-11-23T02:02:03Z", "2026-11-23T03:02:03+01:00")},
		{"a digest that is none", replace(string(sdkStatement(t).Template), "sha256:00")},
		{"a signer that is none", replace(sdkSigner(t, sdkNodeOne).String(), "ssh-ed25519 AAAA")},
		{"an empty tenant", replace(`"tenant":"acme"`, `"tenant":""`)},
	} {
		add(one.name, sdkSeal(t, one.payload, sdkNodeOne))
	}
	return all
}

// sdkSeal signs any payload with a node's key.
func sdkSeal(t testing.TB, payload string, node byte) string {
	t.Helper()
	envelope, got, err := proof.Seal(t.Context(), proof.PayloadType, json.RawMessage(payload),
		sdkSigner(t, node))
	if err == nil && string(got) != payload {
		err = errors.New("the payload was changed: " + string(got))
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(envelope)
}

func sdkSum(k channel.PublicKey) string { return turnstone.DigestBytes(k[:]).Hex() }

// sdkCertificates are cases of clients that pin a root in place of nodes.
func sdkCertificates(t testing.TB) (all []*sdkCase) {
	one, two, no := byte(sdkRootOne), byte(sdkRootTwo), byte(sdkRootNo)
	at := func(d time.Duration) func(*sdkCase) { return func(c *sdkCase) { c.Now = sdkNow.Add(d) } }
	epoch := func(n uint64) func(*sdkCase) { return func(c *sdkCase) { c.Pins.Root.Epoch = n } }
	about := func(f func(*attest.Certificate)) []byte { return sdkCertificate(t, one, 3, f) }
	second := func(c *sdkCase) {
		c.Pins.Root = &sdkRoot{Key: sdkSigner(t, two).String(), Epoch: 4,
			Former: []string{sdkSigner(t, one).String()}}
	}
	good := sdkCertificate(t, one, 3)
	for _, o := range []struct {
		name        string
		fault       channel.Fault
		certificate []byte
		change      func(*sdkCase)
	}{
		{"certified", "", good, nil},
		{"certified, in an epoch that the client has seen", "", good, epoch(3)},
		{"certified under any name", "", about(func(c *attest.Certificate) { c.Node = "" }), nil},
		{"a sandbox of a certified node", "", good, func(c *sdkCase) {
			s := sdkStatement(t)
			s.Node, s.Sandbox = "", "sb_1"
			c.Statement = sdkBase(t, "", s).Statement
			c.Expected.About, c.Expected.Node = "sb_1", ""
		}},
		{"the root was rotated", "", sdkFollowed(t, sdkCertificate(t, two, 4), 4), epoch(3)},
		{"the root was rotated before", "", sdkFollowed(t, sdkCertificate(t, two, 4), 4), second},
		{"no certificate", attest.FaultUncertified, nil, nil},
		{"the certificate of another root", attest.FaultOtherRoot, sdkCertificate(t, no, 3), nil},
		{"the certificate of a new root without its succession", attest.FaultOtherRoot,
			sdkCertificate(t, two, 4), nil},
		{"the certificate of a root that was replaced", attest.FaultOtherRoot, good, second},
		{"an old epoch", attest.FaultOldEpoch, good, epoch(4)},
		{"a succession of an old epoch", attest.FaultOldEpoch,
			sdkFollowed(t, sdkCertificate(t, two, 9), 4), epoch(4)},
		{"the certificate has expired", attest.FaultCertExpired,
			about(func(c *attest.Certificate) { c.Expires = sdkNow.Add(time.Minute) }), at(time.Minute)},
		{"the certificate is not yet valid", attest.FaultCertEarly,
			about(func(c *attest.Certificate) { c.Time = sdkNow.Add(61 * time.Second) }), nil},
		{"the certificate is valid in 60 seconds", "",
			about(func(c *attest.Certificate) { c.Time = sdkNow.Add(60 * time.Second) }), nil},
		{"the certificate of another key", attest.FaultOtherNode,
			about(func(c *attest.Certificate) { c.Key = sdkSigner(t, sdkNodeTwo).String() }), nil},
		{"the certificate of another name", attest.FaultOtherNode,
			about(func(c *attest.Certificate) { c.Node = "n2" }), nil},
		{"a revoked node with a certificate", channel.FaultUntrusted, good, func(c *sdkCase) {
			c.Pins.Revoked = []string{sdkSigner(t, sdkNodeOne).ID()}
		}},
		{"a revoked root", attest.FaultRootRevoked, good, func(c *sdkCase) {
			c.Pins.Revoked = []string{sdkSigner(t, one).ID()}
		}},
		{"a certificate with white space", channel.FaultForged, append([]byte(" "), good...), nil},
		{"a certificate without its last line break", channel.FaultForged,
			bytes.TrimSuffix(good, []byte("\n")), nil},
		{"a certificate of another signature", channel.FaultForged, sdkReplaceSignature(t, good,
			sdkCertificate(t, no, 3)), nil},
		{"a statement in place of a certificate", channel.FaultForged,
			[]byte(sdkBase(t, "", sdkStatement(t)).Statement + "\n"), nil},
	} {
		c := sdkBase(t, o.name, sdkStatement(t))
		c.rooted(t, o.certificate)
		if c.Fault = o.fault; o.change != nil {
			o.change(c)
		}
		all = append(all, c)
	}
	return all
}

// sdkReplaceSignature gives a certificate the signature of another one.
func sdkReplaceSignature(t testing.TB, certificate, other []byte) []byte {
	t.Helper()
	a, b, both := bytes.Cut(certificate, []byte(`"signatures"`))
	_, d, too := bytes.Cut(other, []byte(`"signatures"`))
	if !both || !too || bytes.Equal(b, d) {
		t.Fatal("the certificates have no signatures")
	}
	return append(append(bytes.Clone(a), `"signatures"`...), d...)
}
