package ringconfig_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/keyring/vaulttest"
	"turnstone.dev/turnstone/internal/statedir"
)

func open(t *testing.T, o ringconfig.Options) *ringconfig.Keyring {
	t.Helper()
	k, err := ringconfig.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func create(t *testing.T, k *ringconfig.Keyring) (keyring.ID, []byte) {
	t.Helper()
	o, err := k.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	return o.ID(), o.Key().Bytes()
}

func same(t *testing.T, k *ringconfig.Keyring, id keyring.ID, key []byte) {
	t.Helper()
	o, err := k.Ring.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if !bytes.Equal(o.Key().Bytes(), key) {
		t.Error("another key")
	}
}

// TestMove: keys move from the file to Vault, to identities of the operator, and back, without a
// moment in which they cannot be read.
func TestMove(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	s := vaulttest.Serve(t)
	s.Make("turnstone-acme", true)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Path("ids"), []byte(id.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	o := ringconfig.Options{Dir: dir, Tenant: "acme", Token: s.Token}
	first := open(t, o)
	if entries, err := os.ReadDir(dir.Root); err != nil || len(entries) != 1 {
		t.Errorf("Open made files: %v, %v", entries, err)
	}
	domain, key := create(t, first)
	o.Vault = keyring.VaultSettings{Address: s.URL, CA: s.CA, Key: "turnstone-{tenant}",
		Timeout: time.Minute}
	o.Settings.Identities = "ids" // below the state directory
	for _, kind := range []string{"vault", "age-plugin", "vault", "file"} {
		o.Settings.Wrap = kind
		k := open(t, o)
		same(t, k, domain, key)
		if err := k.Rewrap(t.Context(), func(_ keyring.ID, changed bool, err error) error {
			if !changed || err != nil {
				t.Errorf("to %s: %v, %v", kind, changed, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		rec, err := k.Table().Get(domain)
		if err != nil || len(rec.Wrappings) != 1 || string(rec.Wrappings[0].Kind) != kind {
			t.Errorf("to %s: %v, %v", kind, rec, err)
		}
		same(t, open(t, o), domain, key)
		same(t, first, domain, key) // in memory
	}
}

// TestLost: a keyring that is missing and wraps keys is not made anew.
func TestLost(t *testing.T) {
	o := ringconfig.Options{Dir: &statedir.Dir{Root: t.TempDir()}}
	domain, _ := create(t, open(t, o))
	if err := os.Remove(o.Dir.Path("keys", "rest")); err != nil {
		t.Fatal(err)
	}
	k := open(t, o)
	_, err := k.Create(t.Context())
	if turnstone.KindOf(err) != turnstone.KindNotFound || !strings.Contains(err.Error(), "lost") {
		t.Errorf("%v", err)
	}
	if err := k.Shred(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	create(t, k) // nothing needs the lost one
}

func TestPassphraseFile(t *testing.T) {
	o := ringconfig.Options{Dir: &statedir.Dir{Root: t.TempDir()}}
	o.Settings.Passphrase = "pass"
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(o.Dir.Path("pass"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(o.Dir.Path("pass"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(t, o).File.SetPassphrase(t.Context(), []byte("secret")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{{"secret", 0o604, "all users"}, {"", 0o600, "0 bytes"}, {"wrong", 0o600, "not opened by this passphrase"},
		{strings.Repeat("x", 5000), 0o600, "bytes"}} {
		write(c.text, c.mode)
		_, err := open(t, o).Create(t.Context())
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	write("secret\nanother line\n", 0o640)
	domain, key := create(t, open(t, o))
	same(t, open(t, o), domain, key)
}

func TestRefuses(t *testing.T) {
	for name, change := range map[string]func(*ringconfig.Options){
		"keys.wrap":     func(o *ringconfig.Options) { o.Settings.Wrap = "x" },
		"vault.address": func(o *ringconfig.Options) { o.Vault = keyring.VaultSettings{Address: "x", Key: "k"} },
		"vault.token": func(o *ringconfig.Options) {
			o.Vault = keyring.VaultSettings{Address: "https://vault.example.org", Key: "k"}
		},
		"vault.key": func(o *ringconfig.Options) {
			o.Vault, o.Token, o.Tenant = keyring.VaultSettings{Address: "https://vault.example.org",
				Key: "k-{tenant}"}, "x", "../x"
		},
		"recipient": func(o *ringconfig.Options) { o.Settings.Recovery = []string{"x"} },
		"ids":       func(o *ringconfig.Options) { o.Settings.Identities = "ids" },
	} {
		o := ringconfig.Options{Dir: &statedir.Dir{Root: t.TempDir()}}
		change(&o)
		_, err := ringconfig.Open(o)
		if k := turnstone.KindOf(err); k != turnstone.KindInvalid && k != turnstone.KindNotFound ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
