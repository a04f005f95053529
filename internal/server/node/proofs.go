package node

import (
	"context"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
)

// Bounds of proofs of possession.
const (
	// proofAge and proofAhead are how far a client's clock may be behind and before the node's.
	proofAge   = 2 * time.Minute
	proofAhead = time.Minute
	// maxProofs and maxTenantProofs bound those that are remembered, of 100 bytes.
	maxProofs       = 1 << 18
	maxTenantProofs = 1 << 15
)

// A ProofFault is why a proof of possession is no good.
type ProofFault string

// The faults. A call with ProofForged may succeed with another proof: see Introduce.
const (
	ProofForged ProofFault = "forged" // not for this node, call or tenant, or of another key
	ProofClock  ProofFault = "clock"  // made at another time
	ProofUsed   ProofFault = "used"   // has been used
	ProofFull   ProofFault = "full"   // the tenant has made too many calls in the last minutes
)

// Prove verifies an untrusted proof that a client has the private key of its key and makes a claim
// now. A proof is valid once, for the node's process, whose key dies with it. The result is empty
// for a valid proof.
func (n *Node) Prove(client channel.PublicKey, message []byte, c channel.Claim) ProofFault {
	p, err := channel.OpenProof(n.pair, message, c)
	if err != nil || p.Client != client {
		return ProofForged
	}
	return n.proofs.use(c.Tenant, p, time.Now())
}

// Introduce returns a signed statement about the node's channel key for a client that has not
// proved its key. It admits nobody.
func (n *Node) Introduce(ctx context.Context, c Client) (*attest.Signed, error) {
	return n.sign(ctx, c, attest.Statement{Node: n.o.Name, ServerKey: n.pair.Public})
}

// proofs are the proofs that were used and whose time is not over.
type proofs struct {
	mu    sync.Mutex
	used  map[proofID]time.Time // the client's time
	count map[string]int        // for each tenant
	swept time.Time
	// forgotten is the latest time of a proof that is not in used any more. Older proofs are
	// refused, so that a clock that goes back makes none valid again.
	forgotten time.Time
}

type proofID struct {
	tenant string
	id     [32]byte
}

// use remembers a proof until its time is over.
func (u *proofs) use(tenant string, p *channel.Possession, now time.Time) ProofFault {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p.Time.Before(now.Add(-proofAge)) || p.Time.After(now.Add(proofAhead)) ||
		!p.Time.After(u.forgotten) {
		return ProofClock
	}
	id := proofID{tenant, p.ID}
	if _, ok := u.used[id]; ok {
		return ProofUsed
	}
	full := func() bool { return len(u.used) >= maxProofs || u.count[tenant] >= maxTenantProofs }
	if age := now.Sub(u.swept); age > proofAge || age < 0 || full() && age > time.Second {
		u.sweep(now)
	}
	if full() {
		return ProofFull
	}
	if u.used == nil {
		u.used, u.count = make(map[proofID]time.Time), make(map[string]int)
	}
	u.used[id] = p.Time
	u.count[tenant]++
	return ""
}

// sweep forgets the proofs whose time is over.
func (u *proofs) sweep(now time.Time) {
	u.swept = now
	for id, at := range u.used {
		if !at.Before(now.Add(-proofAge)) {
			continue
		}
		if at.After(u.forgotten) {
			u.forgotten = at
		}
		delete(u.used, id)
		if u.count[id.tenant]--; u.count[id.tenant] == 0 {
			delete(u.count, id.tenant)
		}
	}
}
