package proof

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/proof/key"
)

// pair returns two new signers.
func pair(t testing.TB) (node, caller *key.Signer) {
	t.Helper()
	return signer(t), signer(t)
}

func signer(t testing.TB) *key.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const text = "# A turn\n\n```bash\ntrue\n```\n"

// statement returns a statement about a receipt, to be signed by signers in the roles' order.
func statement(receipt string, signers ...*key.Signer) *Statement {
	at := time.Date(2026, 11, 22, 6, 7, 42, 0, time.UTC)
	d := func(s string) turnstone.Digest { return turnstone.DigestBytes([]byte(s)) }
	s := &Statement{Subjects: Subjects{Receipt: d(receipt), Record: d("record"),
		Layer: d("layer"), Trace: d("trace")},
		Predicate: Predicate{Turn: Turn{ID: "t_06h03ngqkbsd5up1q4", Session: "s_06h03ngqkbsd5up1q4",
			Number: 2, Branch: "main", Kind: turnstone.TurnKindRun, Title: "<A> & turn",
			Result: turnstone.ResultPassed, Started: at.Add(123 * time.Millisecond), Millis: 5},
			Document: d("document"), FS: d("fs"), Parents: []Parent{{Turn: "t_06h03ngolu1qi3tlcc",
				Record: d("parent"), Statement: d("parent's statement")}},
			Template: Template{Name: "base", Digest: d("template")},
			Machine:  Machine{Substrate: "gvisor", Memory: 2 << 30}, Program: "v1", Time: at}}
	for i, one := range signers {
		s.Predicate.Signers = append(s.Predicate.Signers,
			Signer{[]key.Role{key.Node, key.Caller}[i], one.String()})
	}
	return s
}

func signed(t testing.TB, receipt string, signers ...*key.Signer) *Signed {
	t.Helper()
	s, err := Sign(t.Context(), statement(receipt, signers...), signers...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func trusting(node, caller *key.Signer) *key.Trust {
	t := &key.Trust{}
	t.Add(key.Entry{Key: node.Public, Role: key.Node, Name: "n1"})
	if caller != nil {
		t.Add(key.Entry{Key: caller.Public, Role: key.Caller, Name: "alice"})
	}
	return t
}

// TestReceipt: a receipt verifies by itself, and names who vouches for it.
func TestReceipt(t *testing.T) {
	node, caller := pair(t)
	for _, receipt := range []string{text, "no line feed at the end", "", "a\r\nb\r\n", "a\n\n\n",
		"```\nan open fence", "<!-- an open comment", "\n<!-- turn:evidence\nx\n-->\n"} {
		file := Attach([]byte(receipt), signed(t, receipt, node, caller))
		s, err := OpenReceipt(t.Context(), "r.md", file)
		if err != nil {
			t.Fatalf("%q: %v", receipt, err)
		}
		who, err := s.Vouch(trusting(node, caller))
		if err != nil || len(who) != 2 || who[0].Name != "n1" || who[1].Role != "caller" {
			t.Errorf("%+v, %v", who, err)
		}
		if again := statement(receipt, node, caller); again.Predicate.Turn != s.Predicate.Turn {
			t.Errorf("%+v", s.Predicate)
		}
	}
	alone := Attach([]byte(text), signed(t, text, node))
	s, err := OpenReceipt(t.Context(), "r.md", alone)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := s.Vouch(trusting(node, nil)); err != nil || len(who) != 1 {
		t.Errorf("%+v, %v", who, err)
	}
	_, err = OpenReceipt(t.Context(), "r.md", []byte(text))
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error(err)
	}
}

// TestAnyByte: no byte of a signed receipt can be changed, removed, doubled or added.
func TestAnyByte(t *testing.T) {
	node, caller := pair(t)
	file := Attach([]byte(text), signed(t, text, node, caller))
	refused := func(t rapid.TB, what string, bad []byte) {
		if _, err := OpenReceipt(context.Background(), "r.md", bad); err == nil {
			t.Fatalf("%s makes no difference:\n%s", what, bad)
		}
	}
	for i := range file { // each byte, in one way; below, in any
		bad := bytes.Clone(file)
		bad[i] ^= 1
		refused(t, "a flipped bit", bad)
		refused(t, "a lost byte", append(bytes.Clone(file[:i]), file[i+1:]...))
		refused(t, "a cut", file[:i])
	}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(file)-1).Draw(t, "at")
		bad := bytes.Clone(file)
		bad[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		refused(t, "a changed byte", bad)
		more := rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(t, "more")
		j := rapid.IntRange(0, len(file)).Draw(t, "where")
		longer := append(append(bytes.Clone(file[:j]), more...), file[j:]...)
		refused(t, "added bytes", longer)
	})
}

