package chain

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
)

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
	s, signed, err := proof.Countersign(ctx, ring, nameOf(t), s, by)
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
	return signed, cs.DB.SetEnvelope(ctx, t.ID, t.Envelope, envelope, cs.Needs(batch))
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
	return by, proof.CheckText(nameOf(t), text, s)
}

// put stores an object durably.
func put(ctx context.Context, batch *store.Batch, b []byte) (turnstone.Digest, error) {
	d, err := batch.Put(ctx, b)
	if err == nil {
		err = batch.Flush(ctx)
	}
	return d, err
}
