package netplan

import (
	"testing"

	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/network"
)

// TestUngranted: each kind of closed address is named, unless the host grants it.
func TestUngranted(t *testing.T) {
	host := config.Config{Network: config.Network{Allow: []string{"10.7.0.1:5432"}},
		Documents: config.Documents{Allow: []string{"10.1.0.0/16"}}}
	for rule, want := range map[string]string{
		"127.0.0.1:80": "loopback address", "169.254.169.254": "metadata address",
		"100.100.100.200:80": "metadata address", "169.254.1.0/24": "link-local address",
		"10.2.0.1": "private address", "192.168.0.0/16": "private address",
		"10.7.0.1": "private address", "10.7.0.1:5432": "", "10.1.2.3": "", "10.0.0.0/15": "private address",
		"8.8.8.8": "", "0.0.0.0/0": "", "example.com": "", "*.example.com:443": "", "public": "",
		"203.0.113.7": "", "nonsense rule": "",
	} {
		got := Ungranted(host, []string{"example.org", rule})
		if want == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || got[0] != (Closed{rule, want}) {
			t.Errorf("%s: %+v, want %q", rule, got, want)
		}
	}
}

// TestOwnAddress: the host's own addresses are closed although they may be public.
func TestOwnAddress(t *testing.T) {
	r, err := network.ParseRule("127.0.0.1:1")
	if err != nil || !isHosts(r.Prefix.Addr()) {
		t.Errorf("127.0.0.1 is not known as the host's: %v", err)
	}
}
