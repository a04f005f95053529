// Package chain signs the turns that are kept, and verifies them: each turn's statement names the
// statements of its parents. docs/chain.md specifies the chain.
package chain

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
)

// Keys are the keys that sign the turns of a state directory. Their methods are safe for concurrent
// use.
type Keys struct {
	ring   key.Ring
	node   *key.Signer
	caller *key.Signer // nil: the caller has no key
}

// Open reads the keys before a turn begins, so that a turn does not fail at its end: it may ask for
// a passphrase. It makes the node's key on first use, and sets what signs the log of heads.
func Open(ctx context.Context, dir *statedir.Dir, cs *repo.ContextStore,
	ask func(string) ([]byte, error)) (*Keys, error) {
	if err := checkClock(time.Now()); err != nil {
		return nil, err
	}
	ring := Ring(dir, ask)
	k := &Keys{ring: ring}
	var err error
	if k.node, err = ring.NodeKey(ctx); err != nil {
		return nil, err
	}
	if err := ring.InUse(key.Node, k.node); err != nil {
		return nil, err
	}
	if !session.Limited(ctx) { // the caller of a remote client's turn is not this host's user
		if k.caller, err = ring.CallerKey(ctx); err != nil {
			return nil, err
		}
	}
	if k.caller != nil {
		if err := ring.InUse(key.Caller, k.caller); err != nil {
			return nil, err
		}
	}
	cs.DB.SignHeads(Heads(dir))
	return k, nil
}

// checkClock reports a time of this host that no statement may have.
func checkClock(now time.Time) error {
	if err := proof.CheckTime(now); err != nil {
		return turnstone.NewError("chain.open", turnstone.KindUnavailable, "this host", err).
			WithHint("set the host's clock")
	}
	return nil
}

// Heads returns what signs the log of heads of a state directory. It reads the key for each entry,
// because another process may rotate it.
func Heads(dir *statedir.Dir) session.HeadSigner {
	return func(ctx context.Context, h turnstone.Head) ([]byte, turnstone.Digest, error) {
		node, err := Ring(dir, nil).NodeKey(ctx)
		if err != nil {
			return nil, "", err
		}
		return proof.SignHead(ctx, h, node)
	}
}

// A Link is the signed statement of a turn that is about to be kept.
type Link struct {
	Statement turnstone.Digest // of the payload
	Envelope  turnstone.Digest // the object
	text      []byte
}

// Attach returns the turn's receipt with its evidence.
func (l *Link) Attach(receipt []byte) []byte {
	return proof.Attach(receipt, &proof.Signed{Envelope: l.text})
}

// current returns the keys that sign at the end of a turn. A key that was rotated meanwhile is
// trusted until then only: its successor signs, unless it has a passphrase, which nobody may be
// there to type. The caller can sign later.
func (k *Keys) current(ctx context.Context) (node, caller *key.Signer) {
	node, caller = k.node, k.caller
	ring := k.ring
	ring.Ask = nil
	own, err := ring.Own()
	if err != nil {
		return node, caller
	}
	if p, has := own[key.Node]; has && !p.Equal(node.Public) {
		if now, err := ring.NodeKey(ctx); err == nil {
			node = now
		}
	}
	if p, has := own[key.Caller]; caller != nil && has && !p.Equal(caller.Public) {
		if caller, err = ring.CallerKey(ctx); err != nil {
			caller = nil
		}
	}
	return node, caller
}

