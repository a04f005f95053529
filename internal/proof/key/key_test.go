package key

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

func ring(t *testing.T) Ring {
	t.Helper()
	return Ring{Dir: &statedir.Dir{Root: t.TempDir()}}
}

func asked(answer string) Passphrase {
	return func(string) ([]byte, error) { return []byte(answer), nil }
}

// TestNodeKey: the node's key is made once, and its file is private.
func TestNodeKey(t *testing.T) {
	r := ring(t)
	a, err := r.NodeKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.NodeKey(t.Context())
	if err != nil || !a.Equal(b.Public) {
		t.Errorf("%v, %v, %v", a.ID(), b.ID(), err)
	}
	path := r.Dir.Path("keys", "node")
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	trust, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Vouch(a.Public, Node, time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := trust.Vouch(a.Public, Caller, time.Now()); turnstone.KindOf(err) !=
		turnstone.KindIntegrity || !strings.Contains(err.Error(), "as node, not as caller") {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := r.NodeKey(t.Context()); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "mode 0640") || turnstone.HintOf(err) == "" {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := r.NodeKey(t.Context()); err == nil {
		t.Error("a link was followed")
	}
}

// TestPassphrase: a key with a passphrase is of no use without it.
func TestPassphrase(t *testing.T) {
	r := ring(t)
	if s, err := r.CallerKey(t.Context()); s != nil || err != nil {
		t.Fatal(s, err)
	}
	made, err := r.Make(t.Context(), Caller, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range []Passphrase{nil, asked("wrong")} {
		r.Ask = ask
		if _, err := r.CallerKey(t.Context()); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Error(err)
		}
	}
	r.Ask = asked("secret")
	got, err := r.CallerKey(t.Context())
	if err != nil || !got.Equal(made.Public) {
		t.Fatal(err)
	}
	if _, err := r.Make(t.Context(), Caller, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

// TestRotate: what an old key signed before stays valid, and nothing that it signs later.
func TestRotate(t *testing.T) {
	r := ring(t)
	if _, err := r.Make(t.Context(), Caller, nil); err != nil {
		t.Fatal(err)
	}
	old, s, err := r.Rotate(t.Context(), Caller, nil)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		key  Public
		at   time.Time
		good bool
	}{
		{"old, before", old, time.Now().Add(-time.Hour), true},
		{"old, later", old, time.Now().Add(time.Hour), false},
		{"new", s.Public, time.Now().Add(time.Hour), true},
	} {
		if _, err := trust.Vouch(c.key, Caller, c.at); (err == nil) != c.good {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if now, err := r.CallerKey(t.Context()); err != nil || !now.Equal(s.Public) {
		t.Error(err)
	}
	if _, err := r.Revoke(t.Context(), old.ID()); err != nil {
		t.Fatal(err)
	}
	if trust, err = r.List(); err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Vouch(old, Caller, time.Now().Add(-time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "revoked") {
		t.Error(err)
	}
}

// TestTrustList: the format is that of OpenSSH's allowed_signers; each mistake names its line.
func TestTrustList(t *testing.T) {
	k, other := newKey(t), newKey(t)
	path := filepath.Join(t.TempDir(), "trusted")
	write := func(text string) error {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return new(Trust).ReadTrust(path)
	}
	good := "# comment\n\n" +
		`node:build1 namespaces="turnstone,git",valid-after="20260101",valid-before="20270101Z" ` +
		k.String() + " a comment\n" +
		"alice@example.org " + other.String() + "\n" +
		`"caller:bob,node" namespaces="turn*" ` + other.String() + "\n"
	if err := write(good); err != nil {
		t.Fatal(err)
	}
	trust := &Trust{}
	if err := trust.ReadTrust(path); err != nil {
		t.Fatal(err)
	}
	in := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	if e, err := trust.Vouch(k, Node, in); err != nil || e.Name != "build1" ||
		e.Comment != "a comment" {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := trust.Vouch(other, Caller, in); err != nil || e.Name != "alice@example.org" {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := trust.Vouch(other, Node, in); err != nil {
		t.Error(err)
	}
	for _, at := range []time.Time{in.AddDate(-1, 0, 0), in.AddDate(1, 0, 0)} {
		if _, err := trust.Vouch(k, Node, at); err == nil {
			t.Errorf("trusted on %s", at)
		}
	}
	stranger := newKey(t)
	if _, err := trust.Vouch(stranger, Node, in); err == nil || turnstone.HintOf(err) == "" {
		t.Error(err)
	}
	for _, bad := range []string{
		k.String(), "node", "node " + k.String()[:40], "* " + k.String(), "!node " + k.String(),
		"admin:x " + k.String(), "node cert-authority " + k.String(),
		"node unknown " + k.String(), `node valid-after="yesterday" ` + k.String(),
		`node valid-before="2026" ` + k.String(), `node namespaces="" ` + k.String(),
		"node ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7", "node " + strings.Repeat("x", 3*maxKey),
	} {
		err := write("# first\n" + bad + "\n")
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%.60q: %v", bad, err)
		}
	}
	if err := write(`node namespaces="git" ` + k.String()); err != nil {
		t.Fatal(err)
	}
	git := &Trust{}
	if err := git.ReadTrust(path); err != nil {
		t.Fatal(err)
	}
	if _, err := git.Vouch(k, Node, in); err == nil ||
		!strings.Contains(err.Error(), "namespaces") {
		t.Error(err)
	}
}

func newKey(t testing.TB) Public {
	t.Helper()
	s, _, err := generate("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.Public
}

// TestAgent: a key of the SSH agent signs, and the agent's end is an error that says so.
func TestAgent(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := agent.NewKeyring()
	if err := keys.Add(agent.AddedKey{PrivateKey: private, Comment: "mine"}); err != nil {
		t.Fatal(err)
	}
	r := ring(t)
	r.Socket = filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", r.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = agent.ServeAgent(keys, c), c.Close() }()
		}
	}()
	if _, err := r.UseAgent(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	s, err := r.CallerKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.Sign(t.Context(), []byte("data"))
	if err != nil || len(sig) != ed25519.SignatureSize ||
		!ed25519.Verify(private.Public().(ed25519.PublicKey), []byte("data"), sig) {
		t.Errorf("%v, %d bytes", err, len(sig))
	}
	if err := keys.RemoveAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sign(t.Context(), nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Error(err)
	}
	if _, err := r.CallerKey(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		turnstone.HintOf(err) == "" {
		t.Error(err)
	}
}

// A token signs like a security key of FIDO (PROTOCOL.u2f of OpenSSH): over the digest of the
// application, flags, a counter, and the digest of the message.
type token struct {
	public  ssh.PublicKey
	private ed25519.PrivateKey
}

func newToken(t testing.TB) token {
	t.Helper()
	p, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Type string
		Key  []byte
		App  string
	}{ssh.KeyAlgoSKED25519, p, "ssh:"}))
	if err != nil {
		t.Fatal(err)
	}
	return token{k, private}
}

func (k token) PublicKey() ssh.PublicKey { return k.public }

func (k token) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	app, msg := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	rest := binary.BigEndian.AppendUint32([]byte{1}, 7)
	signed := bytes.Join([][]byte{app[:], rest, msg[:]}, nil)
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(k.private, signed),
		Rest: rest}, nil
}

// signedByToken returns the key of a new token, and its signature of data.
func signedByToken(t testing.TB, data string) (*Signer, []byte) {
	t.Helper()
	s, err := NewSigner(newToken(t))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.Sign(t.Context(), []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return s, sig
}

// TestSecurityToken: a hardware key's signature is the SSH signature, and no byte of it can change.
func TestSecurityToken(t *testing.T) {
	s, sig := signedByToken(t, "data")
	again, err := Parse(s.String())
	if err != nil || again.Verify(t.Context(), []byte("data"), sig) != nil {
		t.Fatal(err)
	}
	for i := range sig {
		bad := bytes.Clone(sig)
		bad[i] ^= 1
		if again.Verify(t.Context(), []byte("data"), bad) == nil {
			t.Errorf("byte %d makes no difference", i)
		}
	}
}

// FuzzTrust: no list of keys and no key makes a parser fail.
func FuzzTrust(f *testing.F) {
	f.Add(`node:a namespaces="turnstone" ` + newKey(f).String() + " c")
	f.Add(newKey(f).String())
	f.Fuzz(func(t *testing.T, line string) {
		for _, e := range must(ParseEntries(line)) {
			again, err := ParseEntries(Entry{Key: e.Key, Role: e.Role, After: e.After,
				Before: e.Before}.Line())
			if e.Role != "" && (err != nil || len(again) != 1 || !again[0].Key.Equal(e.Key)) {
				t.Errorf("%q: %v", line, err)
			}
		}
		if p, _, err := ParsePublic(line); err == nil {
			if again, err := Parse(p.String()); err != nil || !again.Equal(p) {
				t.Errorf("%q: %v", line, err)
			}
		}
	})
}

func must[T any](v T, _ error) T { return v }
