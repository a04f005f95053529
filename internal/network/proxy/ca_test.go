package proxy

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

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

// TestCAClocks checks certificates with the clock of a guest that starts elsewhere in time.
func TestCAClocks(t *testing.T) {
	now := time.Now()
	for name, clock := range map[string]time.Time{"1970": time.Unix(0, 0),
		"2026": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		"2100": time.Date(2100, 12, 31, 0, 0, 0, 0, time.UTC)} {
		t.Run(name, func(t *testing.T) {
			ca, err := NewCA(clock)
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := ca.Leaf("api.example.com")
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(ca.PEM())
			for _, at := range []time.Time{now, clock, clock.Add(24 * time.Hour)} {
				if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at,
					DNSName: "api.example.com"}); err != nil {
					t.Errorf("at %s: %v", at, err)
				}
			}
		})
	}
}
