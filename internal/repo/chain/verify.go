package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Request says what to verify.
type Request struct {
	Ref   string // a turn: it and its ancestors; with All a session: all of its turns
	All   bool   // also the log of heads, and the store as a whole
	Trust *key.Trust
}

// maxProblems bounds the problems that a report names.
const maxProblems = 1000

// Verify checks the chain of statements of turns, and reads and checks every object that they need.
// An error means that it could not check; what does not verify is in the report.
func Verify(ctx context.Context, x *repo.Repo, req Request) (*turnstone.VerifyReport, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	v := &verifier{cs: cs, req: req, seen: map[turnstone.Digest]bool{},
		report: &turnstone.VerifyReport{Signed: true, Turns: []turnstone.VerifiedTurn{},
			Problems: []turnstone.VerifyProblem{}}}
	if err := v.turns(ctx, x); err != nil {
		return nil, err
	}
	v.report.OK = len(v.report.Problems) == 0
	return v.report, nil
}

// VerifyTrusting is Verify with the keys that the state directory trusts, and those that req names.
func VerifyTrusting(ctx context.Context, x *repo.Repo, req turnstone.VerifyRequest) (
	*turnstone.VerifyReport, error) {
	trust, err := proof.Trusted(x.Dir, req.Trust)
	if err != nil {
		return nil, err
	}
	return Verify(ctx, x, Request{Ref: req.Ref, All: req.All, Trust: trust})
}

// VerifyReceipt checks a receipt by itself, with the keys that dir trusts, and those that trust
// names. name is for messages.
func VerifyReceipt(ctx context.Context, dir *statedir.Dir, name string, file []byte,
	trust []string) (*turnstone.VerifyReport, error) {
	t, err := proof.Trusted(dir, trust)
	if err != nil {
		return nil, err
	}
	return proof.VerifyReceipt(ctx, name, file, t), nil
}

type verifier struct {
	cs     *repo.ContextStore
	req    Request
	seen   map[turnstone.Digest]bool // objects that were read
	report *turnstone.VerifyReport
}

func (v *verifier) turns(ctx context.Context, x *repo.Repo) error {
	if !v.req.All {
		cs, t, err := x.Resolve(ctx, v.req.Ref)
		if err != nil {
			return err
		}
		v.cs = cs
		for t, err := range v.cs.DB.History(ctx, t) {
			if err != nil {
				v.problem(nameOf(t), err)
				return nil // a lost ancestor
			}
			if err := v.turn(ctx, t); err != nil {
				return err
			}
		}
		return nil
	}
	g, logged, err := x.SessionWithLog(ctx, v.req.Ref)
	if err != nil {
		return err
	}
	if v.cs, err = v.cs.In(ctx, g.Session.Domain); err != nil {
		return err
	}
	for _, t := range g.Turns {
		if t.Status == turnstone.TurnRunning && t.Record == "" && t.Statement == "" {
			continue
		}
		if err := v.turn(ctx, t); err != nil {
			return err
		}
	}
	if err := v.heads(ctx, g, logged); err != nil {
		return err
	}
	if len(v.report.Turns) == 0 { // who can write the database can remove all that does not verify
		v.problem("session", turnstone.Errorf("verify", turnstone.KindIntegrity, "session",
			"has no turn that has ended: nothing is verified"))
	}
	_, err = v.cs.Store.Fsck(ctx, func(p store.Problem) {
		v.problem("store: "+cmp.Or(string(p.Object), p.Pack, p.Segment), p.Err)
	})
	return err
}

// problem adds an error to the report.
func (v *verifier) problem(where string, err error) {
	p := proof.Problem(where, err)
	v.report.Signed = v.report.Signed && p.Signed
	if len(v.report.Problems) < maxProblems {
		v.report.Problems = append(v.report.Problems, p)
	}
}

// turn verifies one turn and its objects. The error means that the verification cannot go on.
func (v *verifier) turn(ctx context.Context, t turnstone.Turn) error {
	if err := ctx.Err(); err != nil {
		return turnstone.NewError("verify", turnstone.KindCanceled, "", err)
	}
	rep := turnstone.VerifiedTurn{ID: t.ID, Session: t.Session, Number: t.Number, Branch: t.Branch,
		Result: t.Result, Parents: []turnstone.Digest{}, Vouchers: []turnstone.Voucher{}}
	defer func() { v.report.Turns = append(v.report.Turns, rep) }()
	s, err := Check(ctx, v.cs, t, v.cs.DB.Turn)
	if err != nil {
		v.problem(nameOf(t), err)
	} else {
		rep.Receipt, rep.Statement, rep.Time = s.Subjects.Receipt, s.Link, s.At()
		for _, p := range s.Predicate.Parents {
			rep.Parents = append(rep.Parents, p.Statement)
		}
		if rep.Vouchers, err = s.Vouch(v.req.Trust); err != nil {
			rep.Vouchers = []turnstone.Voucher{}
			v.problem(nameOf(t), err)
		}
	}
	return v.objects(ctx, t)
}

