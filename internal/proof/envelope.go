package proof

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
)

// maxEnvelope bounds an untrusted envelope, in bytes.
const maxEnvelope = 512 << 10

// A Signed is a statement whose envelope was decoded, and whose signatures are those of the keys
// that it names. That says nothing about who has the keys: see Vouch.
type Signed struct {
	*Statement
	Payload  []byte           // the encoded statement
	Link     turnstone.Digest // of Payload: what the statements of later turns name
	Envelope []byte           // the encoded envelope
	// Later is the caller who signed after the turn, whom the statement does not name; nil: nobody.
	Later *Signer
}

// Sign signs a statement with the keys that it names: signers are in their order. A nil signer is
// left out.
func Sign(ctx context.Context, s *Statement, signers ...*key.Signer) (*Signed, error) {
	payload, err := s.Encode()
	if err != nil {
		return nil, err
	}
	var all []dsse.Signer
	for _, one := range signers {
		if one != nil {
			all = append(all, one)
		}
	}
	es, err := dsse.NewEnvelopeSigner(all...)
	if err != nil {
		return nil, turnstone.NewError("proof.sign", turnstone.KindInternal, "", err)
	}
	e, err := es.SignPayload(ctx, PayloadType, payload)
	if err != nil {
		return nil, err
	}
	b, err := compact(e)
	if err != nil {
		return nil, turnstone.NewError("proof.sign", turnstone.KindInternal, "", err)
	}
	return Open(ctx, b)
}

// damaged is an error about an envelope.
func damaged(format string, args ...any) *turnstone.Error {
	return turnstone.Errorf("proof.envelope", turnstone.KindIntegrity, "the envelope", format,
		args...)
}

// decodeEnvelope decodes an untrusted envelope, which has one spelling.
func decodeEnvelope(b []byte, payloadType string) (*dsse.Envelope, []byte, error) {
	if len(b) > maxEnvelope {
		return nil, nil, damaged("has %d bytes; the limit is %d", len(b), maxEnvelope)
	}
	if depth(b) > maxDepth {
		return nil, nil, damaged("is nested deeper than %d levels", maxDepth)
	}
	var e dsse.Envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, nil, damaged("is not JSON of an envelope: %w", err)
	}
	if again, err := compact(e); err != nil || !bytes.Equal(again, b) {
		return nil, nil, damaged("is not spelled as turn writes it: white space, order, " +
			"an unknown key, or a key that is there twice")
	}
	if e.PayloadType != payloadType {
		return nil, nil, damaged("has a payload of type %.100q", e.PayloadType)
	}
	payload, err := strictBase64(e.Payload)
	if err != nil {
		return nil, nil, damaged("its payload: %w", err)
	}
	for i, s := range e.Signatures {
		if _, err := strictBase64(s.Sig); err != nil {
			return nil, nil, damaged("signature %d: %w", i+1, err)
		}
	}
	return &e, payload, nil
}

// strictBase64 decodes the only spelling of base64.
func strictBase64(s string) ([]byte, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err == nil && base64.StdEncoding.EncodeToString(b) != s {
		err = fmt.Errorf("is base64 in another spelling")
	}
	return b, err
}

// Open decodes an untrusted envelope, and checks that each signer that its statement names has
// signed, in order, and nobody else. Errors are of kind Integrity and name the place.
func Open(ctx context.Context, envelope []byte) (*Signed, error) {
	e, payload, err := decodeEnvelope(envelope, PayloadType)
	if err != nil {
		return nil, err
	}
	s, err := DecodeStatement(payload)
	if err != nil {
		return nil, err
	}
	signed := &Signed{s, payload, turnstone.DigestBytes(payload), envelope, laterSigner(e, s)}
	named := signed.signers()
	for i, one := range named {
		if i >= len(e.Signatures) {
			return nil, damaged("has no signature of the %s, whom the statement names", one.Role)
		}
		k, err := key.Parse(one.Key)
		if err != nil {
			return nil, damaged("the key of the %s: %w", one.Role, err)
		}
		keyID := k.ID()
		if signed.Later != nil && i == len(named)-1 {
			keyID = one.Key
		}
		if err := checkSignature(ctx, e, i, k, keyID); err != nil {
			return nil, damaged("the signature of the %s: %w", one.Role, err)
		}
	}
	if len(e.Signatures) > len(named) {
		return nil, damaged("has a signature of %.80q, whom the statement does not name",
			e.Signatures[len(named)].KeyID)
	}
	return signed, nil
}

