package hostcmd

import (
	"fmt"
	"strings"
	"testing"
)

// TestSome: a server with any number of nodes makes no message long.
func TestSome(t *testing.T) {
	var nodes []NodeReport
	for i := range 5000 {
		nodes = append(nodes, NodeReport{Name: fmt.Sprint("n", i), Key: "SHA256:x"})
	}
	text := fingerprints(nodes)
	if !strings.HasSuffix(text, "; and 4990 more") || len(text) > 500 {
		t.Error(text)
	}
	if text := fingerprints(nodes[:2]); text != "node n0 has the key SHA256:x; node n1 has the key SHA256:x" {
		t.Error(text)
	}
}

// TestPins: --pin takes a node's fingerprint and its public key, in the forms that turn key prints.
func TestPins(t *testing.T) {
	const id = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
	const public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
	c := &addCmd{Pin: []string{id, " " + id + "\n", public, public + " node@host\n"}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, pin := range c.Pin {
		if pin != id {
			t.Errorf("%q, want %q", pin, id)
		}
	}
	for _, bad := range []string{"", "x", "SHA256:x", "ssh-ed25519", "ssh-ed25519 x", public + "\n" + public} {
		if err := (&addCmd{Pin: []string{bad}}).Validate(); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
