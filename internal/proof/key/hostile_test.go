package key

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
)

// TestLostRevocations: each line of the list of revoked keys has an effect, or is an error. A
// revocation that has none would be noticed when it is too late.
func TestLostRevocations(t *testing.T) {
	k := newKey(t)
	path := filepath.Join(t.TempDir(), "revoked")
	for _, line := range []string{k.ID(), k.ID() + " lost", k.ID() + "\tlost", "\t" + k.ID() + " ",
		k.String(), k.String() + " alice", k.ID() + "\r"} {
		if err := os.WriteFile(path, []byte("# comment\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		trust := &Trust{}
		trust.Add(Entry{Key: k, Role: Node})
		if err := trust.ReadRevoked(path); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if _, err := trust.Vouch(k, Node, time.Now()); err == nil {
			t.Errorf("%q has no effect", line)
		}
	}
	cert := certificate(t)
	for _, line := range []string{k.ID() + "=", k.ID()[:49], k.ID() + "x", "SHA256:", "SHA256: x",
		strings.ToLower(k.ID()), "MD5:00:11", "\ufeff" + k.ID(), cert, "node " + k.String(),
		"SHA256:" + strings.Repeat("!", 43), "\xff\xfeS\x00H\x00A\x00"} {
		if err := os.WriteFile(path, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(Trust).ReadRevoked(path); turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), "revoked:1") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// certificate returns a certificate about a new key, as a line of a .pub file.
func certificate(t *testing.T) string {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{Key: newKey(t).key, CertType: ssh.UserCert, ValidBefore: 1 << 40}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(cert)))
}

// TestHostileLists: a list of trusted keys gives no more trust than OpenSSH would read from it.
func TestHostileLists(t *testing.T) {
	k := newKey(t)
	key := k.String()
	cert := certificate(t)
	for _, bad := range []string{
		"node " + cert, "node cert-authority " + cert, `node CERT-AUTHORITY ` + key,
		`node cert-authority,namespaces="turnstone" ` + key,
		`node valid-before="20200101",valid-before="20990101" ` + key,
		`node namespaces="git",Namespaces="turnstone" ` + key,
		`node namespaces="[a-z]*" ` + key, `node namespaces="turn\stone" ` + key,
		"\ufeffnode " + key, "n\x00ode " + key, `"node ` + key, `"no de" ` + key,
		"node\u200b " + key, "node, " + key, "no#de " + key, "\xff\xfen\x00o\x00d\x00e\x00",
		"node ssh-ed25519 " + strings.Fields(key)[1][1:], "node ecdsa-sha2-nistp256 AAAA",
		`node environment="A=b" ` + key, `node command="true" ` + key, "node verify-required " + key,
	} {
		if all, err := ParseEntries(bad); err == nil {
			t.Errorf("%.80q: %+v", bad, all)
		}
	}
	at := time.Now()
	for options, trusted := range map[string]bool{
		`namespaces="!turnstone,*"`: false, `namespaces="*,!turn*"`: false,
		`namespaces="!git,*"`: true, `namespaces="!git"`: false, `namespaces="file,turnston?"`: true,
		`NameSpaces="git"`: false, `valid-before="19700102Z"`: false, `valid-after="20990101Z"`: false,
		`valid-after="20000101",valid-before="20990101"`: true,
	} {
		all, err := ParseEntries("node " + options + " " + key)
		if err != nil {
			t.Errorf("%s: %v", options, err)
			continue
		}
		trust := &Trust{entries: all}
		if _, err := trust.Vouch(k, Node, at); (err == nil) != trusted {
			t.Errorf("%s: %v", options, err)
		}
	}
	if _, err := ParseEntries(key); turnstone.HintOf(err) == "" {
		t.Errorf("a file .pub is named: %v", err)
	}
}

// TestTrustWritesOneLine: no name and no comment adds another key to the list, or is read back as
// something else.
func TestTrustWritesOneLine(t *testing.T) {
	r, k, other := ring(t), newKey(t), newKey(t)
	for _, e := range []Entry{
		{Name: "a b"}, {Name: "a,node"}, {Name: "x\nnode " + other.String()}, {Name: `"`},
		{Name: "*"}, {Comment: "x\nnode " + other.String()}, {Comment: "\x1b[2J"}, {Comment: " x"},
		{Name: "#"}, {Name: "a\tb"},
	} {
		e.Key, e.Role = k, Caller
		if _, err := r.Trust(t.Context(), e); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if b, err := os.ReadFile(r.Trusted()); err == nil {
		t.Errorf("%q", b)
	}
	if _, _, err := ParsePublic(k.String() + "\nnode " + other.String()); err == nil {
		t.Error("two lines are one key")
	}
	if _, err := r.Trust(t.Context(), Entry{Key: k, Role: Caller, Name: "alice"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Revoke(t.Context(), k.ID()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Trust(t.Context(), Entry{Key: k, Role: Node})
	if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
		t.Errorf("a revoked key becomes trusted: %v", err)
	}
}

// TestTrustAgain: a key that the list trusts for something else only is added.
func TestTrustAgain(t *testing.T) {
	r, k := ring(t), newKey(t)
	line := `caller:a namespaces="git" ` + k.String() + "\n" +
		`caller:a valid-after="20990101" ` + k.String() + "\n"
	if err := os.WriteFile(r.Trusted(), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	if added, err := r.Trust(t.Context(), Entry{Key: k, Role: Caller}); err != nil || !added {
		t.Fatal(added, err)
	}
	if added, err := r.Trust(t.Context(), Entry{Key: k, Role: Caller}); err != nil || added {
		t.Fatal(added, err)
	}
	trust, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Vouch(k, Caller, time.Now()); err != nil {
		t.Error(err)
	}
}

// TestOneRole: a key that is trusted in one role, or under one name, is not trusted in another one
// too, and the error says what it has.
func TestOneRole(t *testing.T) {
	r, k := ring(t), newKey(t)
	if _, err := r.Trust(t.Context(), Entry{Key: k, Role: Caller, Name: "alice"}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []Entry{{Role: Node}, {Role: Node, Name: "alice"}, {Role: Caller, Name: "bob"}} {
		e.Key = k
		_, err := r.Trust(t.Context(), e)
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(fmt.Sprint(err), "is trusted as caller:alice") {
			t.Errorf("%v: %v", e.Role, err)
		}
	}
	// the key of this node does not become the caller's
	path := filepath.Join(t.TempDir(), "copy")
	if _, err := r.NodeKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(r.path(Node))
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Import(t.Context(), path); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

// TestUntrust: a key is removed from the list with all of its lines, and nothing else is; the keys
// of the state directory stay.
func TestUntrust(t *testing.T) {
	r, k, other := ring(t), newKey(t), newKey(t)
	node, err := r.NodeKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(r.Trusted())
	if err != nil {
		t.Fatal(err)
	}
	list := string(before) + "# mine\ncaller:a,caller:b " + k.String() + "\nnode " +
		other.String() + " x\ncaller valid-before=\"20300101\" " + k.String() + "\n"
	if err := os.WriteFile(r.Trusted(), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := r.Untrust(t.Context(), k.String()); err != nil || id != k.ID() {
		t.Fatal(id, err)
	}
	b, err := os.ReadFile(r.Trusted())
	if want := string(before) + "# mine\nnode " + other.String() + " x\n"; err != nil ||
		string(b) != want {
		t.Errorf("%v: %s", err, b)
	}
	for name, kind := range map[string]turnstone.Kind{k.ID(): turnstone.KindNotFound,
		node.ID(): turnstone.KindInvalid, "alice": turnstone.KindInvalid} {
		if _, err := r.Untrust(t.Context(), name); turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.Trust(t.Context(), Entry{Key: k, Role: Node}); err != nil {
		t.Error(err)
	}
}

// TestRotateAllPrincipals: a rotated key is trusted until then only, under each of its names, and a
// line for another purpose stays as it is.
func TestRotateAllPrincipals(t *testing.T) {
	r := ring(t)
	s, err := r.Make(t.Context(), Caller, nil)
	if err != nil {
		t.Fatal(err)
	}
	git := `caller:git namespaces="git" ` + s.String() + "\n"
	list := "caller:a,caller:b " + s.String() + "\n" + git
	if err := os.WriteFile(r.Trusted(), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Rotate(t.Context(), Caller, nil); err != nil {
		t.Fatal(err)
	}
	trust, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Vouch(s.Public, Caller, time.Now().Add(time.Hour)); err == nil {
		t.Error("the old key is trusted for tomorrow")
	}
	if _, err := trust.Vouch(s.Public, Caller, time.Now().Add(-time.Hour)); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(r.Trusted()); err != nil || !strings.Contains(string(b), git) {
		t.Errorf("%v: %s", err, b)
	}
}

// TestHostileKeyFiles: keys that others can read, that are not where their name says, or that are
// not keys of turns, are refused before they are parsed, or with what is wrong.
func TestHostileKeyFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	_, good, err := generate("good", nil)
	if err != nil {
		t.Fatal(err)
	}
	marshal := func(private any) []byte {
		block, err := ssh.MarshalPrivateKey(private, "")
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(block)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, locked, err := generate("locked", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(write("target", good, 0o600), link); err != nil {
		t.Fatal(err)
	}
	wrong := func(string) ([]byte, error) { return []byte("wrong"), nil }
	for what, c := range map[string]struct{ path, why string }{
		"group":       {write("group", good, 0o640), "has mode 0640"},
		"everybody":   {write("all", good, 0o604), "has mode 0604"},
		"a symlink":   {link, "is a symbolic link"},
		"a folder":    {dir, ""},
		"a device":    {"/dev/null", ""},
		"RSA":         {write("rsa", marshal(rsaKey), 0o600), "ssh-rsa"},
		"ECDSA":       {write("ec", marshal(ecKey), 0o600), "ecdsa"},
		"public":      {write("pub", []byte(newKey(t).String()), 0o600), ""},
		"certificate": {write("cert", []byte(certificate(t)), 0o600), ""},
		"empty":       {write("empty", nil, 0o600), ""},
		"cut":         {write("cut", good[:len(good)/2], 0o600), ""},
		"large":       {write("large", append(bytes.Clone(good), make([]byte, maxFile)...), 0o600), "bytes"},
		"passphrase":  {write("locked", locked, 0o600), ""},
		"rounds":      {write("rounds", manyRounds(t, locked), 0o600), "rounds"},
	} {
		_, err := Load(c.path, wrong)
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := ring(t).Import(t.Context(), c.path); err == nil {
			t.Errorf("%s is imported", what)
		}
	}
	if os.Geteuid() == 0 {
		path := write("other", good, 0o600)
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), "another user") {
			t.Error(err)
		}
	}
}

// manyRounds returns the file of a key whose passphrase takes hours.
func manyRounds(t *testing.T, file []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(file)
	if n := rounds(file); n == 0 || n > maxRounds {
		t.Fatalf("%d rounds", n)
	}
	was := []byte{0, 0, 0, 24, 0, 0, 0, 16} // lengths of the options and of the salt
	i := bytes.Index(block.Bytes, was)
	if i < 0 {
		t.Fatal("there are no options")
	}
	copy(block.Bytes[i+len(was)+16:], []byte{0xff, 0xff, 0xff, 0xff})
	return pem.EncodeToMemory(block)
}

// unpaired returns the file of a key whose private and public key are not a pair.
func unpaired(t testing.TB) []byte {
	t.Helper()
	s, file, err := generate("unpaired", nil)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(file)
	wire := s.key.Marshal()
	public := wire[len(wire)-ed25519.PublicKeySize:]
	// the private key is the seed, followed by the public key
	seed := bytes.LastIndex(block.Bytes, public) - ed25519.SeedSize
	block.Bytes[seed] ^= 1
	return pem.EncodeToMemory(block)
}

// TestUnpairedKeyFile: a file whose private key is not that of its public key is refused before a
// turn begins.
func TestUnpairedKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, unpaired(t), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path, nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" ||
		!strings.Contains(fmt.Sprint(err), "does not belong to its public key") {
		t.Errorf("%v", err)
	}
}

// FuzzKeyFile: no file of a key makes its parser fail, or take long.
func FuzzKeyFile(f *testing.F) {
	for _, pass := range []string{"", "secret"} {
		_, b, err := generate("seed", []byte(pass))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(unpaired(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parsePrivate("key", b, func(string) ([]byte, error) {
			return nil, turnstone.Errorf("test", turnstone.KindCanceled, "", "no passphrase")
		})
		if err != nil {
			return
		}
		sig, err := s.Sign(context.Background(), []byte("data"))
		if err != nil || s.Verify(context.Background(), []byte("data"), sig) != nil {
			t.Errorf("%q: %v", b, err)
		}
	})
}

// FuzzRevoked: each line of the list of revoked keys is an error, or revokes a key.
func FuzzRevoked(f *testing.F) {
	k := newKey(f)
	f.Add(k.ID() + " lost")
	f.Add(k.String())
	f.Fuzz(func(t *testing.T, line string) {
		id, err := parseID(line)
		if err == nil && (len(id) != len(k.ID()) || !strings.HasPrefix(id, "SHA256:")) {
			t.Errorf("%q revokes %q", line, id)
		}
	})
}

// FuzzSignature: no signature of a security token makes its verifier fail, or verifies twice.
func FuzzSignature(f *testing.F) {
	s, good := signedByToken(f, "data")
	f.Add(good)
	f.Fuzz(func(t *testing.T, sig []byte) {
		if s.Verify(t.Context(), []byte("data"), sig) == nil && !bytes.Equal(sig, good) {
			t.Errorf("%x verifies", sig)
		}
	})
}
