package proof

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/proof/key"
)

var update = flag.Bool("update", false, "write testdata")

// fixed returns a key that everybody knows: it is for test vectors only.
func fixed(t testing.TB, seed string) *key.Signer {
	t.Helper()
	sum := sha256.Sum256([]byte(seed))
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A vector is what docs/chain.md calls a test vector.
type vector struct {
	File      string           `json:"file"`
	Trust     string           `json:"trust"`
	Result    string           `json:"result"` // ok, unsigned, or bad
	PAE       string           `json:"pae_sha256,omitempty"`
	Statement turnstone.Digest `json:"statement,omitempty"`
}

// vectors returns the files of testdata, by name.
func vectors(t testing.TB) map[string][]byte {
	t.Helper()
	node, caller := fixed(t, "turnstone test node"), fixed(t, "turnstone test caller")
	good := signed(t, text, node, caller)
	alone := signed(t, text, node)
	later, err := alone.Countersign(t.Context(), "r.md", caller)
	if err != nil {
		t.Fatal(err)
	}
	three := bytes.Replace(Attach([]byte(text), later), []byte(`,{"keyid":"ssh-`),
		[]byte(`,{"keyid":"`+node.ID()+`","sig":""},{"keyid":"ssh-`), 1)
	old := statement(text, node, caller) // as versions before this one signed it
	old.First = true
	first, err := Sign(t.Context(), old, node, caller)
	if err != nil {
		t.Fatal(err)
	}
	mixed := bytes.Replace(first.Payload, []byte(FirstPredicateType), []byte(PredicateType), 1)
	forms := Attach([]byte(text), &Signed{
		Envelope: []byte(envelopeOf(t, PayloadType, mixed, node, caller))})
	file := Attach([]byte(text), good)
	// A text with CRLF has evidence with CRLF; versions before this one wrote LF there.
	windows := strings.ReplaceAll(text, "\n", "\r\n")
	both := signed(t, windows, node, caller)
	lines := (key.Entry{Key: node.Public, Role: key.Node}).Line() + "\n" +
		(key.Entry{Key: caller.Public, Role: key.Caller, Name: "alice"}).Line() + "\n"
	swapped := (key.Entry{Key: caller.Public, Role: key.Node}).Line() + "\n" +
		(key.Entry{Key: node.Public, Role: key.Caller}).Line() + "\n"
	sum := sha256.Sum256(pae(PayloadType, good.Payload))
	dropped := strings.Replace(string(file), "},{\"keyid\"", "}],\"x\":[{\"keyid\"", 1)
	files := map[string][]byte{
		"both.md": file, "node.md": Attach([]byte(text), alone), "unsigned.md": []byte(text),
		"later.md": Attach([]byte(text), later), "three.md": three,
		"first.md": Attach([]byte(text), first), "forms.md": forms,
		"another.md": bytes.Replace(Attach([]byte(text), later), []byte(caller.String()),
			[]byte(fixed(t, "a stranger").String()), 1),
		"text.md":    bytes.Replace(file, []byte("true"), []byte("tru3"), 1),
		"crlf.md":    bytes.ReplaceAll(file, []byte("\n"), []byte("\r\n")),
		"windows.md": Attach([]byte(windows), both),
		"mixed.md":   fmt.Appendf(nil, "%s\n<!-- turn:evidence\n%s\n-->\n", windows, both.Envelope),
		"unix.md":    bytes.ReplaceAll(Attach([]byte(windows), both), []byte("\r\n"), []byte("\n")),
		"below.md":   append(bytes.Clone(file), "more\n"...),
		"dropped.md": []byte(dropped),
		"trusted":    []byte(lines), "swapped": []byte(swapped),
	}
	list := []vector{
		{File: "both.md", Trust: "trusted", Result: "ok", PAE: hex.EncodeToString(sum[:]),
			Statement: good.Link},
		{File: "node.md", Trust: "trusted", Result: "ok", Statement: alone.Link},
		{File: "first.md", Trust: "trusted", Result: "ok", Statement: first.Link},
		{File: "forms.md", Trust: "trusted", Result: "bad"},
		{File: "later.md", Trust: "trusted", Result: "ok", Statement: alone.Link},
		{File: "later.md", Trust: "swapped", Result: "bad"},
		{File: "three.md", Trust: "trusted", Result: "bad"},
		{File: "another.md", Trust: "trusted", Result: "bad"},
		{File: "unsigned.md", Trust: "trusted", Result: "unsigned"},
		{File: "both.md", Trust: "swapped", Result: "bad"},
		{File: "text.md", Trust: "trusted", Result: "bad"},
		{File: "crlf.md", Trust: "trusted", Result: "bad"},
		{File: "windows.md", Trust: "trusted", Result: "ok", Statement: both.Link},
		{File: "mixed.md", Trust: "trusted", Result: "ok", Statement: both.Link},
		{File: "unix.md", Trust: "trusted", Result: "bad"},
		{File: "below.md", Trust: "trusted", Result: "bad"},
		{File: "dropped.md", Trust: "trusted", Result: "bad"},
	}
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	files["vectors.json"] = append(b, '\n')
	return files
}

// TestVectors keeps the test vectors of docs/chain.md: signatures of Ed25519 are deterministic, so
// that each byte of them is fixed. With -update they are written.
func TestVectors(t *testing.T) {
	files := vectors(t)
	for name, want := range files {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v: the format has changed", name, err)
		}
	}
	var list []vector
	if err := json.Unmarshal(files["vectors.json"], &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		trust := &key.Trust{}
		if err := trust.ReadTrust(filepath.Join("testdata", v.Trust)); err != nil {
			t.Fatal(err)
		}
		s, err := OpenReceipt(t.Context(), v.File, files[v.File])
		if err == nil {
			_, err = s.Vouch(trust)
		}
		got := "ok"
		if err != nil {
			got = "bad"
		}
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			got = "unsigned"
		}
		if got != v.Result || got == "ok" && s.Link != v.Statement {
			t.Errorf("%+v: %s: %v", v, got, err)
		}
	}
}

// TestExport: a bundle has the evidence of the receipt, and the signature of the node.
func TestExport(t *testing.T) {
	_, envelope, _ := document.CutEvidence(vectors(t)["both.md"])
	b, err := Export(envelope, FormatSigstore)
	if err != nil {
		t.Fatal(err)
	}
	var bundle struct {
		Envelope struct {
			Payload    string `json:"payload"`
			Signatures []any  `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(b, &bundle); err != nil || len(bundle.Envelope.Signatures) != 1 ||
		bundle.Envelope.Payload == "" {
		t.Errorf("%v, %s", err, b)
	}
	if _, err := Export(envelope, "x509"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}
