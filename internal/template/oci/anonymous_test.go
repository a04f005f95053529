package oci

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"turnstone.dev/turnstone"
)

// Most tests compute alone, for long: under the race detector run those that start goroutines themselves.
//
//testrun:race own

// TestAnonymous checks that a reference that a stranger names is requested only on the Internet,
// and without credentials.
func TestAnonymous(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer srv.Close()
	at := strings.TrimPrefix(srv.URL, "http://")
	c := New(Options{Dir: t.TempDir(), Anonymous: true, Stall: 5 * time.Second, Retries: -1,
		Keychain: authn.DefaultKeychain})
	for _, name := range []string{at + "/x:1", "localhost" + at[strings.LastIndexByte(at, ':'):] +
		"/x:1", "10.255.255.1:5000/x", "169.254.169.254/x", "100.100.100.200/x",
		"192.168.1.1/x:1"} {
		ref, err := ParseReference(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Resolve(t.Context(), ref)
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(),
			"not allowed for a document") || !strings.Contains(turnstone.HintOf(err), "--image") {
			t.Errorf("%s: %v (%s)", name, err, turnstone.HintOf(err))
		}
		if ref.Closed() == "" {
			t.Errorf("%s counts as on the Internet", name)
		}
	}
	if asked > 0 {
		t.Errorf("the registry on this machine was asked %d times", asked)
	}
	user, err := New(Options{Anonymous: true}).opts.Keychain.Resolve(strange{})
	if err != nil || user != authn.Anonymous {
		t.Errorf("it is asked as %v, %v", user, err)
	}
}

type strange struct{}

func (strange) String() string      { return "registry.example" }
func (strange) RegistryStr() string { return "registry.example" }

// A name can resolve to any address: the connection's address counts.
func TestAnonymousAddresses(t *testing.T) {
	ref, err := ParseReference("registry.example/x")
	if err != nil {
		t.Fatal(err)
	}
	known, strange := newGuard(ref, time.Second, false), newGuard(ref, time.Second, true)
	for _, ip := range []string{"10.1.2.3", "127.0.0.1", "::1", "192.168.7.7", "169.254.169.254",
		"fd00::1", "64:ff9b::7f00:1", "100.64.0.1"} {
		if err := strange.met(netip.MustParseAddr(ip).Unmap()); err == nil {
			t.Errorf("a stranger's registry may be at %s", ip)
		}
		if err := known.met(netip.MustParseAddr(ip)); err != nil {
			t.Errorf("the user's registry may not be at %s: %v", ip, err)
		}
	}
	if err := strange.met(netip.MustParseAddr("203.0.113.7")); err != nil {
		t.Error(err)
	}
	for _, ip := range []string{"168.63.129.16", "192.0.0.192", "198.18.0.1"} {
		if strange.met(netip.MustParseAddr(ip)) == nil ||
			strange.allowed(netip.MustParseAddr(ip)) == nil {
			t.Errorf("a stranger's registry, or its storage, may be at %s", ip)
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own { // also public addresses
		if p, err := netip.ParsePrefix(a.String()); err == nil &&
			(strange.met(p.Addr().Unmap()) == nil || strange.allowed(p.Addr().Unmap()) == nil) {
			t.Errorf("a stranger's registry may be at this machine's %s", a)
		}
	}
}
