package gateway

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	mrand "math/rand/v2"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

// withTLS gives a scene a certificate.
func withTLS(t testing.TB) change {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"turn.example.org"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	check(t, err)
	leaf, err := x509.ParseCertificate(der)
	check(t, err)
	pair := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}
	return func(_ *Options, o *ServeOptions) {
		o.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return pair, nil
		}}
	}
}

// encode returns a block of fields for HTTP/2.
func encode(t testing.TB, fields ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		check(t, e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return b.Bytes()
}

func gzipped(t testing.TB, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(p)
	check(t, err)
	check(t, w.Close())
	return b.Bytes()
}

// noise returns bytes that look random and are the same each time.
func noise(seed, n int) []byte {
	r, b := mrand.New(mrand.NewPCG(uint64(seed), 1)), make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
