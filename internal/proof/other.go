package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"google.golang.org/protobuf/encoding/protojson"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
)

// A Sealed is a decoded envelope with one signature, about anything. The payload is untrusted until
// Verify has returned nil for the key that the payload names.
type Sealed struct {
	Payload  []byte
	envelope *dsse.Envelope
}

// Seal signs v, as JSON on one line, and returns the envelope and the payload.
func Seal(ctx context.Context, payloadType string, v any, signer *key.Signer) (envelope,
	payload []byte, err error) {
	internal := func(err error) ([]byte, []byte, error) {
		return nil, nil, turnstone.NewError("proof.sign", turnstone.KindInternal, "", err)
	}
	if payload, err = compact(v); err != nil {
		return internal(err)
	}
	es, err := dsse.NewEnvelopeSigner(signer)
	if err != nil {
		return internal(err)
	}
	e, err := es.SignPayload(ctx, payloadType, payload)
	if err != nil {
		return nil, nil, err
	}
	if envelope, err = compact(e); err != nil {
		return internal(err)
	}
	return envelope, payload, nil
}

// Unseal decodes an untrusted envelope. It has one spelling and one signature. Errors are of kind
// Integrity.
func Unseal(envelope []byte, payloadType string) (*Sealed, error) {
	e, payload, err := decodeEnvelope(envelope, payloadType)
	if err != nil {
		return nil, err
	}
	if len(e.Signatures) != 1 {
		return nil, damaged("has %d signatures, not one", len(e.Signatures))
	}
	return &Sealed{payload, e}, nil
}

// Verify checks that the key k has signed. The error is of kind Integrity.
func (s *Sealed) Verify(ctx context.Context, k key.Public) error {
	if err := checkSignature(ctx, s.envelope, 0, k, k.ID()); err != nil {
		return damaged("its signature: %w", err)
	}
	return nil
}

// Decode decodes an untrusted payload, which has the spelling of Seal, into a value without unknown
// keys.
func Decode(payload []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	again, err := compact(to)
	if err != nil || !bytes.Equal(again, payload) {
		return fmt.Errorf("is not spelled as turn writes it: white space, order, an escape, " +
			"or a key that is there twice")
	}
	return nil
}

// CheckInToto checks that an untrusted payload, within the bounds of this package, is an in-toto
// statement about a predicate of one of these types.
func CheckInToto(payload []byte, about string, types ...string) error {
	if len(payload) > maxPayload {
		return fmt.Errorf("has %d bytes; the limit is %d", len(payload), maxPayload)
	}
	if depth(payload) > maxDepth {
		return fmt.Errorf("is nested deeper than %d levels", maxDepth)
	}
	var general intoto.Statement
	if err := (protojson.UnmarshalOptions{RecursionLimit: 100}).Unmarshal(payload,
		&general); err != nil {
		return fmt.Errorf("is no in-toto statement: %w", err)
	}
	if err := general.Validate(); err != nil {
		return fmt.Errorf("is no valid in-toto statement: %w", err)
	}
	if t := general.GetPredicateType(); !slices.Contains(types, t) {
		return fmt.Errorf("is about %.200q, not about %s", t, about)
	}
	return nil
}