// Sign signs the turn t, whose record rec is the object record, and puts the envelope into batch.
// rec says on which branch the turn ends; fs is the FS hash of its state, and may be empty.
func (k *Keys) Sign(ctx context.Context, cs *repo.ContextStore, batch *store.Batch,
	t turnstone.Turn, rec *turnstone.TurnRecord, record, fs turnstone.Digest) (*Link, error) {
	t.Branch, t.Result, t.Record = rec.Branch, rec.Result, record
	s, err := statementOf(ctx, t, rec, fs, cs.DB.Turn)
	if err != nil {
		return nil, err
	}
	p := &s.Predicate
	p.Program, p.Time = turnstone.Version, time.Now().UTC().Truncate(time.Second)
	node, caller := k.current(ctx)
	p.Signers = []proof.Signer{{Role: key.Node, Key: node.String()}}
	if caller != nil {
		p.Signers = append(p.Signers, proof.Signer{Role: key.Caller, Key: caller.String()})
	}
	signed, err := proof.Sign(ctx, s, node, caller)
	if err != nil {
		return nil, err
	}
	l := &Link{Statement: signed.Link, text: signed.Envelope}
	l.Envelope, err = batch.Put(ctx, signed.Envelope)
	return l, err
}

// statementOf returns what the data of a turn says about it, without signers, time and program.
func statementOf(ctx context.Context, t turnstone.Turn, rec *turnstone.TurnRecord,
	fs turnstone.Digest, parent func(context.Context, turnstone.TurnID) (turnstone.Turn, error)) (
	*proof.Statement, error) {
	s := &proof.Statement{Subjects: proof.Subjects{Receipt: rec.Receipt.Digest, Record: t.Record,
		Layer: rec.Layer.Digest}}
	if rec.Trace != nil {
		s.Subjects.Trace = rec.Trace.Digest
	}
	var err error
	if rec.VM != nil {
		if s.Subjects.Machine, err = digestOf(rec.VM); err != nil {
			return nil, err
		}
	}
	s.Predicate = proof.Predicate{
		Turn: proof.Turn{ID: t.ID, Session: t.Session, Number: t.Number, Branch: t.Branch,
			Kind: t.Kind, Title: t.Title, Result: t.Result, Started: rec.Started,
			Millis: rec.Millis, Resumed: len(rec.Resumed)},
		Document: rec.Document.Digest, FS: fs, Parents: []proof.Parent{},
		Template: proof.Template{Name: rec.Image, Digest: rec.Template},
		Machine: proof.Machine{Substrate: rec.Substrate, Isolation: rec.Isolation,
			CPUs: rec.Shape.CPUs, Memory: int64(rec.Shape.Memory), Disk: int64(rec.Shape.Disk)}}
	if o := rec.Origin; o != nil {
		m := &s.Predicate.Machine
		m.Program, m.Kernel, m.Init, m.Agent = o.Program, o.Kernel, o.Init, o.Agent
		s.Predicate.Template.Image = o.Root
	}
	if s.Predicate.Network, err = networkOf(rec.Network); err != nil {
		return nil, err
	}
	if d := rec.Determinism; d != nil {
		s.Predicate.Determinism = &proof.Determinism{Tier: string(d.Tier),
			Seed: strconv.FormatUint(d.Seed, 10), Clock: d.Clock}
	}
	for _, id := range t.Parents {
		p, err := parent(ctx, id)
		if err != nil {
			return nil, err
		}
		s.Predicate.Parents = append(s.Predicate.Parents,
			proof.Parent{Turn: id, Record: p.Record, Statement: p.Statement})
	}
	return s, nil
}

func networkOf(rec *turnstone.RecordNetwork) (*proof.Network, error) {
	if rec == nil {
		return nil, nil
	}
	n := &proof.Network{Replayed: rec.Replayed}
	var err error
	if rec.Spec != nil {
		n.Policy, err = digestOf(rec.Spec)
	}
	if rec.Index != nil {
		n.Index = rec.Index.Digest
	}
	if rec.Data != nil {
		n.Data = rec.Data.Digest
	}
	return n, err
}

// digestOf returns the digest of v as JSON.
func digestOf(v any) (turnstone.Digest, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", turnstone.NewError("chain.digest", turnstone.KindInternal, "", err)
	}
	return turnstone.DigestBytes(b), nil
}
