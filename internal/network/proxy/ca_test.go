package proxy

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

func TestCA(t *testing.T) {
	ca, other := testCA(t), testCA(t)
	block, _ := pem.Decode(ca.PEM())
	if block == nil || bytes.Equal(ca.PEM(), other.PEM()) {
		t.Fatal("no certificate of its own")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	for _, host := range []string{"api.example.com", "192.0.2.1", "2001:db8::1"} {
		leaf, err := ca.Leaf(strings.ToUpper(host))
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "other.example.com",
			Roots: roots}); err == nil {
			t.Errorf("%s: good for another host", host)
		}
		if leaf.Leaf.IsCA {
			t.Errorf("%s: may sign others", host)
		}
	}
	for _, host := range []string{"", "a b", "*.example.com", strings.Repeat("a", 300)} {
		if _, err := ca.Leaf(host); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%.20q: %v", host, err)
		}
	}
	for i := range 3 * maxLeaves / 2 {
		if _, err := ca.Leaf("h" + strings.Repeat("x", i%50) + ".example.com"); err != nil {
			t.Fatal(err)
		}
	}
	if len(ca.leaves) > maxLeaves {
		t.Errorf("%d certificates are held", len(ca.leaves))
	}
}
