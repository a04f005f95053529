package tlsfiles

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair returns a certificate for a name, and its key.
func pair(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	check(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	check(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

func write(t *testing.T, dir, name string) {
	t.Helper()
	c, k := pair(t, name)
	check(t, os.MkdirAll(dir, 0o700))
	check(t, os.WriteFile(filepath.Join(dir, "tls.crt"), c, 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "tls.key"), k, 0o600))
}

// A watched has what a watcher reported.
type watched struct {
	*Watcher
	reports []string
}

func watch(t *testing.T, dir string) *watched {
	t.Helper()
	w := &watched{}
	var err error
	w.Watcher, err = Open(Files{Certificate: filepath.Join(dir, "tls.crt"),
		Key: filepath.Join(dir, "tls.key")}, func(err error) {
		w.reports = append(w.reports, err.Error())
	})
	check(t, err)
	return w
}

// name returns whose certificate is in use; the watcher looks at the files.
func (w *watched) name(t *testing.T) string {
	t.Helper()
	w.mu.Lock()
	w.looked = time.Time{}
	w.mu.Unlock()
	c, err := w.Server().GetCertificate(nil)
	check(t, err)
	return c.Leaf.Subject.CommonName
}

// TestKubernetes replaces a folder as a mounted secret is replaced: the files are links into
// ..data, which is a link that is renamed over. Both files have the old time and size.
func TestKubernetes(t *testing.T) {
	dir := t.TempDir()
	use := func(version string) {
		next := filepath.Join(dir, "..next")
		check(t, os.Symlink(version, next))
		check(t, os.Rename(next, filepath.Join(dir, "..data")))
	}
	then := time.Now().Add(-time.Hour)
	for _, name := range []string{"one", "two"} {
		write(t, filepath.Join(dir, "..v"+name), name)
		for _, file := range []string{"tls.crt", "tls.key"} {
			check(t, os.Chtimes(filepath.Join(dir, "..v"+name, file), then, then))
		}
	}
	use("..vone")
	for _, file := range []string{"tls.crt", "tls.key"} {
		check(t, os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)))
	}
	w := watch(t, dir)
	if n := w.name(t); n != "one" {
		t.Fatal(n)
	}
	use("..vtwo")
	if n := w.name(t); n != "two" || len(w.reports) > 0 {
		t.Fatal(n, w.reports)
	}
}

// TestBrokenFiles keeps the old certificate while the new files cannot be used, reports each
// problem once, and takes the files as soon as they can be used.
func TestBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "old")
	w := watch(t, dir)
	c, k := pair(t, "new")
	at, atKey := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for name, breaks := range map[string]func(){
		"only one file is new": func() { check(t, os.WriteFile(at, c, 0o600)) },
		"no certificate":       func() { check(t, os.WriteFile(at, []byte("x"), 0o600)) },
		"half a certificate":   func() { check(t, os.WriteFile(at, c[:100], 0o600)) },
		"an empty file":        func() { check(t, os.WriteFile(at, nil, 0o600)) }, // a full disk
		"no file":              func() { check(t, os.Remove(at)) },
		"a folder":             func() { _ = os.Remove(at); check(t, os.Mkdir(at, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			write(t, dir, "old")
			if n := w.name(t); n != "old" {
				t.Fatal(n)
			}
			w.reports = nil
			breaks()
			for range 3 {
				if n := w.name(t); n != "old" {
					t.Fatal(n)
				}
			}
			if len(w.reports) != 1 || strings.Contains(w.reports[0], "PRIVATE") {
				t.Errorf("reports: %q", w.reports)
			}
			_ = os.Remove(at)
		})
	}
	check(t, os.WriteFile(at, c, 0o600))
	check(t, os.WriteFile(atKey, k, 0o600))
	if n := w.name(t); n != "new" {
		t.Fatal(n)
	}
}

// TestOpen refuses files that cannot be used.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "x")
	at := filepath.Join(dir, "tls.crt")
	for _, f := range []Files{{Certificate: at, Key: at}, {Certificate: at, Key: dir},
		{Certificate: filepath.Join(dir, "none"), Key: at}, {Authority: filepath.Join(dir, "tls.key")}} {
		if _, err := Open(f, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
	w, err := Open(Files{Authority: at}, nil)
	check(t, err)
	if _, err := w.Server().GetCertificate(nil); err == nil || w.State().Authority == nil {
		t.Error(err)
	}
	var e *turnstone.Error
	if !errors.As(failed("x", errors.New("y")), &e) || e.Hint == "" {
		t.Error("no hint")
	}
}
