package turn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
)

// A spool is a file without a name, with the bytes of a recording.
type spool struct{ *os.File }

func (s spool) close() {
	if s.File != nil {
		_ = s.Close()
	}
}

// A tape is a turn's recording: the one that is written, or the one that is replayed.
type tape struct {
	spool    spool               // its bytes
	recorder *recording.Recorder // nil: nothing is recorded
	leak     string              // the secret that it holds all the same
	playing  turnstone.TurnID    // whose is replayed; empty: none is
}

func (t *tape) close() { t.spool.close() }

// newSpool makes an empty one in a folder of the home.
func (x *Runner) newSpool() (spool, error) {
	dir, err := x.home.MkdirAll("sandboxes")
	if err != nil {
		return spool{}, err
	}
	f, err := os.CreateTemp(dir, ".recording-*")
	if err != nil {
		return spool{}, turnstone.NewError("executor.network", turnstone.KindUnavailable, dir, err)
	}
	_ = os.Remove(f.Name())
	return spool{f}, nil
}

// openNetwork gets ready what the turn's network needs, before its sandbox is started:
// the recording to write or to replay, and the authority that the guest is to trust.
func (r *run) openNetwork(ctx context.Context) (_ setup, err error) {
	p := r.plan
	link := netplan.NewLink(p.Net, r.x.opened.Share())
	if !p.Shape.Network {
		return r.x.trusting(p, link, nil)
	}
	if p.Net.Mode.Record {
		if r.tape.spool, err = r.x.newSpool(); err != nil {
			return setup{}, err
		}
		r.tape.recorder = recording.NewRecorder(recording.Options{Out: r.tape.spool, Secrets: p.Net.Secrets,
			Room: func() error { return diskspace.Room(r.x.home.Root, p.Host.Limits.FreeSpace) }})
		link.Record(r.tape.recorder)
	}
	if p.Net.Mode.Replay {
		if err := r.openReplay(ctx, link); err != nil {
			return setup{}, err
		}
	}
	var before []string
	if r.at.state != nil {
		before = r.at.state.Env
	}
	return r.x.trusting(p, link, before)
}

// openReplay finds the recording: that of the turn that is named, of the turn that is
// run again, or of the nearest turn below that has one.
func (r *run) openReplay(ctx context.Context, link *netplan.Link) error {
	n := &r.tape
	rec, err := r.recorded(ctx)
	if err != nil {
		return err
	}
	if n.spool, err = r.x.newSpool(); err != nil {
		return err
	}
	index, err := r.at.cs.Read(ctx, *rec.Network.Index, recording.MaxIndex)
	if err != nil {
		return err
	}
	in, err := r.at.cs.Store.OpenContent(ctx, *rec.Network.Data)
	if err != nil {
		return err
	}
	size, err := io.Copy(n.spool, in)
	if err = errors.Join(err, in.Close()); err != nil {
		return err
	}
	indexed, err := recording.Decode(index, size)
	if err != nil {
		return err
	}
	n.playing = rec.ID
	link.Replay(recording.NewPlayer(indexed, n.spool, r.plan.Net.Secrets))
	return nil
}

