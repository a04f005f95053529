// Package peerstest makes certificates of roles for tests.
package peerstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/server/config"
)

// An Authority signs certificates.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// File is the authority's certificate as PEM.
	File string
}

// New returns an authority of its own.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, File: filepath.Join(t.TempDir(), "ca.crt")}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.check(err)
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	a.check(err)
	a.cert, err = x509.ParseCertificate(der)
	a.check(err)
	a.write(a.File, "CERTIFICATE", der)
	return a
}

func (a *Authority) check(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *Authority) write(path, kind string, der []byte) {
	a.t.Helper()
	a.check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// Issue returns settings with a certificate that has these DNS names and is valid on loopback
// addresses.
func (a *Authority) Issue(names ...string) config.Peers {
	a.t.Helper()
	p := config.Peers{Authority: a.File}
	dir := a.t.TempDir()
	p.Certificate, p.Key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	a.Renew(p, names...)
	return p
}

// Renew replaces the certificate of p.
func (a *Authority) Renew(p config.Peers, names ...string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.check(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	a.check(err)
	cert := &x509.Certificate{SerialNumber: serial, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	a.check(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	a.check(err)
	a.write(p.Certificate, "CERTIFICATE", der)
	a.write(p.Key, "PRIVATE KEY", secret)
}
