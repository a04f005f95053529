package hostca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// authority creates a certificate, as PEM, and a key.
func authority(t testing.TB, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})
}

func public() []byte {
	var b bytes.Buffer
	for r := range bundle.Roots() {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate})
	}
	return b.Bytes()
}

func write(t testing.TB, path string, content ...[]byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Join(content, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func names(certs []*x509.Certificate) string {
	var all []string
	for _, c := range certs {
		all = append(all, Name(c))
	}
	return strings.Join(all, ", ")
}

// TestOwn finds the additional trusted authorities in every place where a host can have them.
func TestOwn(t *testing.T) {
	root := t.TempDir()
	company, key := authority(t, "Company \x1b[2J CA")
	second, _ := authority(t, "Second")
	env := map[string]string{}
	h := Host{Root: root, Getenv: func(name string) string { return env[name] }}
	if got := h.Own(); len(got) != 0 {
		t.Errorf("of nothing: %s", names(got))
	}
	system := write(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"), public())
	if got := h.Own(); len(got) != 0 {
		t.Errorf("of the public ones: %s", names(got))
	}
	write(t, system, public(),
		[]byte("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"),
		key, company, company)
	own := h.Own()
	if got := names(own); got != "Company  [2J CA" {
		t.Errorf("of a company: %q", got)
	}
	if b := PEM(own); !bytes.Contains(b, company) || bytes.Contains(b, []byte("PRIVATE")) ||
		bytes.ContainsRune(b, 0x1b) {
		t.Errorf("written: %s", b)
	}
	if got := missing(own, append(public(), company...)); len(got) != 0 {
		t.Errorf("missing in a bundle that has it: %s", names(got))
	}
	if got := missing(own, public()); len(got) != 1 {
		t.Errorf("missing: %s", names(got))
	}
	env["SSL_CERT_DIR"] = "/etc/ssl/certs:" +
		filepath.Dir(write(t, filepath.Join(root, "more/second.pem"), second))
	write(t, filepath.Join(root, "more/readme"), []byte("no certificate"))
	if got := names(h.Own()); got != "Company  [2J CA, Second" {
		t.Errorf("with a folder: %q", got)
	}
	env["SSL_CERT_FILE"] = write(t, filepath.Join(root, "mine.pem"), second)
	if _, path := h.Bundle(); path != env["SSL_CERT_FILE"] {
		t.Errorf("the bundle is %s", path)
	}
	if got := names(h.Own()); got != "Second" {
		t.Errorf("of a named file: %q", got)
	}
	env["SSL_CERT_FILE"] = root // no file: the distribution's file is used
	if _, path := h.Bundle(); path != system {
		t.Errorf("the bundle is %s", path)
	}
}

// TestOwnIsBounded: a host's files use bounded resources.
func TestOwnIsBounded(t *testing.T) {
	root := t.TempDir()
	var many [][]byte
	for range maxOwn + 10 {
		c, _ := authority(t, "One of many")
		many = append(many, c)
	}
	path := write(t, filepath.Join(root, "many.pem"), many...)
	h := Host{Root: root,
		Getenv: func(name string) string { return map[string]string{"SSL_CERT_FILE": path}[name] }}
	if got := len(h.Own()); got != maxOwn {
		t.Errorf("%d certificates", got)
	}
	write(t, path, many[0], bytes.Repeat([]byte("x"), maxFile))
	if b, _ := h.Bundle(); b != nil {
		t.Errorf("%d bytes", len(b))
	}
}

// TestOwnIsRemembered: the stored result is equal, until the host's file changes.
func TestOwnIsRemembered(t *testing.T) {
	root := t.TempDir()
	company, _ := authority(t, "Company")
	dropped, _ := authority(t, "Dropped by Mozilla")
	path := write(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"),
		public(), dropped, company)
	write(t, filepath.Join(root, "usr/share/ca-certificates/mozilla/dropped.crt"), dropped)
	h := Host{Root: root, Getenv: func(string) string { return "" },
		Cache: filepath.Join(root, "cache")}
	for range 2 {
		if got := names(h.Own()); got != "Company" {
			t.Errorf("%q", got)
		}
	}
	b, err := os.ReadFile(h.Cache)
	if err != nil {
		t.Fatal(err)
	}
	// damaged: Own computes the result again
	write(t, h.Cache, bytes.Replace(b, []byte(`"own":"`), []byte(`"own":"!`), 1))
	if got := names(h.Own()); got != "Company" {
		t.Errorf("of a broken memory: %q", got)
	}
	write(t, path, public(), dropped)
	if got := names(h.Own()); got != "" {
		t.Errorf("after a change: %q", got)
	}
}

func BenchmarkOwn(b *testing.B) {
	for b.Loop() {
		Host{}.Own()
	}
}

func BenchmarkOwnRemembered(b *testing.B) {
	h := Host{Cache: filepath.Join(b.TempDir(), "cache")}
	for b.Loop() {
		h.Own()
	}
}

func FuzzOwn(f *testing.F) {
	c, k := authority(f, "a")
	f.Add(append(c, k...))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "bundle")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		own := Host{Root: t.TempDir(),
			Getenv: func(name string) string {
				return map[string]string{
					"SSL_CERT_FILE": path}[name]
			}}.Own()
		if text := PEM(own); bytes.Contains(text, []byte("KEY-----")) ||
			len(missing(own, text)) != 0 {
			t.Fatalf("%q becomes %q", b, text)
		}
	})
}

// missing returns the certificates of certs that are not in a PEM bundle.
func missing(certs []*x509.Certificate, in []byte) (out []*x509.Certificate) {
	has := map[string]bool{}
	for der := range certificates(in) {
		has[string(der)] = true
	}
	for _, c := range certs {
		if !has[string(c.Raw)] {
			out = append(out, c)
		}
	}
	return out
}
