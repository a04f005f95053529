package certificate

import (
	"bytes"
	"crypto/ed25519"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
)

func signer(t *testing.T, seed byte) *key.Signer {
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

func certify(t *testing.T, node byte, name string, epoch uint64, from time.Time) []byte {
	t.Helper()
	b, err := attest.SignCertificate(t.Context(), attest.Certificate{Node: name,
		Key: signer(t, node).String(), Epoch: epoch, Time: from, Expires: from.Add(time.Hour)},
		signer(t, 10))
	if err != nil {
		t.Fatal(err)
	}
	return attest.JoinChain(b, nil)
}

// TestCertificate: a node shows the newest certificate of its own key, and keeps the last one when a
// file is not one of them.
func TestCertificate(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	path := filepath.Join(dir, "node.cert")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	open := func() (*File, error) {
		return Open(path, "n1", signer(t, 1).Public, logger)
	}
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := Open("", "n1", signer(t, 1).Public, logger); err != nil || c.Text() != nil ||
		c.Reload() != nil {
		t.Errorf("a node without one: %v", err)
	}
	good := certify(t, 1, "n1", 1, now)
	bad := map[string][]byte{"another node's key": certify(t, 2, "n1", 1, now),
		"another name": certify(t, 1, "n2", 1, now), "cut": good[:len(good)-2], "empty": {},
		"huge": bytes.Repeat([]byte("x"), attest.MaxChain+1)}
	if _, err := open(); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a missing file: %v", err)
	}
	for name, text := range bad {
		write(text)
		if _, err := open(); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(good)
	c, err := open()
	if err != nil || !bytes.Equal(c.Text(), good) {
		t.Fatal(err)
	}
	for name, text := range bad {
		write(text)
		c.looked = time.Time{} // the next look is now
		if !bytes.Equal(c.Text(), good) {
			t.Errorf("%s is shown", name)
		}
		if !strings.Contains(log.String(), "not in use") {
			t.Errorf("%s: %s", name, &log)
		}
		if c.Reload() == nil {
			t.Errorf("%s is read", name)
		}
		log.Reset()
		c.failed = ""
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.looked = time.Time{}
	if !bytes.Equal(c.Text(), good) {
		t.Error("the certificate is gone with its file")
	}
	next := certify(t, 1, "", 2, now)
	write(next)
	c.looked = time.Time{}
	if !bytes.Equal(c.Text(), next) {
		t.Error("a changed file is not read")
	}
	log.Reset()
	write(certify(t, 1, "n1", 3, now.Add(-2*time.Hour)))
	if err := c.Reload(); err != nil || !strings.Contains(log.String(), "not valid now") {
		t.Errorf("an expired certificate: %v, %s", err, &log)
	}
	// a mounted secret is a link to a file in a folder that changes
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for i, text := range [][]byte{good, next} {
		real := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(real, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path)
		if err := os.Symlink(real, path); err != nil {
			t.Fatal(err)
		}
		c.looked = time.Time{}
		if !bytes.Equal(c.Text(), text) {
			t.Errorf("link %d is not read", i)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Reload(); err == nil {
		t.Error("a folder is a certificate")
	}
}

// TestRunsOut: a node whose certificate runs out while it is in use says so, once.
func TestRunsOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.cert")
	var log bytes.Buffer
	write := func(from time.Time) {
		t.Helper()
		if err := os.WriteFile(path, certify(t, 1, "n1", 1, from), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *File {
		t.Helper()
		c, err := Open(path, "n1", signer(t, 1).Public, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// it ends within two seconds; on a machine that took longer to open it another one does
	write(time.Now().Add(2*time.Second - time.Hour))
	c := open()
	for !time.Now().Before(c.valid.Expires) {
		log.Reset()
		write(time.Now().Add(2*time.Second - time.Hour))
		c = open()
	}
	if log.Len() > 0 {
		t.Fatal(&log)
	}
	look := func() {
		c.looked = time.Time{}
		c.Text()
	}
	for look(); time.Now().Before(c.valid.Expires); look() {
		time.Sleep(10 * time.Millisecond)
	}
	for range 3 {
		look()
	}
	if n := strings.Count(log.String(), "not valid now"); n != 1 {
		t.Errorf("it says so %d times: %s", n, &log)
	}
	log.Reset()
	write(time.Now())
	if look(); log.Len() > 0 {
		t.Errorf("a new one: %s", &log)
	}
	write(time.Now().Add(time.Hour))
	if look(); !strings.Contains(log.String(), "not valid now") {
		t.Errorf("an early one: %s", &log)
	}
}
