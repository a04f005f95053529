package chain

import (
	"context"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
)

// openReceipt opens a receipt by itself, and checks its evidence, who vouches for it, and that the
// statement says what its text says. The statement is not nil if only the last two fail.
func openReceipt(ctx context.Context, name string, file []byte, trust *key.Trust) (text []byte,
	s *proof.Signed, by []turnstone.Voucher, err error) {
	if text, s, err = proof.OpenText(ctx, name, file); err != nil {
		return nil, nil, nil, err
	}
	if by, err = s.Vouch(trust); err == nil {
		err = checkText(name, text, s)
	}
	return text, s, by, err
}

// VerifyReceipt checks a receipt by itself. What does not verify is in the report.
func VerifyReceipt(ctx context.Context, name string, file []byte,
	trust *key.Trust) *turnstone.VerifyReport {
	v := &verifier{report: &turnstone.VerifyReport{Signed: true,
		Turns: []turnstone.VerifiedTurn{}, Problems: []turnstone.VerifyProblem{}}}
	_, s, by, err := openReceipt(ctx, name, file, trust)
	if err != nil {
		v.problem(name, err)
	}
	if s != nil {
		v.report.Turns = append(v.report.Turns, describe(s, by))
	}
	v.report.OK = len(v.report.Problems) == 0
	return v.report
}

// describe returns what a statement says, and who vouches for it.
func describe(s *proof.Signed, by []turnstone.Voucher) turnstone.VerifiedTurn {
	p := &s.Predicate
	t := turnstone.VerifiedTurn{ID: p.Turn.ID, Session: p.Turn.Session, Number: p.Turn.Number,
		Branch: p.Turn.Branch, Result: p.Turn.Result, Receipt: s.Subjects.Receipt,
		Statement: s.Link, Time: p.Time, Parents: []turnstone.Digest{},
		Vouchers: append([]turnstone.Voucher{}, by...)}
	for _, parent := range p.Parents {
		t.Parents = append(t.Parents, parent.Statement)
	}
	return t
}

// checkText compares a receipt with its statement: the digests alone would let a node sign a
// statement that says something else than the text that a reader sees.
func checkText(name string, text []byte, s *proof.Signed) error {
	fail := func(format string, args ...any) error {
		return turnstone.Errorf("verify", turnstone.KindIntegrity, name, format, args...).
			WithHint("ask the owner of the node's key: its statement is not about this receipt")
	}
	doc, said, err := document.ReadReceipt(name, text)
	if err != nil {
		return fail("its text was signed, and is no receipt: %w", err)
	}
	p, i := &s.Predicate, &said.Info
	parents := []turnstone.TurnID{}
	for _, parent := range p.Parents {
		parents = append(parents, parent.Turn)
	}
	for _, one := range []struct{ what, said, signed string }{
		{"turn", string(i.ID), string(p.Turn.ID)},
		{"number", fmt.Sprint(i.Number), fmt.Sprint(p.Turn.Number)},
		{"branch", i.Branch, p.Turn.Branch},
		{"result", string(i.Result), string(p.Turn.Result)},
		{"parents", fmt.Sprint(i.Parents), fmt.Sprint(parents)},
		{"template", string(i.Template), string(p.Template.Digest)},
		{"FS hash", string(i.FSHash), string(s.Subjects.FS)},
		{"document", string(turnstone.DigestBytes(doc.Clean())), string(p.Document)},
		{"determinism", determinism(i.Determinism), signedDeterminism(p.Determinism)},
	} {
		if one.said != one.signed {
			return fail("%s: its text says %.100q, and its statement says %.100q", one.what,
				one.said, one.signed)
		}
	}
	return nil
}

func determinism(d *turnstone.Determinism) string {
	if d == nil {
		return ""
	}
	return fmt.Sprint(d.Tier, " ", d.Seed)
}

func signedDeterminism(d *proof.Determinism) string {
	if d == nil {
		return ""
	}
	return d.Tier + " " + d.Seed
}

// later returns who vouches for s after the caller signed it, and before: the node.
func later(by []turnstone.Voucher, caller *key.Signer) []turnstone.Voucher {
	return append(slices.Clip(by), turnstone.Voucher{Role: string(key.Caller), Key: caller.ID(),
		Later: true})
}
