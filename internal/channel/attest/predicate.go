package attest

import (
	"context"
	"errors"

	intoto "github.com/in-toto/attestation/go/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// A predicate is what an operator's root signs: something about a key, in a statement of its own
// type.
type predicate interface {
	about() (name, key string) // the statement's subject: a name, and "TYPE BASE64"
	signedBy() string          // "TYPE BASE64"
	check() error              // why it means nothing
}

// signedPredicate is a predicate as in-toto has it.
type signedPredicate[P predicate] struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     P         `json:"predicate"`
}

func subjectOf(p predicate) subject {
	name, k := p.about()
	return subject{name, map[string]string{"sha256": turnstone.DigestBytes([]byte(k)).Hex()}}
}

// signPredicate signs p with the key that it names as its signer.
func signPredicate[P predicate](ctx context.Context, what, typ string, p P, by *key.Signer) ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, turnstone.NewError("root.sign", turnstone.KindInvalid, what, err).
			WithHint(turnstone.HintOf(err))
	}
	envelope, _, err := proof.Seal(ctx, proof.PayloadType, signedPredicate[P]{
		intoto.StatementTypeUri, []subject{subjectOf(p)}, typ, p}, by)
	return envelope, err
}

// openPredicate decodes an untrusted envelope, which has one spelling, and checks that the key that its
// predicate names has signed it. Errors have the fault FaultForged.
func openPredicate[P predicate](ctx context.Context, what, typ string, envelope []byte) (P, error) {
	var e signedPredicate[P]
	fail := func(err error) (P, error) {
		return e.Predicate, channel.Fail("root.verify", channel.FaultForged, what, "%w", err)
	}
	sealed, err := proof.Unseal(envelope, proof.PayloadType)
	if err != nil {
		return fail(err)
	}
	if err := proof.CheckInToto(sealed.Payload, what, typ); err != nil {
		return fail(err)
	}
	if err := proof.Decode(sealed.Payload, &e); err != nil {
		return fail(err)
	}
	if err := e.Predicate.check(); err != nil {
		return fail(err)
	}
	want := subjectOf(e.Predicate)
	if len(e.Subject) != 1 || e.Subject[0].Name != want.Name || len(e.Subject[0].Digest) != 1 ||
		e.Subject[0].Digest["sha256"] != want.Digest["sha256"] {
		return fail(errors.New("its subject is not the key of its predicate"))
	}
	signer, err := key.Parse(e.Predicate.signedBy())
	if err != nil {
		return fail(err)
	}
	if err := sealed.Verify(ctx, signer); err != nil {
		return fail(err)
	}
	return e.Predicate, nil
}