// recorded returns the record of the turn whose recording is replayed.
func (r *run) recorded(ctx context.Context) (*turnstone.TurnRecord, error) {
	ref, cs := r.plan.Net.Mode.ReplayOf, r.at.cs
	none := func(hint, format string, args ...any) error {
		return turnstone.Errorf("executor.network", turnstone.KindNotFound, "network: replay",
			format, args...).WithHint(hint)
	}
	if ref != "" {
		t, err := cs.DB.Resolve(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := r.replayable(t); err != nil {
			return nil, err
		}
		rec, err := cs.Record(ctx, t)
		if err == nil && (rec.Network == nil || rec.Network.Index == nil) {
			return nil, none("run it with network: record", "turn %d (%s) has no recording", rec.Number, rec.ID)
		}
		return rec, err
	}
	if r.at.parent == nil {
		return nil, none("run a turn with network: record first, in the same session, or name the turn with replay:", "there is no turn below that could have been recorded")
	}
	return nearestRecording(ctx, cs, *r.at.parent, none)
}

// replayable refuses a recording of another session that only the document names: it holds
// what that session got from its network.
func (r *run) replayable(t turnstone.Turn) error {
	own := t.Session == r.at.session.ID || r.again != nil && t.Session == r.again.session
	if r.plan.Net.Mode.Named || r.plan.Granted("network") || own {
		return nil
	}
	return plan.NotGranted(r.doc.Name, "network: replay: "+r.plan.Net.Mode.ReplayOf+", of another session", "--network replay="+r.plan.Net.Mode.ReplayOf, "network")
}

// nearestRecording goes from parent to parent, beginning with t.
func nearestRecording(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn,
	none func(hint, format string, args ...any) error) (*turnstone.TurnRecord, error) {
	for {
		rec, err := cs.Record(ctx, t)
		if err != nil {
			return nil, err
		}
		if rec.Network != nil && rec.Network.Index != nil {
			return rec, nil
		}
		if len(t.Parents) == 0 {
			return nil, none("run one with network: record, or name another turn with replay:", "no turn below has a recording")
		}
		if t, err = cs.DB.Turn(ctx, t.Parents[0]); err != nil {
			return nil, err
		}
	}
}

// searchRecording looks for secrets in the recording, which is not kept if it holds one: it
// is masked as it is written, but pieces of a value can come together in it.
func (r *run) searchRecording() error {
	n := &r.tape
	if n.recorder == nil || r.plan.Secrets == nil || n.leak != "" {
		return nil
	}
	rec, words := n.recorder.Finish(), r.plan.Secrets.Written()
	n.leak = receipt.LeakIn(words, rec)
	for i := range rec.Lookups {
		n.leak = cmp.Or(n.leak, words.Hosts().In(rec.Lookups[i].Name))
	}
	for i := range rec.Streams {
		n.leak = cmp.Or(n.leak, words.Hosts().In(rec.Streams[i].Host))
	}
	scan := words.Scanner()
	if _, err := io.Copy(scan, io.NewSectionReader(n.spool, 0, rec.Bytes)); err != nil {
		return err
	}
	n.leak = cmp.Or(n.leak, scan.Found())
	return nil
}

// keepNetwork puts what is kept of the network into the batch; nil when there is nothing
// to say.
func (r *run) keepNetwork(ctx context.Context, b *store.Batch) (*turnstone.RecordNetwork, error) {
	n := &r.tape
	if !r.shape.Network {
		return nil, nil
	}
	rec := &turnstone.RecordNetwork{Replayed: n.playing}
	if asked := &r.plan.Net.Asked; !asked.Same(nil) {
		rec.Spec = asked.Bare()
	}
	if n.recorder == nil {
		if rec.Spec == nil && rec.Replayed == "" {
			return nil, nil
		}
		return rec, nil
	}
	if n.leak != "" {
		r.obs.Preparing("the recording of the network is not kept, because it holds the secret " + n.leak)
		return rec, nil
	}
	kept := n.recorder.Finish()
	index, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	if len(index) > recording.MaxIndex {
		r.obs.Preparing("the recording of the network is not kept: its index is too large")
		return rec, nil
	}
	put := func(in io.Reader, size int64) (*turnstone.Content, error) {
		c, err := b.PutContent(ctx, in, size)
		return &c, err
	}
	if rec.Index, err = put(bytes.NewReader(index), int64(len(index))); err != nil {
		return nil, err
	}
	if rec.Data, err = put(io.NewSectionReader(n.spool, 0, kept.Bytes), kept.Bytes); err != nil {
		return nil, err
	}
	rec.Facts = kept.Facts()
	return rec, nil
}

// networkInfo says in the receipt what became of the network.
func (r *run) networkInfo() string {
	n := &r.tape
	switch {
	case !r.shape.Network:
		return ""
	case n.playing != "":
		return "replayed from " + string(n.playing)
	case n.recorder == nil:
		return ""
	case n.leak != "":
		return r.maskedLine("the recording is not kept, because it holds the secret " + n.leak)
	}
	rec := n.recorder.Finish()
	s := "recorded " + rec.Facts()
	if k := rec.Encrypted(); k > 0 {
		s += fmt.Sprintf("; %d encrypted, which cannot be replayed (intercept: true opens them)", k)
	}
	if len(rec.Unrecorded) > 0 {
		s += "; not recorded: " + rec.Unrecorded[0]
		if more := len(rec.Unrecorded) - 1; more > 0 {
			s += fmt.Sprintf(" and %d more", more)
		}
	}
	if rec.Cut != "" {
		s += "; not whole: " + rec.Cut
	}
	return r.maskedLine(s)
}

// recordedSpec is what was asked for; zero when there was nothing.
func recordedSpec(n *turnstone.RecordNetwork) turnstone.NetworkSpec {
	if n == nil || n.Spec == nil {
		return turnstone.NetworkSpec{}
	}
	return *n.Spec
}

// recordedRules are those of a turn that repeats rec's. What was recorded is replayed.
func recordedRules(n *turnstone.RecordNetwork, rec *turnstone.TurnRecord) *document.NetworkRules {
	s := recordedSpec(n)
	r := &document.NetworkRules{Allow: s.Allow, HasAllow: s.Only, Deny: s.Deny, Intercept: s.Open, NoHostCA: s.NoHostCA}
	switch {
	case n == nil:
	case n.Index != nil:
		r.Replay, r.ReplayOf = true, string(rec.ID)
	case n.Replayed != "":
		r.Replay, r.ReplayOf = true, string(n.Replayed)
	}
	return r
}
