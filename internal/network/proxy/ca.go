package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
)

const (
	caTime     = 10 * 365 * 24 * time.Hour
	leafTime   = 90 * 24 * time.Hour
	clockSlack = 24 * time.Hour // a guest's clock may be behind by this time
	maxLeaves  = 1000           // certificates that are held at the same time
)

// A CA is the certificate authority of a sandbox: it signs certificates for the hosts whose TLS
// connections are intercepted. Its keys are only in this process's memory, and end with it. It is
// safe for concurrent use.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	leaf *ecdsa.PrivateKey // of all leaves, which have the same lifetime
	at   []time.Time       // what guests' clocks show, beside the host's time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// NewCA creates a certificate authority with a fresh key. Its certificates are valid at the host's
// time and at the times in clocks, which a guest with a clock of its own starts at.
func NewCA(clocks ...time.Time) (*CA, error) {
	fail := func(err error) (*CA, error) {
		return nil, turnstone.NewError("network.ca", turnstone.KindInternal,
			"certificate authority", err)
	}
	c := &CA{leaves: map[string]*tls.Certificate{}, at: clocks}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return fail(err)
	}
	if c.leaf, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return fail(err)
	}
	from, until := c.validity(caTime)
	tmpl := &x509.Certificate{SerialNumber: serial(),
		Subject:   pkix.Name{CommonName: "Turnstone sandbox", Organization: []string{"Turnstone"}},
		NotBefore: from, NotAfter: until, IsCA: true,
		BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &c.key.PublicKey, c.key)
	if err != nil {
		return fail(err)
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		return fail(err)
	}
	return c, nil
}

// validity returns a time that begins before each clock shows now, and lasts for d from the last.
func (c *CA) validity(d time.Duration) (from, until time.Time) {
	now := time.Now()
	from, until = now, now
	for _, t := range c.at {
		if t.Before(from) {
			from = t
		}
		if t.After(until) {
			until = t
		}
	}
	return from.Add(-clockSlack), until.Add(d)
}

// serial returns a random serial number of 127 bits (RFC 5280, section 4.1.2.2).
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	b[0] = b[0]&0x7f | 1
	return new(big.Int).SetBytes(b[:])
}

// PEM returns the authority's certificate, for clients that are to trust it.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

// Leaf returns a certificate for a host: a name, or an IP address. The error is of kind Invalid if
// the host cannot have a certificate.
func (c *CA) Leaf(host string) (*tls.Certificate, error) {
	host = network.BareName(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.leaves[host]; l != nil && time.Until(l.Leaf.NotAfter) > time.Hour {
		return l, nil
	}
	from, until := c.validity(leafTime)
	tmpl := &x509.Certificate{SerialNumber: serial(),
		Subject:   pkix.Name{Organization: []string{"Turnstone"}},
		NotBefore: from, NotAfter: until, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(host); ip != nil {
		tmpl.IPAddresses = []net.IP{ip}
	} else if err := network.CheckName(host); err != nil {
		return nil, turnstone.NewError("network.ca", turnstone.KindInvalid,
			fmt.Sprintf("%.80q", host), err)
	} else {
		tmpl.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, &c.leaf.PublicKey, c.key)
	if err != nil {
		return nil, turnstone.NewError("network.ca", turnstone.KindInternal, host, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, turnstone.NewError("network.ca", turnstone.KindInternal, host, err)
	}
	if len(c.leaves) >= maxLeaves {
		clear(c.leaves) // certificates are created again on demand
	}
	l := &tls.Certificate{Certificate: [][]byte{der, c.cert.Raw}, PrivateKey: c.leaf, Leaf: parsed}
	c.leaves[host] = l
	return l, nil
}
