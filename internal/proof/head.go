package proof

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
)

// HeadType is the type of the payload of an entry of the log of heads.
const HeadType = "application/vnd.turnstone.head.v1+json"

// SignHead signs an entry of the log of heads. It sets the entry's key and rounds its time.
func SignHead(ctx context.Context, h turnstone.Head, node *key.Signer) (envelope []byte,
	digest turnstone.Digest, err error) {
	h.Key, h.Time = node.String(), h.Time.UTC().Truncate(time.Second)
	envelope, payload, err := Seal(ctx, HeadType, h, node)
	return envelope, turnstone.DigestBytes(payload), err
}

// OpenHead decodes an untrusted entry of the log of heads, and checks that the key that it names has
// signed it. Errors are of kind Integrity.
func OpenHead(ctx context.Context, envelope []byte) (l turnstone.LoggedHead, err error) {
	sealed, err := Unseal(envelope, HeadType)
	if err != nil {
		return l, err
	}
	if err := Decode(sealed.Payload, &l.Head); err != nil {
		return l, damaged("its entry of the log of heads: %w", err)
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
	if err := sealed.Verify(ctx, k); err != nil {
		return l, err
	}
	l.Digest = turnstone.DigestBytes(sealed.Payload)
	return l, nil
}
