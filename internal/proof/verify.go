package proof

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// Trusted returns the keys that named names, or else those that the state directory dir trusts: see
// key.Ring.ListOf.
func Trusted(dir *statedir.Dir, named []string) (*key.Trust, error) {
	return key.Ring{Dir: dir}.ListOf(named)
}

// openReceipt opens a receipt by itself, and checks its evidence, who vouches for it, and that the
// statement says what its text says. The statement is not nil if only the last two fail.
func openReceipt(ctx context.Context, name string, file []byte, trust *key.Trust) (text []byte,
	s *Signed, by []turnstone.Voucher, err error) {
	if text, s, err = OpenText(ctx, name, file); err != nil {
		return nil, nil, nil, err
	}
	if by, err = s.Vouch(trust); err == nil {
		err = CheckText(name, text, s)
	}
	return text, s, by, err
}

// VerifyReceipt checks a receipt by itself. What does not verify is in the report.
func VerifyReceipt(ctx context.Context, name string, file []byte,
	trust *key.Trust) *turnstone.VerifyReport {
	report := &turnstone.VerifyReport{Signed: true,
		Turns: []turnstone.VerifiedTurn{}, Problems: []turnstone.VerifyProblem{}}
	_, s, by, err := openReceipt(ctx, name, file, trust)
	if err != nil {
		p := Problem(name, err)
		report.Signed, report.Problems = p.Signed, append(report.Problems, p)
	}
	if s != nil {
		report.Turns = append(report.Turns, Describe(s, by))
	}
	report.OK = len(report.Problems) == 0
	return report
}

// Describe returns what a statement says, and who vouches for it.
func Describe(s *Signed, by []turnstone.Voucher) turnstone.VerifiedTurn {
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

// CheckText compares a receipt with its statement: the digests alone would let a node sign a
// statement that says something else than the text that a reader sees.
func CheckText(name string, text []byte, s *Signed) error {
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
		{"FS hash", string(i.FSHash), string(p.FS)},
		{"document", string(turnstone.DigestBytes(doc.Clean())), string(p.Document)},
		{"resumed", fmt.Sprint(i.Resumed != ""), fmt.Sprint(p.Turn.Resumed > 0)},
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

func signedDeterminism(d *Determinism) string {
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

// Problem describes an error of the verification of what where names. The problem of something that
// is not signed has Signed false.
func Problem(where string, err error) turnstone.VerifyProblem {
	p := turnstone.VerifyProblem{Where: where, Error: err.Error(), Hint: turnstone.HintOf(err),
		Signed: true}
	var e *turnstone.Error
	if !errors.As(err, &e) {
		return p
	}
	unsigned := e.Op == "verify" && e.Kind == turnstone.KindNotFound
	p.Signed = !unsigned
	if e.Err != nil && (unsigned || e.Subject == "" || e.Subject == where) {
		p.Error = e.Err.Error()
	}
	return p
}

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

// Countersign adds the caller's signature to s, for which by vouches, and describes what was signed.
// name is for errors.
func Countersign(ctx context.Context, ring key.Ring, name string, s *Signed,
	by []turnstone.Voucher) (*Signed, *turnstone.VerifiedTurn, error) {
	caller, err := callerOf(ctx, ring)
	if err != nil {
		return nil, nil, err
	}
	if s, err = s.Countersign(ctx, name, caller); err != nil {
		return nil, nil, err
	}
	t := Describe(s, later(by, caller))
	return s, &t, nil
}

// SignReceipt adds the caller's signature to a receipt that its node signed alone, and returns the
// receipt, and what was signed. The receipt has to verify with the keys of trust. name is for errors.
func SignReceipt(ctx context.Context, ring key.Ring, trust *key.Trust, name string, file []byte) (
	[]byte, *turnstone.VerifiedTurn, error) {
	text, s, by, err := openReceipt(ctx, name, file, trust)
	if err != nil {
		return nil, nil, err
	}
	s, t, err := Countersign(ctx, ring, name, s, by)
	if err != nil {
		return nil, nil, err
	}
	return Attach(text, s), t, nil
}
