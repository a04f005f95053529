package turn

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/place"
	"turnstone.dev/turnstone/internal/turn/state"
)

// committed is a stored turn. It is immutable.
type committed struct {
	record, state turnstone.Digest // empty: the turn left none
	layer         turnstone.LayerInfo
	network       *turnstone.RecordNetwork
	diverged      bool   // another turn ended first, so the branch is new
	receipt       []byte // equal in the turn's folder, in the record and in the report
}

// commit writes the turn's record and moves its branch. l is nil if the turn left no state. The
// stored receipt includes the changes that commit makes to r.info.
func (r *run) commit(ctx context.Context, l *state.Collected) (c committed, err error) {
	if l == nil {
		l = &state.Collected{}
		if l.Batch, err = r.at.Context.Store.Begin(ctx); err != nil {
			return c, err
		}
	}
	defer func() { _ = l.Batch.Close() }()
	if !r.at.Replay && l.State != "" {
		branch, diverged, unlock, err := r.at.Lock(ctx, r.host.Dir, r.plan.Branch)
		if err != nil {
			return c, err
		}
		defer unlock()
		r.info.Branch, c.diverged = branch, diverged
	}
	if err := r.putMachine(ctx); err != nil {
		return c, err
	}
	r.info.FSHash, r.info.Layer, r.info.Changes = l.Tree.Hash, l.Layer.Digest, l.Layer.String()
	r.info.HomeEnded = ""
	if home := r.setup.Home.Describe(l.State != ""); home != nil && home.Ended != nil {
		r.info.HomeEnded = home.Ended.Hash
	}
	if err := r.tape.Search(r.plan.Secrets); err != nil {
		return c, err
	}
	c.layer, r.info.Network = l.Layer, r.networkInfo()
	rec, text, err := r.record(ctx, l)
	if c.receipt = text; err != nil {
		return c, err
	}
	c.network = rec.Network
	guests := *rec
	guests.Image = "" // an image of a registry, with its digest
	if name := receipt.LeakIn(r.plan.Secrets.Written(), &guests); name != "" {
		return c, state.Leaked("the turn's record", name)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return c, err
	}
	digest, err := l.Batch.Put(ctx, b)
	if err != nil {
		return c, err
	}
	// The receipt that the session keeps is text; what the caller gets has its evidence too.
	if c.receipt, err = r.at.Sign(ctx, l.Batch, rec, digest, r.info.FSHash, text); err != nil {
		return c, err
	}
	if err := l.Batch.Flush(ctx); err != nil {
		return c, err
	}
	c.record, c.state = digest, l.State
	return c, r.at.Finish(ctx, place.Kept{Batch: l.Batch, Base: l.Base}, r.info.Result, digest, l.State, r.setup.Home.Use(l.State != ""))
}

// commitWithoutState stores a turn whose state could not be stored, as a turn without a state. If
// that fails too, the session has the turn without a record.
func (r *run) commitWithoutState() committed {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r.info.FSHash, r.info.Layer, r.info.Changes = "", "", ""
	r.info.Branch = r.plan.Branch
	c, err := r.commit(ctx, nil)
	if err != nil {
		_ = r.at.Finish(ctx, place.Kept{}, r.info.Result, "", "", nil)
	}
	if c.receipt == nil {
		c.receipt = r.steps.Receipt(&r.info)
	}
	return c
}

// record adds the turn's data except its state to the batch. text is the receipt.
func (r *run) record(ctx context.Context, l *state.Collected) (rec *turnstone.TurnRecord,
	text []byte, err error) {
	rec = r.aboutTurn(l)
	put := func(to *turnstone.Content, b []byte) (err error) {
		*to, err = l.Batch.PutContent(ctx, bytes.NewReader(b), int64(len(b)))
		return err
	}
	if err := put(&rec.Document, r.doc.Clean()); err != nil {
		return nil, text, err
	}
	text = r.steps.Receipt(&r.info)
	if err := put(&rec.Receipt, text); err != nil {
		return nil, text, err
	}
	if rec.Trace, err = r.putTrace(ctx, l, rec); err != nil {
		return nil, text, err
	}
	if rec.VM = r.snapshot.Ref(); rec.VM != nil {
		for _, f := range rec.VM.Files { // another batch has put them
			if err := l.Batch.Refer(ctx, f.Content); err != nil {
				return nil, text, err
			}
		}
	}
	if r.shape.Network {
		if rec.Network, err = r.tape.Keep(ctx, l.Batch, &r.plan.Net.Asked,
			r.obs.Preparing); err != nil {
			return nil, text, err
		}
	}
	if rec.Inputs, err = r.inputs.Keep(ctx, l.Batch, r.obs.Preparing); err != nil {
		return nil, text, err
	}
	for _, step := range r.doc.Steps {
		res := r.steps.Result(step)
		out := turnstone.RecordStep{Name: step.Name, Status: res.Status, ExitCode: res.ExitCode}
		if out.Stdout, err = r.putOutput(ctx, l, step, turnstone.Stdout); err != nil {
			return nil, text, err
		}
		if out.Stderr, err = r.putOutput(ctx, l, step, turnstone.Stderr); err != nil {
			return nil, text, err
		}
		rec.Steps = append(rec.Steps, out)
	}
	return rec, text, nil
}

