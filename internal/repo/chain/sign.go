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

// countersign adds the caller's signature to s, for which by vouches, and describes what was signed.
func countersign(ctx context.Context, ring key.Ring, s *proof.Signed, by []turnstone.Voucher) (
	*proof.Signed, *turnstone.VerifiedTurn, error) {
	caller, err := callerOf(ctx, ring)
	if err != nil {
		return nil, nil, err
	}
	if s, err = s.Countersign(ctx, caller); err != nil {
		return nil, nil, err
	}
	t := describe(s, later(by, caller))
	return s, &t, nil
}

// SignReceipt adds the caller's signature to a receipt that its node signed alone, and returns the
// receipt, and what was signed. The receipt has to verify with the ring's trusted keys. name is for
// errors.
func SignReceipt(ctx context.Context, ring key.Ring, name string, file []byte) ([]byte,
	*turnstone.VerifiedTurn, error) {
	trust, err := ring.List()
	if err != nil {
		return nil, nil, err
	}
	text, s, by, err := openReceipt(ctx, name, file, trust)
	if err != nil {
		return nil, nil, err
	}
	s, t, err := countersign(ctx, ring, s, by)
	if err != nil {
		return nil, nil, err
	}
	return proof.Attach(text, s), t, nil
}

// SignTurn adds the caller's signature to the statement of the turn that ref names, which its node
// signed alone, and returns what was signed. What is stored of the turn has to verify.
func SignTurn(ctx context.Context, x *repo.Repo, ref string) (*turnstone.VerifiedTurn, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	s, err := Check(ctx, cs, t, cs.DB.Turn)
	if err != nil {
		return nil, err
	}
	ring := Ring(x.Dir, x.Passphrase)
	by, err := vouchStored(ctx, cs, ring, t, s)
	if err != nil {
		return nil, err
	}
	s, signed, err := countersign(ctx, ring, s, by)
	if err != nil {
		return nil, err
	}
	batch, err := cs.Store.Begin(ctx) // gc waits until the turn names the envelope
	if err != nil {
		return nil, err
	}
	defer func() { _ = batch.Close() }()
	envelope, err := put(ctx, batch, s.Envelope)
	if err != nil {
		return nil, err
	}
	return signed, cs.DB.SetEnvelope(ctx, t.ID, t.Envelope, envelope)
}

// vouchStored returns which keys of the ring vouch for the statement s of t, after a comparison of
// the stored receipt with s.
func vouchStored(ctx context.Context, cs *repo.ContextStore, ring key.Ring, t turnstone.Turn,
	s *proof.Signed) ([]turnstone.Voucher, error) {
	trust, err := ring.List()
	if err != nil {
		return nil, err
	}
	by, err := s.Vouch(trust)
	if err != nil {
		return nil, err
	}
	rec, err := cs.Record(ctx, t)
	if err != nil {
		return nil, err
	}
	text, err := cs.Read(ctx, rec.Receipt, maxReceipt)
	if err != nil {
		return nil, err
	}
	return by, checkText(nameOf(t), text, s)
}

// put stores an object durably.
func put(ctx context.Context, batch *store.Batch, b []byte) (turnstone.Digest, error) {
	d, err := batch.Put(ctx, b)
	if err == nil {
		err = batch.Flush(ctx)
	}
	return d, err
}
