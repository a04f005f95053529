package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"turnstone.dev/turnstone"
)

func TestKeyFile(t *testing.T) {
	s := newSetup(t)
	info, err := os.Stat(s.issuer.path)
	check(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v", info.Mode())
	}
	again, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
	check(t, err)
	if again.id != s.issuer.id {
		t.Error("the key changed")
	}
	files, err := os.ReadDir(filepath.Dir(s.issuer.path))
	check(t, err)
	if len(files) != 1 {
		t.Errorf("files are %v", files)
	}
}

// TestThumbprint compares with the example of RFC 8037, A.3, and with the library.
func TestThumbprint(t *testing.T) {
	x, err := b64.DecodeString("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
	check(t, err)
	if got := Thumbprint(x); got != "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" {
		t.Errorf("the thumbprint is %s", got)
	}
	s := newSetup(t)
	public := s.issuer.private.Public().(ed25519.PublicKey)
	jwk := jose.JSONWebKey{Key: public}
	sum, err := jwk.Thumbprint(5) // crypto.SHA256
	check(t, err)
	if got := b64.EncodeToString(sum); got != s.issuer.id {
		t.Errorf("the thumbprint is %s, the ID %s", got, s.issuer.id)
	}
}

func TestFirstUseAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys", "token")
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for n := range ids {
		wg.Go(func() {
			i, err := OpenIssuer(t.Context(), server, path, SystemClock())
			if err != nil {
				t.Error(err)
				return
			}
			ids[n] = i.id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("the keys are %v", ids)
		}
	}
}

// TestKeyFileRefused: files that others can read, and files that hold something else, are refused
// with errors that hold nothing of them.
func TestKeyFileRefused(t *testing.T) {
	_, good, err := newKey()
	check(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(curve)
	check(t, err)
	ec := pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})
	for name, c := range map[string]struct {
		content []byte
		mode    os.FileMode
	}{
		"readable": {good, 0o640}, "writable": {good, 0o602}, "empty": {nil, 0o600},
		"two keys": {append(append([]byte{}, good...), good...), 0o600}, "another type": {ec, 0o600},
		"damaged": {[]byte(strings.Replace(string(good), "MC4", "MD4", 1)), 0o600},
		"text":    {[]byte("SECRETSECRETSECRETSECRET"), 0o600},
		"large":   {make([]byte, maxKeyFile+1), 0o600},
	} {
		path := filepath.Join(t.TempDir(), "token")
		check(t, os.WriteFile(path, c.content, 0o600))
		check(t, os.Chmod(path, c.mode))
		_, err := OpenIssuer(t.Context(), server, path, SystemClock())
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text := err.Error() + turnstone.HintOf(err); strings.Contains(text, "MC4CAQ") ||
			strings.Contains(text, "SECRET") {
			t.Errorf("%s: the error holds the file: %s", name, text)
		}
		after, err := os.ReadFile(path)
		check(t, err)
		if string(after) != string(c.content) {
			t.Errorf("%s: the file was replaced", name)
		}
	}
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "real"), good, 0o600))
	check(t, os.Symlink("real", filepath.Join(dir, "token")))
	if _, err := OpenIssuer(t.Context(), server, filepath.Join(dir, "token"),
		SystemClock()); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a link: %v", err)
	}
	if _, err := OpenIssuer(t.Context(), server, dir, SystemClock()); err == nil {
		t.Error("a folder is a key")
	}
}

