package attest

import (
	"crypto/subtle"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof/key"
)

// Pins knows which nodes a client trusts. *key.Trust is one.
type Pins interface {
	// Vouch returns the entry that trusts k in a role at a time, or why there is none.
	Vouch(k key.Public, role key.Role, at time.Time) (key.Entry, error)
}

// Expected is what a client knows about the statement that it asked for.
type Expected struct {
	Pins   Pins
	About  string              // what Statement.About has to return
	Client channel.PublicKey   // the client's own key
	Others []channel.PublicKey // further keys that the client asked to admit
	Owner  string              // the owner's key that the client named; may be empty
	Nonce  Nonce               // that the client chose
	// Digests that the client requires; empty: any.
	Template, Agent, Substrate turnstone.Digest
}

// Check reports why a client must not use the statement. Each error has a Fault.
func (s *Signed) Check(e Expected, now time.Time) error {
	fail := func(f channel.Fault, format string, args ...any) error {
		return channel.Fail("channel.verify", f, "the attestation of "+s.About(), format, args...)
	}
	// The time of the check, and not of the statement: an attacker with an old key chooses the
	// latter.
	if _, err := e.Pins.Vouch(s.signer, key.Node, now); err != nil {
		if channel.FaultOf(err) != "" { // about its certificate
			return err
		}
		return fail(channel.FaultUntrusted, "%w", err)
	}
	if s.Time.After(now.Add(skew)) {
		return fail(channel.FaultExpired, "is valid from %s only", s.Time.Format(time.RFC3339))
	}
	if !now.Before(s.Expires) {
		return fail(channel.FaultExpired, "expired at %s", s.Expires.Format(time.RFC3339))
	}
	if subtle.ConstantTimeCompare(s.Nonce[:], e.Nonce[:]) != 1 {
		return fail(channel.FaultReplayed, "is the answer to another request")
	}
	if s.About() != e.About {
		return fail(channel.FaultSpliced, "is not about %.200s", e.About) // a gateway can have named it
	}
	if !slices.Contains(s.Clients, e.Client) {
		return fail(channel.FaultSpliced, "does not admit this client's key %s", e.Client)
	}
	for _, k := range s.Clients {
		if k != e.Client && !slices.Contains(e.Others, k) {
			return fail(channel.FaultWidened, "admits the key %s, which this client did not name", k)
		}
	}
	if s.Owner != e.Owner {
		return fail(channel.FaultWidened, "lets the key %.200q admit others, not %.200q", s.Owner,
			e.Owner)
	}
	for _, d := range []struct {
		what       string
		want, have turnstone.Digest
	}{{"template", e.Template, s.Template}, {"agent", e.Agent, s.Agent},
		{"substrate", e.Substrate, s.Substrate}} {
		if d.want != "" && d.want != d.have {
			return fail(channel.FaultSpliced, "has the %s %s, not %s", d.what, d.have, d.want)
		}
	}
	return nil
}
