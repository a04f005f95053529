package main

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone/internal/remote/hosts"
)

// TestSecrets: files as a kubelet mounts them, links that a group can read, become files that the
// operator accepts; a new token replaces the old one.
func TestSecrets(t *testing.T) {
	from, home := t.TempDir(), filepath.Join(t.TempDir(), "home")
	mount := func(version string, files map[string]string) {
		t.Helper()
		dir := filepath.Join(from, version)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o440); err != nil {
				t.Fatal(err)
			}
			link := filepath.Join(from, name)
			_ = os.Remove(link)
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				t.Fatal(err)
			}
		}
		_ = os.Remove(filepath.Join(from, "..data"))
		if err := os.Symlink(version, filepath.Join(from, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	s := &secrets{from: from, home: home}
	mount("..1", map[string]string{"hosts.toml": "", tokenName: "one\n"})
	if err := s.take(); err == nil {
		t.Error("a secret without a key")
	}
	mount("..2", map[string]string{"hosts.toml": "", "key": "k\n", tokenName: "two\n"})
	if err := s.take(); err != nil {
		t.Fatal(err)
	}
	if token, err := hosts.ReadToken(s.tokenFile()); err != nil || token != "two" {
		t.Errorf("%q, %v", token, err)
	}
	for _, place := range places {
		if info, err := os.Lstat(filepath.Join(home, place)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", place, info, err)
		}
	}
	mount("..3", map[string]string{"hosts.toml": "", "key": "k\n", tokenName: "three\n"})
	if err := s.copy(tokenName); err != nil {
		t.Fatal(err)
	}
	if token, err := hosts.ReadToken(s.tokenFile()); err != nil || token != "three" {
		t.Errorf("%q, %v", token, err)
	}
	// The successor that this process has stored is not replaced by the old token, which is still mounted, and
	// what comes after is.
	if err := inFile(s.tokenFile())("four"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"four", "five"} {
		if err := s.copy(tokenName); err != nil {
			t.Fatal(err)
		}
		if token, err := hosts.ReadToken(s.tokenFile()); err != nil || token != want {
			t.Errorf("%q, %v", token, err)
		}
		if want == "four" {
			mount("..4", map[string]string{"hosts.toml": "", "key": "k\n", tokenName: "five\n"})
		}
	}
}