// aboutTurn returns the part of the turn's record that needs no object.
func (r *run) aboutTurn(l *state.Collected) *turnstone.TurnRecord {
	rec := &turnstone.TurnRecord{Format: repo.RecordFormat, ID: r.info.ID, Session: r.at.Session.ID,
		Number: r.at.Turn.Number, Branch: r.info.Branch,
		Parents: r.at.Turn.Parents, Kind: turnstone.TurnKindRun, Image: r.plan.Image,
		Template: r.info.Template, Substrate: r.info.Substrate,
		Isolation: r.info.Isolation, Origin: r.origin, Shape: r.shape, Started: r.info.Started,
		Millis: r.info.Duration.Milliseconds(),
		Result: r.info.Result, Error: r.info.Error, Env: r.plan.Given,
		Secrets: r.plan.Secrets.Names(), Timeout: r.plan.Timeout,
		State: l.State, Layer: l.Layer, Home: r.info.Home, HomeUse: r.setup.Home.Describe(l.State != ""),
		Lifetime:    r.info.Lifetime,
		Determinism: r.info.Determinism, Resumed: r.resumptions()}
	if r.plan.Checkpoint == turnstone.CheckpointStep {
		rec.Checkpoint = r.plan.Checkpoint
	}
	return rec
}

// putTrace keeps the commands of the steps.
func (r *run) putTrace(ctx context.Context, l *state.Collected, rec *turnstone.TurnRecord) (
	*turnstone.Content, error) {
	var b bytes.Buffer
	err := r.steps.WriteTrace(&b, turnstone.TraceHead{ID: rec.ID, Session: rec.Session,
		Number: rec.Number, Image: rec.Image, Substrate: rec.Substrate, Started: rec.Started,
		Millis: rec.Millis, Result: rec.Result})
	if err != nil {
		return nil, err
	}
	c, err := l.Batch.PutContent(ctx, &b, int64(b.Len()))
	return &c, err
}

// putOutput stores a whole output; nil if the output is empty or not kept.
func (r *run) putOutput(ctx context.Context, l *state.Collected, step *document.Step,
	stream turnstone.Stream) (*turnstone.Content, error) {
	if c, ok := r.keptOutput(step, stream); ok {
		return c, nil
	}
	in, size, err := r.steps.Open(step, stream)
	if in == nil || err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	content, err := l.Batch.PutContent(ctx, in, size)
	return &content, err
}

// networkInfo adds the summary of the network to the receipt.
func (r *run) networkInfo() string {
	if !r.shape.Network {
		return ""
	}
	return r.steps.Line(r.tape.Info())
}

// keepFirst writes a receipt without results to the turn's folder before the turn is in its session,
// so that it has one whenever the executor is killed. cs is the context store that the session with the
// domain d is in.
func (r *run) keepFirst(ctx context.Context, cs *repo.ContextStore, d turnstone.DomainID) {
	info := r.info
	info.Error, info.Session, info.Branch = beforeFirst, r.plan.Session, r.plan.Branch
	info.Secrets = r.plan.Secrets.Names()
	results := make([]document.StepResult, len(r.doc.Steps))
	for i := range results {
		results[i] = document.StepResult{Status: turnstone.StepSkipped, Note: "not reached"}
	}
	text := r.doc.Receipt(info, results)
	if r.folder.Dir == "" || r.plan.Secrets.Written().In(string(text)) != "" {
		return
	}
	in, err := cs.In(ctx, d)
	if err == nil {
		err = r.folder.Seal(in)
	}
	if err == nil {
		err = r.folder.Checkpoint(text)
	}
	if err != nil {
		r.obs.Preparing("the receipt is not kept in the state directory yet: " + err.Error())
	}
}

// beforeFirst is the error of a turn whose executor ends before its first step.
const beforeFirst = "the executor ended before the first step"

// checkpoint writes the current receipt to the turn's folder, in case the executor is killed. A
// failure is reported and does not end the turn.
func (r *run) checkpoint() {
	if r.folder.Dir == "" {
		return
	}
	err := r.folder.Checkpoint(r.steps.Receipt(&r.info))
	if err != nil && !r.told {
		r.told = true
		r.obs.Preparing("the receipt is not kept in the state directory while the turn runs: " +
			err.Error())
	}
}

// keepReceipt writes the turn's final receipt to its folder, and syncs it and the outputs that it
// names to disk. A failure is reported; the caller gets the receipt anyway.
func (r *run) keepReceipt(text []byte) {
	if r.folder.Dir == "" {
		return
	}
	if err := r.folder.Keep(text, r.steps.Sync); err != nil {
		r.obs.Preparing("the receipt, or a long output, may not be kept in the state directory: " +
			err.Error())
	}
}
