package attest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// GrantPredicateType is the type of a grant's predicate.
const GrantPredicateType = "https://turnstone.dev/attestations/grant/v1"

// MaxGrantValidity bounds the time between a grant and its expiry.
const MaxGrantValidity = 366 * 24 * time.Hour

// A Scope is what a granted key may do with a session or a sandbox.
type Scope string

// The scopes. Write includes Read.
const (
	ScopeRead  Scope = "read"
	ScopeWrite Scope = "write"
)

// A Grant is what the owner of a session or a sandbox signs to admit a further client key. A grant
// without scopes withdraws those of the key.
type Grant struct {
	Session turnstone.SessionID `json:"session,omitempty"` // empty: of a sandbox
	Sandbox turnstone.SandboxID `json:"sandbox,omitempty"` // empty: of a session
	Client  channel.PublicKey   `json:"client"`
	Scopes  []Scope             `json:"scopes"`
	// Number is greater than that of every earlier grant of the same object: an old grant is
	// without effect.
	Number  uint64    `json:"number"`
	Time    time.Time `json:"time"`
	Expires time.Time `json:"expires"`
	Signer  string    `json:"signer"` // "TYPE BASE64" of the owner's key
}

type encodedGrant struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Grant     `json:"predicate"`
}

// About returns the ID of the session or the sandbox.
func (g *Grant) About() string { return string(g.Session) + string(g.Sandbox) }

func (g *Grant) subjects() []subject {
	return []subject{{g.About(),
		map[string]string{"sha256": turnstone.DigestBytes(g.Client[:]).Hex()}}}
}

// SignGrant signs g with the owner's key, and returns the envelope. It sets the signer, and cuts
// times to seconds. The error is of kind Invalid if nobody could use the grant.
func SignGrant(ctx context.Context, g *Grant, owner *key.Signer) ([]byte, error) {
	one := *g
	one.Signer = owner.String()
	one.Time = g.Time.UTC().Truncate(time.Second)
	one.Expires = g.Expires.UTC().Truncate(time.Second)
	if one.Scopes == nil {
		one.Scopes = []Scope{}
	}
	if err := one.check(); err != nil {
		return nil, turnstone.NewError("channel.grant", turnstone.KindInvalid,
			"the grant for "+g.About(), err)
	}
	envelope, _, err := proof.Seal(ctx, proof.PayloadType, encodedGrant{intoto.StatementTypeUri,
		one.subjects(), GrantPredicateType, one}, owner)
	return envelope, err
}

// OpenGrant decodes an untrusted envelope, which has one spelling, and checks that the key that its
// grant names has signed it. Whether that key is the owner's, and whether the grant has expired, is
// the caller's to check. Errors have the fault FaultForged.
func OpenGrant(ctx context.Context, envelope []byte) (*Grant, error) {
	fail := func(err error) (*Grant, error) {
		return nil, channel.Fail("channel.grant", channel.FaultForged, "the grant", "%w", err)
	}
	sealed, err := proof.Unseal(envelope, proof.PayloadType)
	if err != nil {
		return fail(err)
	}
	if err := proof.CheckInToto(sealed.Payload, "a grant", GrantPredicateType); err != nil {
		return fail(err)
	}
	var e encodedGrant
	if err := proof.Decode(sealed.Payload, &e); err != nil {
		return fail(err)
	}
	g := &e.Predicate
	if err := g.check(); err != nil {
		return fail(err)
	}
	want := g.subjects()[0]
	if len(e.Subject) != 1 || e.Subject[0].Name != want.Name || len(e.Subject[0].Digest) != 1 ||
		e.Subject[0].Digest["sha256"] != want.Digest["sha256"] {
		return fail(errors.New("its subject is not the key of its predicate"))
	}
	signer, err := key.Parse(g.Signer)
	if err != nil {
		return fail(err)
	}
	if err := sealed.Verify(ctx, signer); err != nil {
		return fail(err)
	}
	return g, nil
}

// check reports a grant that means nothing.
func (g *Grant) check() error {
	switch {
	case (g.Sandbox == "") == (g.Session == ""):
		return errors.New("it is about neither or both of a session and a sandbox")
	case len(g.About()) > maxName || outside(g.About()):
		return fmt.Errorf("%.40q is no ID of a session or a sandbox", g.About())
	case g.Scopes == nil:
		return errors.New("it has no list of scopes")
	case g.Number == 0:
		return errors.New("it has no number")
	case !g.Expires.After(g.Time) || g.Expires.Sub(g.Time) > MaxGrantValidity:
		return fmt.Errorf("it is not valid for a time up to %s", MaxGrantValidity)
	}
	for i, s := range g.Scopes {
		if s != ScopeRead && s != ScopeWrite || slices.Contains(g.Scopes[:i], s) {
			return fmt.Errorf("%.40q is no scope, or there twice", s)
		}
	}
	for _, t := range []time.Time{g.Time, g.Expires} {
		if err := proof.CheckTime(t); err != nil {
			return err
		}
		if t.Location() != time.UTC || t.Nanosecond() != 0 {
			return errors.New("a time is not in UTC and whole seconds")
		}
	}
	if _, err := key.Parse(g.Signer); err != nil {
		return fmt.Errorf("the owner's key: %w", err)
	}
	return g.Client.Check()
}