// laterSigner returns the caller who signed a turn after the node had signed it alone, or nil. The
// key ID of such a signature is the key itself, because the statement does not have it.
func laterSigner(e *dsse.Envelope, s *Statement) *Signer {
	if len(s.Predicate.Signers) != 1 || len(e.Signatures) != 2 ||
		!strings.Contains(e.Signatures[1].KeyID, " ") ||
		e.Signatures[1].KeyID == s.Predicate.Signers[0].Key {
		return nil
	}
	return &Signer{key.Caller, e.Signatures[1].KeyID}
}

// signers returns all who signed, in the order of the envelope's signatures.
func (s *Signed) signers() []Signer {
	if s.Later == nil {
		return s.Predicate.Signers
	}
	return append(slices.Clip(s.Predicate.Signers), *s.Later)
}

// Countersign adds the signature of a caller to a statement that its node signed alone. The
// statement, and with it the chain, stays the same. The error is of kind Invalid if a caller has
// signed already. name is for errors.
func (s *Signed) Countersign(ctx context.Context, name string, caller *key.Signer) (*Signed,
	error) {
	invalid := func(why, hint string) (*Signed, error) {
		return nil, turnstone.Errorf("proof.sign", turnstone.KindInvalid, name, "%s", why).
			WithHint(hint)
	}
	switch {
	case len(s.signers()) > 1:
		return invalid("is signed by a caller already", "turn verify says by whom")
	case s.Predicate.Signers[0].Key == caller.String():
		return invalid("is signed by this key as the node's",
			"make a key of your own with turn key make")
	}
	e, _, err := decodeEnvelope(s.Envelope, PayloadType)
	if err != nil {
		return nil, err
	}
	sig, err := caller.Sign(ctx, dsse.PAE(PayloadType, s.Payload))
	if err != nil {
		return nil, err
	}
	e.Signatures = append(e.Signatures, dsse.Signature{KeyID: caller.String(),
		Sig: base64.StdEncoding.EncodeToString(sig)})
	b, err := compact(e)
	if err != nil {
		return nil, turnstone.NewError("proof.sign", turnstone.KindInternal, "", err)
	}
	return Open(ctx, b)
}

// checkSignature checks the signature at i of an envelope, which has this key ID, against the key k.
func checkSignature(ctx context.Context, e *dsse.Envelope, i int, k key.Public, id string) error {
	sig := e.Signatures[i]
	if sig.KeyID != id {
		return fmt.Errorf("is by the key %.80q, and the statement names %s", sig.KeyID, k.ID())
	}
	v, err := dsse.NewEnvelopeVerifier(k)
	if err != nil {
		return err
	}
	one := *e
	one.Signatures = []dsse.Signature{{KeyID: k.ID(), Sig: sig.Sig}}
	if _, err := v.Verify(ctx, &one); err != nil {
		return fmt.Errorf("does not verify: the key %s did not sign this", k.ID())
	}
	return nil
}

// Vouch returns which trusted keys vouch for the statement. The error is of kind Integrity and names
// the first key that is not trusted for its role at the statement's time.
func (s *Signed) Vouch(t *key.Trust) ([]turnstone.Voucher, error) {
	var all []turnstone.Voucher
	for i, one := range s.signers() {
		k, err := key.Parse(one.Key)
		if err != nil {
			return nil, err
		}
		e, err := t.Vouch(k, one.Role, s.Predicate.Time)
		if err != nil {
			return nil, err
		}
		all = append(all, turnstone.Voucher{Role: string(one.Role), Key: k.ID(), Name: e.Name,
			Comment: e.Comment, Host: e.Host, Later: i >= len(s.Predicate.Signers)})
	}
	return all, nil
}

// At returns the time of the statement.
func (s *Signed) At() time.Time { return s.Predicate.Time }