// objects reads all data that t needs and was not read before.
func (v *verifier) objects(ctx context.Context, t turnstone.Turn) error {
	first := func(d turnstone.Digest) bool {
		news := !v.seen[d]
		v.seen[d] = true
		if news {
			v.report.Objects++
		}
		return news
	}
	r := &repo.Reach{In: v.cs, Object: first, Verify: tree.NewVerifier(v.cs.Store),
		Failed: func(what string, err error) error {
			if ctx.Err() != nil {
				return err
			}
			v.problem(what, err)
			return nil
		}}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		if !first(cmp.Or(c.Chunks, c.Digest)) {
			return nil
		}
		in, err := v.cs.Store.OpenContent(ctx, c)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, in)
		return errors.Join(err, in.Close())
	}
	if err := r.Turn(ctx, t); err != nil {
		return err
	}
	if t.Record == "" {
		return nil
	}
	rec, err := v.cs.Record(ctx, t)
	if err == nil && rec.Trace != nil {
		err = v.cs.ReadTrace(ctx, rec, func(turnstone.TraceLine) error { return nil })
		if err != nil {
			v.problem(nameOf(t)+": trace", err)
		}
	}
	return nil
}

// OpenLog opens the log of heads of a session, and checks its links and signatures.
func OpenLog(ctx context.Context, s turnstone.SessionID, envelopes [][]byte) (
	[]turnstone.LoggedHead, error) {
	all := []turnstone.LoggedHead{}
	var before turnstone.Digest
	for i, e := range envelopes {
		bad := func(err error) ([]turnstone.LoggedHead, error) {
			return nil, turnstone.NewError("verify", turnstone.KindIntegrity,
				fmt.Sprintf("entry %d of the log of heads", i+1), err)
		}
		h, err := proof.OpenHead(ctx, e)
		switch {
		case err != nil:
			return bad(err)
		case h.Session != s:
			return bad(fmt.Errorf("is of the session %.60q", h.Session))
		case h.Sequence != i+1:
			return bad(fmt.Errorf("has the number %d", h.Sequence))
		case h.Previous != before:
			return bad(errors.New("does not follow the entry before: one was removed or replaced"))
		}
		before = h.Digest
		all = append(all, h)
	}
	return all, nil
}

// Log returns the log of heads of a session, oldest first, after its links and signatures are
// checked.
func Log(ctx context.Context, cs *repo.ContextStore, s turnstone.SessionID) (
	[]turnstone.LoggedHead, error) {
	stored, err := cs.DB.Heads(ctx, s)
	if err != nil {
		return nil, err
	}
	return openStored(ctx, s, stored)
}

// openStored opens the stored log of heads of a session.
func openStored(ctx context.Context, s turnstone.SessionID, stored []session.LoggedHead) (
	[]turnstone.LoggedHead, error) {
	var envelopes [][]byte
	for _, h := range stored {
		envelopes = append(envelopes, h.Envelope)
	}
	log, err := OpenLog(ctx, s, envelopes)
	for i := range log {
		if err == nil && log[i].Digest != stored[i].Digest {
			err = turnstone.Errorf("verify", turnstone.KindIntegrity,
				fmt.Sprintf("entry %d of the log of heads", i+1), "has another digest")
		}
	}
	return log, err
}

// heads checks the log of heads, and each branch against it.
func (v *verifier) heads(ctx context.Context, g *turnstone.Graph,
	stored []session.LoggedHead) error {
	log, err := openStored(ctx, g.Session.ID, stored)
	if turnstone.KindOf(err) == turnstone.KindIntegrity {
		v.problem("log of heads", err)
		return nil
	}
	if err != nil {
		return err
	}
	v.report.Heads = len(log)
	for i := range log {
		k, err := key.Parse(log[i].Key)
		if err == nil {
			_, err = v.req.Trust.Vouch(k, key.Node, log[i].Time)
		}
		if err != nil {
			v.problem(fmt.Sprintf("entry %d of the log of heads", i+1), err)
		}
	}
	for _, err := range CheckHeads(g, log) {
		v.problem("log of heads", err)
	}
	return nil
}

// CheckHeads compares the branches of g with the last entry of the log for each, which is made in the
// same transaction as a change of the branch's head. A branch that an older program left has none.
func CheckHeads(g *turnstone.Graph, log []turnstone.LoggedHead) (problems []error) {
	turns := map[turnstone.TurnID]turnstone.Turn{}
	for _, t := range g.Turns {
		turns[t.ID] = t
	}
	last := map[string]turnstone.LoggedHead{}
	for _, h := range log {
		last[h.Branch] = h
	}
	bad := func(format string, args ...any) {
		problems = append(problems, turnstone.Errorf("verify", turnstone.KindIntegrity,
			"log of heads", format, args...))
	}
	for _, b := range g.Branches {
		h, logged := last[b.Name]
		delete(last, b.Name)
		t, there := turns[h.Turn]
		switch {
		case !logged && turns[b.Head].Statement != "":
			bad("branch %s ends with the signed turn %d, and has no entry", b.Name,
				turns[b.Head].Number)
		case !logged || h.Turn == "" && b.Head == "":
		case h.Turn == "":
			bad("branch %s was removed, and is there", b.Name)
		case !there:
			bad("branch %s ended with %s, which is gone", b.Name, h.Turn)
		case t.Statement != h.Statement:
			bad("branch %s ended with the statement %s, and turn %d has %s", b.Name,
				h.Statement.Short(), t.Number, t.Statement.Short())
		case b.Head != h.Turn:
			bad("branch %s ended with turn %d, and its head is turn %d", b.Name, t.Number,
				turns[b.Head].Number)
		}
	}
	for name, h := range last {
		if h.Turn != "" {
			bad("branch %s ended with %s, and is gone", name, h.Turn)
		}
	}
	return problems
}
