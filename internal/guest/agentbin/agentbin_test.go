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
