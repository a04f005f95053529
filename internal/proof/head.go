package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
)

// HeadType is the type of the payload of an entry of the log of heads.
const HeadType = "application/vnd.turnstone.head.v1+json"

// SignHead signs an entry of the log of heads. It sets the entry's key and rounds its time.
func SignHead(ctx context.Context, h turnstone.Head, node *key.Signer) (envelope []byte,
	digest turnstone.Digest, err error) {
	h.Key, h.Time = node.String(), h.Time.UTC().Truncate(time.Second)
	payload, err := compact(h)
	if err != nil {
		return nil, "", turnstone.NewError("proof.head", turnstone.KindInternal, "", err)
	}
	es, err := dsse.NewEnvelopeSigner(node)
	if err != nil {
		return nil, "", turnstone.NewError("proof.head", turnstone.KindInternal, "", err)
	}
	e, err := es.SignPayload(ctx, HeadType, payload)
	if err != nil {
		return nil, "", err
	}
	envelope, err = compact(e)
	return envelope, turnstone.DigestBytes(payload), err
}

// OpenHead decodes an untrusted entry of the log of heads, and checks that the key that it names has
// signed it. Errors are of kind Integrity.
func OpenHead(ctx context.Context, envelope []byte) (l turnstone.LoggedHead, err error) {
	e, payload, err := decodeEnvelope(envelope, HeadType)
	if err != nil {
		return l, err
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l.Head); err != nil {
		return l, damaged("has no entry of the log of heads: %w", err)
	}
	if again, err := compact(l.Head); err != nil || !bytes.Equal(again, payload) {
		return l, damaged("has an entry that is not spelled as turn writes it")
	}
	for _, d := range []turnstone.Digest{l.Previous, l.Statement} {
		if d == "" {
			continue
		}
		if _, err := turnstone.ParseDigest(string(d)); err != nil {
			return l, damaged("%w", err)
		}
	}
	if err := CheckTime(l.Time); err != nil {
		return l, damaged("%w", err)
	}
	k, err := key.Parse(l.Key)
	if err != nil {
		return l, damaged("the node's key: %w", err)
	}
	if len(e.Signatures) != 1 {
		return l, damaged("has %d signatures, not one", len(e.Signatures))
	}
	if err := checkSignature(ctx, e, 0, k, k.ID()); err != nil {
		return l, damaged("the signature of the node: %w", err)
	}
	l.Digest = turnstone.DigestBytes(payload)
	return l, nil
}
