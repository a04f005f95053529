package hostkeys

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring/vaulttest"
	"turnstone.dev/turnstone/internal/statedir"
)

func keys(t *testing.T, config string) *Keys {
	t.Helper()
	dir := &statedir.Dir{Root: t.TempDir()}
	if err := os.WriteFile(dir.Path("config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	k := New(dir, nil, "")
	t.Cleanup(func() {
		k.Close()
		if dir.HasMemory() {
			_ = dir.ForgetMemory()
		}
	})
	return k
}

// gone waits until a folder does not exist.
func gone(t *testing.T, path string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err != nil {
			return
		}
	}
	t.Fatalf("%s stays", path)
}

// TestForgotten: a key that a client sent opens its domains and keeps its folder in memory until the
// last use, and for the idle time after.
func TestForgotten(t *testing.T) {
	k := keys(t, "[keys]\nseal = \"session\"\nwrap = \"client\"\nidle = \"5s\"\n")
	secret := make([]byte, 32)
	secret[0] = 1
	name, err := k.Give(secret)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	with, err := k.With(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	id, err := k.New(with)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := k.Memory(with, "ticket")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	cancel()
	gone(t, filepath.Dir(dir))
	if _, err := k.Open(t.Context(), id); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a domain whose client's key was forgotten: %v", err)
	}
	if _, err := k.With(t.Context(), name); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a key that was forgotten: %v", err)
	}
}

// TestSweep: what a killed process left in memory for a client's key goes.
func TestSweep(t *testing.T) {
	k := keys(t, "[keys]\nseal = \"session\"\nwrap = \"client\"\nidle = \"1s\"\n")
	dir, err := k.dir.Memory(clients, "client:0123", "ticket")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Sweep(); err != nil {
		t.Fatal(err)
	}
	gone(t, filepath.Dir(dir))
}

// TestRefused: a key is refused where it would seal nothing.
func TestRefused(t *testing.T) {
	for _, config := range []string{"", "[keys]\nseal = \"session\"\n", "[keys]\nwrap = \"client\"\n"} {
		k := keys(t, config)
		if _, err := k.Give(make([]byte, 32)); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v", config, err)
		}
	}
	k := keys(t, "[keys]\nseal = \"one\"\nwrap = \"client\"\n")
	for _, size := range []int{0, 31, 32} { // zeros
		if _, err := k.Give(make([]byte, size)); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%d zeros: %v", size, err)
		}
	}
}

// TestVaultToken: without vault.token the token of the options is shown to Vault, and a wrong one, or
// none, is said plainly.
func TestVaultToken(t *testing.T) {
	s := vaulttest.Serve(t)
	s.Make("turnstone", true)
	token, err := os.ReadFile(s.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("[keys]\nseal = \"session\"\nwrap = \"vault\"\n[vault]\naddress = %q\nca = %q\n"+
		"namespace = %q\nkey = \"turnstone\"\n", s.URL, s.CA, s.Namespace)
	for text, works := range map[string]bool{strings.TrimSpace(string(token)): true, "wrong": false,
		"": false} {
		k := keys(t, config)
		k.token = text
		id, err := k.New(t.Context())
		if works {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := k.Open(t.Context(), id); err != nil {
				t.Error(err)
			}
		} else if err == nil || turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
}