func TestOldKeysFileRefused(t *testing.T) {
	s := newSetup(t)
	check(t, s.publisher.Rotate(t.Context(), time.Time{}))
	path := s.issuer.path + ".old"
	b, err := os.ReadFile(path)
	check(t, err)
	for _, bad := range []string{"", "{}", "[{}]", `[{"kid":"x","x":"AAAA"}]`,
		strings.Replace(string(b), `"kid":"`, `"kid":"A`, 1)} {
		check(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	check(t, os.WriteFile(path, b, 0o600))
	check(t, os.Chmod(path, 0o622)) // who can write it can add a key
	if _, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock); err == nil {
		t.Error("a list that others can write is trusted")
	}
}

func TestIssueRefuses(t *testing.T) {
	s := newSetup(t)
	for name, change := range map[string]func(*Claims){
		"tenant":   func(c *Claims) { c.Tenant = "../x" },
		"subject":  func(c *Claims) { c.Subject = "a\nb" },
		"no scope": func(c *Claims) { c.Scopes = nil },
		"scope":    func(c *Claims) { c.Scopes = []Scope{"turns:fly"} },
		"session":  func(c *Claims) { c.Sessions = []Pattern{"["} },
		"sandbox":  func(c *Claims) { c.Sandbox = "sb_1" },
		"past":     func(c *Claims) { c.Expires = s.time.wallTime() },
		"no end":   func(c *Claims) { c.Expires = time.Time{} },
		"far":      func(c *Claims) { c.Expires = s.time.wallTime().Add(MaxTTL + time.Minute) },
		"large": func(c *Claims) {
			for range maxPatterns {
				c.Sessions = append(c.Sessions, Pattern(strings.Repeat("x", maxPattern)))
			}
			c.Sessions = c.Sessions[len(c.Sessions)-maxPatterns:]
		},
	} {
		c := s.usual()
		change(&c)
		if _, err := s.issuer.Issue(t.Context(), c); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "a b", "a\nb", strings.Repeat("x", 300)} {
		if _, err := OpenIssuer(t.Context(), name, s.issuer.path, s.clock); err == nil {
			t.Errorf("a server is called %q", name)
		}
	}
}

// TestShortest: the shortest lifetime can be had at any time of a second.
func TestShortest(t *testing.T) {
	s := newSetup(t)
	s.time.pass(500 * time.Millisecond)
	c := s.usual()
	c.Expires = s.time.wallTime().Add(MinTTL)
	if _, err := s.issuer.Issue(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestRotation: a rotated key's tokens are accepted until the time that was given, and no longer.
func TestRotation(t *testing.T) {
	s := newSetup(t)
	old := s.issue(t, s.usual()).Token.Reveal()
	long := s.usual()
	long.Expires = s.time.wallTime().Add(24 * time.Hour)
	outlives := s.issue(t, long).Token.Reveal()
	was := s.issuer.private
	check(t, s.publisher.Rotate(t.Context(), s.time.wallTime().Add(time.Hour)))
	if s.issuer.private.Equal(was) || len(s.issuer.Keys()) != 2 {
		t.Fatal("the key is the same")
	}
	fresh := s.issue(t, s.usual()).Token.Reveal()
	for _, token := range []string{old, outlives, fresh} {
		s.accepted(t, token)
	}
	again, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
	check(t, err)
	if again.id != s.issuer.id || len(again.Keys()) != 2 {
		t.Errorf("after a restart the keys are %v", again.Keys())
	}
	s.time.pass(time.Hour + DefaultLeeway)
	check(t, s.publisher.Beat(t.Context()))
	s.refused(t, outlives, UnknownKey) // the token is not expired, its key has ended
	s.time.pass(2 * time.Hour)
	if len(s.issuer.Keys()) != 1 {
		t.Errorf("the keys are %v", s.issuer.Keys())
	}
	// Without keeping the old key, its tokens end at once.
	now := s.usual()
	token := s.issue(t, now).Token.Reveal()
	check(t, s.publisher.Rotate(t.Context(), s.time.wallTime().Add(-time.Minute)))
	s.refused(t, token, UnknownKey)
	for range maxOwnKeys {
		err = s.publisher.Rotate(t.Context(), time.Time{})
	}
	if turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("the keys are not bounded: %v", err)
	}
	s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
}

// TestRotationFails: a key that the followers were not told of signs nothing.
func TestRotationFails(t *testing.T) {
	s := newSetup(t)
	id, b := s.issuer.id, errors.New("the database is gone")
	s.register.fail = b
	if err := s.publisher.Rotate(t.Context(), time.Time{}); !errors.Is(err, b) {
		t.Errorf("the error is %v", err)
	}
	s.register.fail = nil
	again, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
	check(t, err)
	if s.issuer.id != id || again.id != id || len(again.Keys()) != 1 {
		t.Error("the key changed")
	}
	// A crash between the two files: the old key is in both, and stays in use.
	check(t, s.issuer.write([]OwnKey{{ID: id, Key: s.issuer.private.Public().(ed25519.PublicKey),
		Until: s.time.wallTime()}}, mustEncode(t, s.issuer.private)))
	again, err = OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
	check(t, err)
	if keys := again.Keys(); len(keys) != 1 || !keys[0].Until.IsZero() {
		t.Errorf("the keys are %v", keys)
	}
}

func mustEncode(t *testing.T, k ed25519.PrivateKey) []byte {
	b, err := encodePrivate(k)
	check(t, err)
	return b
}

// TestRotationAtOnce: processes that rotate at the same time lose no key.
func TestRotationAtOnce(t *testing.T) {
	s := newSetup(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			i, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
			if err == nil {
				err = i.Rotate(context.Background(), time.Time{}, nil)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	again, err := OpenIssuer(t.Context(), server, s.issuer.path, s.clock)
	check(t, err)
	if len(again.Keys()) != 5 {
		t.Errorf("the keys are %v", again.Keys())
	}
}
