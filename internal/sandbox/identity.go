package sandbox

import (
	"crypto/rand"
	"time"

	"turnstone.dev/turnstone/substrate"
)

// deterministicHostname is the host name of deterministic sandboxes, which have no ID of their own
// inside.
const deterministicHostname = "turn"

// An identity is what separates a sandbox from all others, as the guest sees it.
type identity struct {
	entropy   []byte // for the random number generator of the guest's kernel
	machineID []byte
	clock     time.Time
}

// ownIdentity returns a new identity; for a deterministic machine, always the same for d.
func ownIdentity(d *substrate.Determinism) identity {
	if d == nil {
		id := identity{make([]byte, 64), make([]byte, 16), time.Now()}
		_, _ = rand.Read(id.entropy) // documented never to fail
		_, _ = rand.Read(id.machineID)
		return id
	}
	a, b := d.Derive("turnstone entropy 1"), d.Derive("turnstone entropy 2")
	machine := d.Derive("turnstone machine id")
	return identity{append(a[:], b[:]...), machine[:16], d.Clock.UTC()}
}