// TestBadReceipts: each way to write the evidence differently, or to take another's, is refused, and
// is not mistaken for a receipt without evidence.
func TestBadReceipts(t *testing.T) {
	node, caller := pair(t)
	good := string(Attach([]byte(text), signed(t, text, node, caller)))
	other := string(Attach([]byte("# Other\n"), signed(t, "# Other\n", node, caller)))
	_, evidence, _ := document.CutEvidence([]byte(good))
	_, foreign, _ := document.CutEvidence([]byte(other))
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, evidence, "", "  "); err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{
		"CRLF":             strings.ReplaceAll(good, "\n", "\r\n"),
		"CRLF at the end":  strings.TrimSuffix(good, "\n") + "\r\n",
		"no last newline":  strings.TrimSuffix(good, "\n"),
		"another newline":  good + "\n",
		"text below":       good + "more\n",
		"pretty":           strings.Replace(good, string(evidence), pretty.String(), 1),
		"a space":          strings.Replace(good, `{"payloadType"`, `{ "payloadType"`, 1),
		"another's":        strings.Replace(good, string(evidence), string(foreign), 1),
		"twice":            string(document.WithEvidence([]byte(good), evidence)),
		"BOM":              "\ufeff" + good,
		"UTF-16 LE":        "\xff\xfe" + strings.Join(strings.Split(good, ""), "\x00") + "\x00",
		"UTF-16 BE":        "\xfe\xff\x00" + strings.Join(strings.Split(good, ""), "\x00"),
		"UTF-32":           strings.Join(strings.Split(good, ""), "\x00\x00\x00") + "\x00\x00\x00",
		"Latin-1":          strings.Replace(good, "# A turn", "# A t\xfcrn", 1),
		"formatted":        strings.Replace(good, "# A turn", "A turn\n======", 1),
		"in a code block":  "```\n" + good + "```\n",
		"quoted":           "> " + strings.ReplaceAll(good, "\n", "\n> "),
		"in a list":        "- " + strings.ReplaceAll(good, "\n", "\n  "),
		"two envelopes":    strings.Replace(good, "\n-->", "\n"+string(evidence)+"\n-->", 1),
		"evidence twice":   string(document.WithEvidence([]byte(good), foreign)),
		"key in capitals":  strings.Replace(good, `"payload":`, `"PAYLOAD":`, 1),
		"both spellings":   strings.Replace(good, `"payload":`, `"Payload":"","payload":`, 1),
		"an escape":        strings.Replace(good, `"payload":`, `"p\u0061yload":`, 1),
		"null":             strings.Replace(good, string(evidence), "null", 1),
		"a list":           strings.Replace(good, string(evidence), "["+string(evidence)+"]", 1),
		"truncated":        good[:len(good)/2],
		"payload cut":      strings.Replace(good, `"payload":"ey`, `"payload":"e`, 1),
		"upper-case begin": strings.Replace(good, "turn:evidence", "TURN:EVIDENCE", 1),
		"URL base64": strings.Replace(good, `"payload":"`, `"payload":"_`,
			1),
	} {
		_, err := OpenReceipt(t.Context(), "r.md", []byte(bad))
		k := turnstone.KindOf(err)
		if what == "upper-case begin" || what == "quoted" {
			if k != turnstone.KindNotFound { // there is no evidence in it at all
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		if k != turnstone.KindIntegrity && !(what == "truncated" && k == turnstone.KindNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// envelopeOf signs any payload as an envelope, without the checks of Sign.
func envelopeOf(t testing.TB, payloadType string, payload []byte, signers ...*key.Signer) string {
	t.Helper()
	e := map[string]any{"payload": base64.StdEncoding.EncodeToString(payload)}
	pae := pae(payloadType, payload)
	var sigs []string
	for _, s := range signers {
		sig, err := s.Sign(t.Context(), pae)
		if err != nil {
			t.Fatal(err)
		}
		sigs = append(sigs, `{"keyid":"`+s.ID()+`","sig":"`+
			base64.StdEncoding.EncodeToString(sig)+`"}`)
	}
	return `{"payloadType":"` + payloadType + `","payload":"` + e["payload"].(string) +
		`","signatures":[` + strings.Join(sigs, ",") + `]}`
}

// TestBadEnvelopes: the signatures of all of these are real, and each is refused.
func TestBadEnvelopes(t *testing.T) {
	node, caller := pair(t)
	stranger := signer(t)
	encode := func(s *Statement) []byte {
		b, err := s.encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := encode(statement(text, node, caller))
	change := func(f func(p *Predicate)) []byte {
		s := statement(text, node, caller)
		f(&s.Predicate)
		return encode(s)
	}
	bad := func(what, envelope, why string) {
		t.Helper()
		_, err := Open(t.Context(), []byte(envelope))
		if turnstone.KindOf(err) != turnstone.KindIntegrity ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ok := envelopeOf(t, PayloadType, good, node, caller)
	if _, err := Open(t.Context(), []byte(ok)); err != nil {
		t.Fatal(err)
	}
	sign := func(payload []byte, by ...*key.Signer) string {
		return envelopeOf(t, PayloadType, payload, by...)
	}
	bad("the caller dropped", sign(good, node), "no signature of the caller")
	bad("nobody", sign(good), "no signature of the node")
	bad("roles swapped", sign(good, caller, node), "is by the key")
	bad("one signer twice", sign(good, node, node), "is by the key")
	bad("a stranger", sign(good, node, stranger), "is by the key")
	bad("one more", sign(good, node, caller, stranger), "does not name")
	bad("another payload type", envelopeOf(t, "text/plain", good, node, caller), "text/plain")
	bad("two payload types", strings.Replace(ok, "{", `{"payloadType":"text/plain",`, 1), "spelled")
	bad("an unknown key", strings.Replace(ok, "{", `{"x":1,`, 1), "spelled")
	bad("keys that differ in case", strings.Replace(ok, "{", `{"PayloadType":"text/plain",`, 1),
		"spelled")
	bad("white space", ok+" ", "spelled")
	bad("no JSON", "x", "JSON")
	bad("a key ID of another", strings.Replace(ok, node.ID(), caller.ID(), 1), "is by the key")
	bad("deep", strings.Repeat("[", 100_000), "nested deeper")
	bad("huge", strings.Repeat(" ", maxEnvelope+1), "the limit")
	bad("a huge payload", sign(change(func(p *Predicate) {
		p.Turn.Title = strings.Repeat("x", maxPayload)
	}), node, caller), "the limit")
	bad("a deep payload", sign([]byte(strings.Repeat(`{"a":`, 50)+"1"+strings.Repeat("}", 50)),
		node, caller), "nested deeper")
	twice := strings.Replace(string(good), `"number":2`, `"number":3,"number":2`, 1)
	bad("a key twice in the payload", sign([]byte(twice), node, caller), "")
	for field, other := range map[string]string{`"number":2`: `"Number":3,"number":2`,
		`"role":"node"`: `"ROLE":"caller","role":"node"`, `"time":`: `"Time":"x","time":`,
		`"predicateType":`: `"predicate_type":"x","predicateType":`, `"id":`: `"\u0069d":`} {
		cased := strings.Replace(string(good), field, other, 1)
		if cased == string(good) {
			t.Fatal(field)
		}
		bad("another case of "+field, sign([]byte(cased), node, caller), "")
	}
	bad("white space at the end", sign(append(bytes.Clone(good), '\n'), node, caller), "")
	bad("two statements", sign(append(bytes.Clone(good), good...), node, caller), "")
	spaced := strings.Replace(string(good), `"number":2`, `"number": 2`, 1)
	bad("white space in the payload", sign([]byte(spaced), node, caller), "spelled")
	escaped := strings.Replace(string(good), `"main"`, `"m\u0061in"`, 1)
	bad("an escape in the payload", sign([]byte(escaped), node, caller), "spelled")
	unknown := strings.Replace(string(good), `"number":2`, `"number":2,"x":1`, 1)
	bad("an unknown field", sign([]byte(unknown), node, caller), "unknown field")
	float := strings.Replace(string(good), `"number":2`, `"number":2.0`, 1)
	bad("a number in another form", sign([]byte(float), node, caller), "")
	bad("no signers", sign(change(func(p *Predicate) { p.Signers = nil }), node, caller),
		"names no signer")
	bad("the caller first", sign(change(func(p *Predicate) {
		p.Signers[0], p.Signers[1] = p.Signers[1], p.Signers[0]
	}), caller, node), "role")
	bad("one key in both roles", sign(change(func(p *Predicate) {
		p.Signers[1].Key = p.Signers[0].Key
	}), node, node), "both roles")
	bad("before 1970", sign(change(func(p *Predicate) {
		p.Time = time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC)
	}), node, caller), "between 1970 and 2100")
	bad("after 2100", sign(change(func(p *Predicate) {
		p.Time = time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)
	}), node, caller), "between 1970 and 2100")
	bad("another predicate", sign([]byte(strings.Replace(string(good), PredicateType,
		"https://slsa.dev/provenance/v1", 1)), node, caller), "not about a turn")
	bad("another statement", sign([]byte(strings.Replace(string(good), "Statement/v1",
		"Statement/v2", 1)), node, caller), "in-toto")
	bad("a digest of another kind", sign([]byte(strings.Replace(string(good), `{"sha256":`,
		`{"md5":`, 1)), node, caller), "")
	bad("a subject twice", sign([]byte(strings.Replace(string(good), `"fs.diff"`, `"receipt"`, 1)),
		node, caller), "not expected")
}

// TestCountersign: a caller signs what a node signed alone. The statement stays the same, and the
// evidence still has one spelling, and no more signers.
func TestCountersign(t *testing.T) {
	node, caller := pair(t)
	stranger := signer(t)
	alone := signed(t, text, node)
	s, err := alone.Countersign(t.Context(), "r.md", caller)
	if err != nil || s.Link != alone.Link || !bytes.Equal(s.Payload, alone.Payload) {
		t.Fatal(err)
	}
	who, err := s.Vouch(trusting(node, caller))
	if err != nil || len(who) != 2 || who[0].Later || !who[1].Later || who[1].Name != "alice" {
		t.Errorf("%+v, %v", who, err)
	}
	unknown, asNode, revoked := trusting(node, nil), trusting(node, nil), trusting(node, caller)
	asNode.Add(key.Entry{Key: caller.Public, Role: key.Node})
	revoked.Revoke(caller.ID())
	for _, trust := range []*key.Trust{unknown, asNode, revoked} {
		if _, err := s.Vouch(trust); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%+v: %v", trust, err)
		}
	}
	for what, c := range map[string]struct {
		s  *Signed
		by *key.Signer
	}{"twice": {s, stranger}, "a named caller": {signed(t, text, node, caller), stranger},
		"the node": {alone, node}} {
		if _, err := c.s.Countersign(t.Context(), "r.md", c.by); turnstone.KindOf(err) !=
			turnstone.KindInvalid || !strings.HasPrefix(err.Error(), "r.md: is signed") ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	file := Attach([]byte(text), s)
	if _, err := OpenReceipt(t.Context(), "r.md", file); err != nil {
		t.Fatal(err)
	}
	for i := range file {
		bad := bytes.Clone(file)
		bad[i] ^= 1
		if _, err := OpenReceipt(t.Context(), "r.md", bad); err == nil {
			t.Fatalf("byte %d makes no difference", i)
		}
	}
	both := signed(t, text, node, caller).Envelope
	for _, bad := range []string{
		strings.Replace(string(s.Envelope), caller.String(), caller.ID(), 1),
		strings.Replace(string(s.Envelope), caller.String(), caller.String()+" alice", 1),
		strings.Replace(string(s.Envelope), caller.String(), stranger.String(), 1),
		strings.Replace(string(s.Envelope), caller.String(), node.String(), 1),
		strings.Replace(string(s.Envelope), caller.String(), "ssh-rsa AAAA", 1),
		strings.Replace(string(both), caller.ID(), caller.String(), 1),
		strings.Replace(string(alone.Envelope), node.ID(), node.String(), 1),
	} {
		_, err := Open(t.Context(), []byte(bad))
		if turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%v: %s", err, bad)
		}
	}
}

// TestKeysThatDoNotSign: a certificate, another algorithm, and a signature of another form are
// refused where a key is expected.
func TestKeysThatDoNotSign(t *testing.T) {
	node := signer(t)
	cert := &ssh.Certificate{Key: mustKey(t, node), CertType: ssh.UserCert, ValidBefore: 1 << 40}
	ca, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(cert)))
	if _, err := key.Parse(line); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
	s := statement(text, node)
	s.Predicate.Signers[0].Key = line
	if _, err := s.Encode(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
	sig, err := node.Sign(t.Context(), []byte("data"))
	if err != nil || len(sig) != 64 {
		t.Fatal(err, len(sig))
	}
	blob := ssh.Marshal(&ssh.Signature{Format: ssh.KeyAlgoED25519, Blob: sig})
	if node.Verify(t.Context(), []byte("data"), blob) == nil ||
		node.Verify(t.Context(), []byte("data"), sig) != nil {
		t.Error("the form of a signature does not follow its key")
	}
}

func mustKey(t testing.TB, s *key.Signer) ssh.PublicKey {
	t.Helper()
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(s.String()))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestHead: an entry of the log of heads has one spelling, and one signer.
func TestHead(t *testing.T) {
	node := signer(t)
	h := turnstone.Head{Session: "s_1", Sequence: 3, Branch: "main", Turn: "t_1",
		Previous: turnstone.DigestBytes(nil), Time: time.Now()}
	envelope, digest, err := SignHead(t.Context(), h, node)
	if err != nil {
		t.Fatal(err)
	}
	got, err := OpenHead(t.Context(), envelope)
	if err != nil || got.Digest != digest || got.Branch != "main" || got.Key != node.String() {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range envelope {
		bad := bytes.Clone(envelope)
		bad[i] ^= 1
		if _, err := OpenHead(t.Context(), bad); err == nil {
			t.Fatalf("byte %d makes no difference", i)
		}
	}
}

// FuzzReceipt: whatever a file contains, a receipt that verifies is the one that was signed.
func FuzzReceipt(f *testing.F) {
	node, caller := pair(f)
	file := Attach([]byte(text), signed(f, text, node, caller))
	f.Add(file)
	f.Add([]byte(text))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := OpenReceipt(t.Context(), "r.md", b)
		if err == nil && s.Later == nil && s.Predicate.Signers[0].Key == node.String() &&
			!bytes.Equal(b, file) {
			t.Errorf("%q verifies", b)
		}
	})
}

// FuzzStatement: a payload that is decoded is encoded to the same bytes.
func FuzzStatement(f *testing.F) {
	node, caller := pair(f)
	f.Add(signed(f, text, node, caller).Payload)
	f.Add(signed(f, text, node).Payload)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeStatement(b)
		if err != nil {
			return
		}
		if again, err := s.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q, %v", again, err)
		}
	})
}

