package agentbin

import (
	"testing"

	"turnstone.dev/turnstone"
)

// The digest from the build matches the program beside it.
func TestDigest(t *testing.T) {
	p, err := Agent("")
	if err != nil {
		t.Fatalf("%v: %s", err, turnstone.HintOf(err))
	}
	b, err := p.Read()
	if err != nil || turnstone.DigestBytes(b) != p.Digest {
		t.Errorf("%v: the program is %s, its digest says %s", err,
			turnstone.DigestBytes(b), p.Digest)
	}
}

// TestAgentFile checks that a file that is no program is rejected before a sandbox fails to run it.
func TestAgentFile(t *testing.T) {
	_, err := Agent("/etc/passwd")
	if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
		t.Errorf("%v: %s", err, turnstone.HintOf(err))
	}
	if _, err := Agent("/proc/self/exe"); err != nil {
		t.Error(err)
	}
}
