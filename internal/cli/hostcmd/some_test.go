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
