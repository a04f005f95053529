package executor

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/statedir"
)

// ownAuthority makes this process trust an authority of its own.
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

// TestHostAuthorities holds that a sandbox trusts what its host does, where nobody says
// otherwise, and that no later turn has anything of it.
func TestHostAuthorities(t *testing.T) {
	cert := ownAuthority(t)
	x := New(&statedir.Dir{Root: t.TempDir()})
	env := []string{"PATH=/bin", "CURL_CA_BUNDLE=/mine.pem"}
	n := &networkPlan{}
	more, err := x.trusted(n, env)
	if err != nil || len(n.hostCA) != 1 || !n.hostCA[0].Equal(cert) || n.ca != nil {
		t.Fatalf("%q, %v, %v", more, n.hostCA, err)
	}
	if want := []string{"SSL_CERT_FILE=" + hostca.GuestPath, "REQUESTS_CA_BUNDLE=" + hostca.GuestPath, "NODE_EXTRA_CA_CERTS=" + hostca.GuestPath, "GIT_SSL_CAINFO=" + hostca.GuestPath}; !slices.Equal(more, want) {
		t.Errorf("variables %q", more)
	}
	if n.bundle != hostca.GuestBundle {
		t.Errorf("beside %s", n.bundle)
	}
	if left := n.inherited(append(slices.Clone(env), more...)); !slices.Equal(left, env) {
		t.Errorf("a later turn gets %q", left)
	}
	// An image that names certificates of its own means them.
	if left := n.giveWay(more, []string{"SSL_CERT_FILE=/opt/conda/cacert.pem"}); strings.Contains(strings.Join(left, " "), "SSL_CERT_FILE") || len(left) != 3 {
		t.Errorf("over the image's: %q", left)
	}
	// Switched off, in a replay, and where the host has none.
	for what, n := range map[string]*networkPlan{"off": {spec: network.Spec{NoHostCA: true}}, "a replay": {player: recording.NewPlayer(&recording.Recording{}, nil, nil)}} {
		if more, err := x.trusted(n, env); err != nil || len(more) != 0 || len(n.hostCA) != 0 {
			t.Errorf("%s: %q, %v", what, more, err)
		}
	}
	// With an authority of the sandbox's own, all variables name both.
	n = &networkPlan{spec: network.Spec{Open: true}}
	if more, err := x.trusted(n, env); err != nil || len(more) != len(caVariables) || len(n.hostCA) != 1 || n.ca == nil {
		t.Errorf("opened: %q, %v", more, err)
	}
	if left := n.inherited(append(slices.Clone(env), "CURL_CA_BUNDLE="+hostca.GuestPath)); !slices.Contains(left, "CURL_CA_BUNDLE=/mine.pem") {
		t.Errorf("a later turn gets %q", left)
	}
	t.Setenv("SSL_CERT_FILE", os.DevNull)
	if own := x.hostAuthorities().Own(); slices.ContainsFunc(own, cert.Equal) {
		t.Error("what was remembered is not the host's any more")
	}
}
