// Package netrecord records the network of a turn, replays another turn's recording, and stores
// both.
package netrecord

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
)

// A spool is a file without a name that contains the bytes of a recording.
type spool struct{ *os.File }

// A Tape is the recording that a turn writes or replays.
type Tape struct {
	spool    spool               // the recording's bytes
	recorder *recording.Recorder // nil: the turn is not recorded
	leak     string              // name of a secret that the recording contains in spite of masking
	playing  turnstone.TurnID    // the turn whose recording is replayed; empty: none
}

// Close frees the tape's file.
func (n *Tape) Close() {
	if n != nil && n.spool.File != nil {
		_ = n.spool.Close()
	}
}

// Recording reports whether the turn is recorded.
func (n *Tape) Recording() bool { return n != nil && n.recorder != nil }

// newSpool creates an empty spool in a folder of the state directory.
func newSpool(h *statedir.Dir) (spool, error) {
	dir, err := h.MkdirAll("sandboxes")
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

// A Request is a turn whose network is to be prepared.
type Request struct {
	Host *host.Host
	Plan *plan.Plan
	Name string         // name of the document
	At   provision.Base // the turn's initial state
	// Sessions are the sessions whose recordings the document may name without a grant.
	Sessions []turnstone.SessionID
}

// Open prepares the turn's network before its sandbox starts: the recording to write or to replay,
// and the authority that the guest trusts. The caller closes the tape.
func Open(ctx context.Context, req Request) (n *Tape, su provision.Setup, err error) {
	h, p := req.Host, req.Plan
	n = &Tape{}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	link := h.Link(p.Net)
	if !p.Shape.Network {
		su, err = provision.Trusting(h, p, link, nil)
		return n, su, err
	}
	if p.Net.Mode.Record {
		if n.spool, err = newSpool(h.Dir); err != nil {
			return n, su, err
		}
		n.recorder = recording.NewRecorder(recording.Options{Out: n.spool, Secrets: p.Net.Secrets,
			Room: func() error { return diskspace.Room(h.Dir.Root, p.Host.Limits.FreeSpace) }})
		link.Record(n.recorder)
	}
	if p.Net.Mode.Replay {
		if err := n.openReplay(ctx, &req, link); err != nil {
			return n, su, err
		}
	}
	var before []string
	if req.At.State != nil {
		before = req.At.State.Env
	}
	su, err = provision.Trusting(h, p, link, before)
	return n, su, err
}

// openReplay opens the recording of the named turn, of the repeated turn, or of the nearest
// ancestor that has a recording.
func (n *Tape) openReplay(ctx context.Context, req *Request, link *netplan.Link) error {
	rec, err := req.recorded(ctx)
	if err != nil {
		return err
	}
	if n.spool, err = newSpool(req.Host.Dir); err != nil {
		return err
	}
	index, err := req.At.Context.Read(ctx, *rec.Network.Index, recording.MaxIndex)
	if err != nil {
		return err
	}
	in, err := req.At.Context.Store.OpenContent(ctx, *rec.Network.Data)
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
	link.Replay(recording.NewPlayer(indexed, n.spool, req.Plan.Net.Secrets))
	return nil
}

// recorded returns the record of the turn whose recording is replayed.
func (req *Request) recorded(ctx context.Context) (*turnstone.TurnRecord, error) {
	ref, cs := req.Plan.Net.Mode.ReplayOf, req.At.Context
	none := func(hint, format string, args ...any) error {
		return turnstone.Errorf("executor.network", turnstone.KindNotFound, "network: replay",
			format, args...).WithHint(hint)
	}
	if ref != "" {
		t, err := cs.DB.Resolve(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := req.replayable(t); err != nil {
			return nil, err
		}
		rec, err := cs.Record(ctx, t)
		if err == nil && (rec.Network == nil || rec.Network.Index == nil) {
			return nil, none("run it with network: record", "turn %d (%s) has no recording",
				rec.Number, rec.ID)
		}
		return rec, err
	}
	if req.At.Parent == nil {
		return nil, none("run a turn with network: record first, in the same session, "+
			"or name the turn with replay:", "there is no turn below that could have been recorded")
	}
	return nearestRecording(ctx, cs, *req.At.Parent, none)
}

// replayable rejects a recording of another session that only the document names: it contains data
// that the other session received from its network.
func (req *Request) replayable(t turnstone.Turn) error {
	own := slices.Contains(req.Sessions, t.Session)
	if req.Plan.Net.Mode.Named || req.Plan.Granted("network") || own {
		return nil
	}
	ref := req.Plan.Net.Mode.ReplayOf
	return req.Plan.NotGranted(req.Name, "network: replay: "+ref+", of another session",
		"--network replay="+ref, "network")
}

// nearestRecording follows the first parents, beginning with t.
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
			return nil, none("run one with network: record, or name another turn with replay:",
				"no turn below has a recording")
		}
		if t, err = cs.Turn(ctx, t.Parents[0]); err != nil {
			return nil, err
		}
	}
}

// Search searches the recording for secrets. A recording with a secret is not kept: the recording
// is masked while it is written, but the parts of a value may be adjacent in it.
func (n *Tape) Search(secrets *secret.Set) error {
	if n.recorder == nil || secrets == nil || n.leak != "" {
		return nil
	}
	rec, words := n.recorder.Finish(), secrets.Written()
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

// Keep adds the data about the requested network to the batch; nil if there is none. tell receives
// the reason if the recording is not kept.
func (n *Tape) Keep(ctx context.Context, b *store.Batch, asked *turnstone.NetworkSpec,
	tell func(string)) (*turnstone.RecordNetwork, error) {
	rec := &turnstone.RecordNetwork{Replayed: n.playing}
	if !asked.Same(nil) {
		rec.Spec = asked.Bare()
	}
	if n.recorder == nil {
		if rec.Spec == nil && rec.Replayed == "" {
			return nil, nil
		}
		return rec, nil
	}
	if n.leak != "" {
		tell("the recording of the network is not kept, because it holds the secret " + n.leak)
		return rec, nil
	}
	kept := n.recorder.Finish()
	index, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	if len(index) > recording.MaxIndex {
		tell("the recording of the network is not kept: its index is too large")
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

// Info returns the receipt's summary of the network. The summary may contain text of the guest.
func (n *Tape) Info() string {
	switch {
	case n.playing != "":
		return "replayed from " + string(n.playing)
	case n.recorder == nil:
		return ""
	case n.leak != "":
		return "the recording is not kept, because it holds the secret " + n.leak
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
	return s
}

// Spec returns the requested network; zero if nothing was requested.
func Spec(n *turnstone.RecordNetwork) turnstone.NetworkSpec {
	if n == nil || n.Spec == nil {
		return turnstone.NetworkSpec{}
	}
	return *n.Spec
}

// Rules returns the network rules of a turn that repeats rec's turn. A recorded turn is replayed.
func Rules(n *turnstone.RecordNetwork, rec *turnstone.TurnRecord) *document.NetworkRules {
	s := Spec(n)
	r := &document.NetworkRules{Allow: s.Allow, HasAllow: s.Only, Deny: s.Deny, Intercept: s.Open,
		NoHostCA: s.NoHostCA}
	switch {
	case n == nil:
	case n.Index != nil:
		r.Replay, r.ReplayOf = true, string(rec.ID)
	case n.Replayed != "":
		r.Replay, r.ReplayOf = true, string(n.Replayed)
	}
	return r
}