// FuzzEnvelope: an envelope that is opened is spelled in one way.
func FuzzEnvelope(f *testing.F) {
	node, caller := pair(f)
	f.Add(signed(f, text, node, caller).Envelope)
	if s, err := signed(f, text, node).Countersign(f.Context(), "r.md", caller); err == nil {
		f.Add(s.Envelope)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Open(t.Context(), b)
		if err != nil {
			return
		}
		e, _, err := decodeEnvelope(b, PayloadType)
		if err != nil || len(e.Signatures) != len(s.signers()) {
			t.Errorf("%q: %v", b, err)
		}
		if again, err := compact(e); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q: %q, %v", b, again, err)
		}
	})
}

// FuzzHead: an entry of the log of heads that verifies with the node's key is the one that was
// signed.
func FuzzHead(f *testing.F) {
	node := signer(f)
	head, digest, err := SignHead(f.Context(), turnstone.Head{Session: "s_1", Sequence: 2,
		Branch: "main", Previous: turnstone.DigestBytes(nil), Turn: "t_1", Time: time.Now()}, node)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := OpenHead(t.Context(), b)
		if err == nil && h.Key == node.String() && (h.Digest != digest || !bytes.Equal(b, head)) {
			t.Errorf("%q verifies", b)
		}
	})
}

// BenchmarkSign and BenchmarkVerify measure what a turn and a verification pay.
func BenchmarkSign(b *testing.B) {
	node, caller := pair(b)
	for b.Loop() {
		if _, err := Sign(b.Context(), statement(text, node, caller), node, caller); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	node, caller := pair(b)
	file := Attach([]byte(text), signed(b, text, node, caller))
	trust := trusting(node, caller)
	for b.Loop() {
		s, err := OpenReceipt(b.Context(), "r.md", file)
		if err == nil {
			_, err = s.Vouch(trust)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
