package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// output is a log that is read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// certificate writes a new certificate for localhost, and returns what trusts it.
func certificate(t *testing.T, cert, key string, serial int64) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	pool, parsed := x509.NewCertPool(), (*x509.Certificate)(nil)
	parsed, err = x509.ParseCertificate(der)
	must(t, err)
	pool.AddCert(parsed)
	return pool
}

// TestRouterTLS: with a certificate the router speaks HTTPS only, and a new one replaces it.
func TestRouterTLS(t *testing.T) {
	dir, out := t.TempDir(), &output{}
	f := flags{Router: "127.0.0.1:0", Cert: filepath.Join(dir, "tls.crt"), CertKey: filepath.Join(dir, "tls.key")}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	log := slog.New(slog.NewTextHandler(out, nil))
	if err := f.listener(hello, log).Start(t.Context()); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatalf("without the files: %v", err)
	}
	trust := certificate(t, f.Cert, f.CertKey, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.listener(hello, log).Start(ctx) }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waiting until %s: %s", what, out)
			}
		}
	}
	at := regexp.MustCompile(`address=127\.0\.0\.1:(\d+)`)
	until("it listens", func() bool { return at.MatchString(out.String()) })
	port := at.FindStringSubmatch(out.String())[1]
	get := func(url string, trust *x509.CertPool) string {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, DisableKeepAlives: true}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+port, nil)
		must(t, err)
		a, err := c.Do(r)
		if err != nil {
			return ""
		}
		defer func() { _ = a.Body.Close() }()
		b, _ := io.ReadAll(a.Body)
		return string(b)
	}
	if got := get("https://localhost:", trust); got != "hello" {
		t.Errorf("the answer is %q", got)
	}
	if got := get("http://localhost:", trust); got == "hello" {
		t.Error("it answers without TLS")
	}
	next := certificate(t, f.Cert, f.CertKey, 2)
	until("the new certificate is there", func() bool { return get("https://localhost:", next) == "hello" })
	cancel()
	must(t, <-ended)
}
