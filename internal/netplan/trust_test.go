package netplan

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/statedir"
)

// ownAuthority makes this process trust its own authority.
func ownAuthority(t *testing.T) *x509.Certificate {
	t.Helper()
	ca, err := proxy.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(path, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", path)
	t.Setenv("SSL_CERT_DIR", "")
	block, _ := pem.Decode(ca.PEM())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestHostAuthorities checks that a sandbox trusts the host's authorities unless the user or the
// image decides otherwise, and that later turns inherit no variable of them.
func TestHostAuthorities(t *testing.T) {
	cert := ownAuthority(t)
	host := Authorities(&statedir.Dir{Root: t.TempDir()})
	env := []string{"PATH=/bin", "CURL_CA_BUNDLE=/mine.pem"}
	n := NewLink(Rules{}, nil)
	more, err := n.Trust(host, env)
	if err != nil || len(n.HostCA) != 1 || !n.HostCA[0].Equal(cert) || n.CA != nil {
		t.Fatalf("%q, %v, %v", more, n.HostCA, err)
	}
	if want := []string{"SSL_CERT_FILE=" + hostca.GuestPath,
		"REQUESTS_CA_BUNDLE=" + hostca.GuestPath, "NODE_EXTRA_CA_CERTS=" + hostca.GuestPath,
		"GIT_SSL_CAINFO=" + hostca.GuestPath}; !slices.Equal(more, want) {
		t.Errorf("variables %q", more)
	}
	if n.Bundle != hostca.GuestBundle {
		t.Errorf("beside %s", n.Bundle)
	}
	if left := n.Inherited(append(slices.Clone(env), more...)); !slices.Equal(left, env) {
		t.Errorf("a later turn gets %q", left)
	}
	// An image's own certificates replace the host's.
	if left := n.GiveWay(more, []string{"SSL_CERT_FILE=/opt/conda/cacert.pem"}); strings.Contains(
		strings.Join(left, " "), "SSL_CERT_FILE") || len(left) != 3 {
		t.Errorf("over the image's: %q", left)
	}
	// Switched off, in a replay, and on a host without authorities.
	for what, n := range map[string]*Link{"off": NewLink(
		Rules{Spec: turnstone.NetworkSpec{NoHostCA: true}},
		nil), "a replay": {player: recording.NewPlayer(&recording.Recording{}, nil, nil)}} {
		if more, err := n.Trust(host, env); err != nil || len(more) != 0 || len(n.HostCA) != 0 {
			t.Errorf("%s: %q, %v", what, more, err)
		}
	}
	// With an authority of the sandbox's own, all variables name both.
	n = NewLink(Rules{Spec: turnstone.NetworkSpec{Open: true}}, nil)
	if more, err := n.Trust(host, env); err != nil || len(more) != len(caVariables) ||
		len(n.HostCA) != 1 || n.CA == nil {
		t.Errorf("opened: %q, %v", more, err)
	}
	if left := n.Inherited(append(slices.Clone(env),
		"CURL_CA_BUNDLE="+hostca.GuestPath)); !slices.Contains(left, "CURL_CA_BUNDLE=/mine.pem") {
		t.Errorf("a later turn gets %q", left)
	}
	t.Setenv("SSL_CERT_FILE", os.DevNull)
	if own := host.Own(); slices.ContainsFunc(own, cert.Equal) {
		t.Error("what was remembered is not the host's any more")
	}
}
