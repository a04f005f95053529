package proof

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/testhome"
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

// packages installs the packages of testdata/requirements.txt from PyPI, once for each version of
// the file, and returns their folder. Where there is no pip or no PyPI, it skips the test.
func packages(t *testing.T, py string) string {
	t.Helper()
	home := testhome.Dir(t)
	const list = "testdata/requirements.txt"
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, "python-"+turnstone.DigestBytes(b).Short())
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	fresh, err := os.MkdirTemp(home, "python-*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	if out, err := exec.CommandContext(t.Context(), py, "-m", "pip", "install", "--quiet",
		"--target", fresh, "--requirement", list).CombinedOutput(); err != nil {
		t.Skipf("pip does not install the packages of %s: %s", list, out)
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// python runs a program of Python on the test vectors.
func python(t *testing.T, args ...string) string {
	t.Helper()
	py, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), py, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages(t, py), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestPython: a verifier of at most 150 lines, which shares no code with this one, agrees with it on
// all test vectors.
func TestPython(t *testing.T) {
	b, err := os.ReadFile("testdata/verify.py")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte("\n")); n > 150 {
		t.Errorf("testdata/verify.py has %d lines", n)
	}
	var list []vector
	if err := json.Unmarshal(vectors(t)["vectors.json"], &list); err != nil {
		t.Fatal(err)
	}
	out := python(t, "testdata/verify.py", "--vectors", "testdata")
	if want := strings.Repeat("agrees\n", len(list)); out != want {
		t.Errorf("%s", out)
	}
}

// TestInToto: the envelope verifies with the module that in-toto's verifiers in Python use, and the
// statement with in-toto's own.
func TestInToto(t *testing.T) {
	out := python(t, "testdata/intoto.py", "testdata/both.md", "testdata/trusted")
	if out != "2 keys, https://in-toto.io/Statement/v1, "+PredicateType+"\n" {
		t.Error(out)
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

// TestSigstore: Sigstore's own verifier, which is also that of cosign, accepts a bundle, and refuses
// another key and another receipt.
func TestSigstore(t *testing.T) {
	if os.Getenv("TURN_TEST_SIGSTORE") == "" {
		t.Skip("set TURN_TEST_SIGSTORE=1: it downloads and builds Sigstore's verifier, which " +
			"takes minutes")
	}
	verifier := filepath.Join(t.TempDir(), "sigstore")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", verifier, ".")
	build.Dir = "testdata/sigstore"
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("it does not build here: %v: %s", err, out)
	}
	_, envelope, _ := document.CutEvidence(vectors(t)["both.md"])
	b, err := Export(envelope, FormatSigstore)
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "bundle.json")
	if err := os.WriteFile(bundle, b, 0o600); err != nil {
		t.Fatal(err)
	}
	node, caller := fixed(t, "turnstone test node"), fixed(t, "turnstone test caller")
	digest := turnstone.DigestBytes([]byte(text)).Hex()
	for _, c := range []struct {
		key, digest string
		good        bool
	}{{node.String(), digest, true}, {caller.String(), digest, false},
		{node.String(), turnstone.DigestBytes(nil).Hex(), false}} {
		out, err := exec.CommandContext(t.Context(), verifier, bundle, c.key, c.digest).
			CombinedOutput()
		if (err == nil) != c.good {
			t.Errorf("%+v: %v: %s", c, err, out)
		}
	}
}
