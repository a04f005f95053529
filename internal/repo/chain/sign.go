package chain

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
)

// callerOf returns the caller's key, which has to be there.
func callerOf(ctx context.Context, ring key.Ring) (*key.Signer, error) {
	caller, err := ring.CallerKey(ctx)
	if err != nil {
		return nil, err
	}
	if caller == nil {
		return nil, turnstone.Errorf("sign", turnstone.KindNotFound, "caller key", "there is none").
			WithHint("turn key make creates one")
	}
	return caller, ring.InUse(key.Caller, caller)
}

// countersign adds the caller's signature to s, whose signers the ring has to trust.
func countersign(ctx context.Context, ring key.Ring, s *proof.Signed) (*proof.Signed, error) {
	trust, err := ring.List()
	if err != nil {
		return nil, err
	}
	if _, err := s.Vouch(trust); err != nil {
		return nil, err
	}
	caller, err := callerOf(ctx, ring)
	if err != nil {
		return nil, err
	}
	return s.Countersign(ctx, caller)
}

// SignReceipt adds the caller's signature to a receipt that its node signed alone, and returns the
// receipt. It has to verify with the ring's trusted keys. name is for errors.
func SignReceipt(ctx context.Context, ring key.Ring, name string, file []byte) ([]byte, error) {
	text, s, err := proof.OpenText(ctx, name, file)
	if err != nil {
		return nil, err
	}
	if s, err = countersign(ctx, ring, s); err != nil {
		return nil, err
	}
	return proof.Attach(text, s), nil
}

// SignTurn adds the caller's signature to the statement of the turn that ref names, which its node
// signed alone. What is stored of the turn has to verify.
func SignTurn(ctx context.Context, x *repo.Repo, ref string) (turnstone.Turn, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return t, err
	}
	s, err := Check(ctx, cs, t, cs.DB.Turn)
	if err != nil {
		return t, err
	}
	if s, err = countersign(ctx, Ring(x.Dir, x.Passphrase), s); err != nil {
		return t, err
	}
	batch, err := cs.Store.Begin(ctx) // gc waits until the turn names the envelope
	if err != nil {
		return t, err
	}
	defer func() { _ = batch.Close() }()
	envelope, err := put(ctx, batch, s.Envelope)
	if err != nil {
		return t, err
	}
	return t, cs.DB.SetEnvelope(ctx, t.ID, t.Envelope, envelope)
}

// put stores an object durably.
func put(ctx context.Context, batch *store.Batch, b []byte) (turnstone.Digest, error) {
	d, err := batch.Put(ctx, b)
	if err == nil {
		err = batch.Flush(ctx)
	}
	return d, err
}
