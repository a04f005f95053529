package turn

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/receipt"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// collected is what a turn left behind, before it is kept.
type collected struct {
	batch *store.Batch
	state turnstone.Digest
	tree  turnstone.TreeRef
	layer turnstone.LayerInfo
}

// collect takes the state out of the sandbox s, whose steps are over, into a new
// batch. The caller closes the batch.
func (r *run) collect(ctx context.Context, s *Sandbox, b collect.Bounds) (*collected, error) {
	changes, err := r.freeze(ctx, s, b)
	if err != nil {
		return nil, err
	}
	defer func() { _ = changes.Close() }()
	batch, err := r.at.cs.Store.Begin(ctx)
	if err != nil {
		return nil, err
	}
	l := &collected{batch: batch}
	if err := r.readDisk(ctx, s, l, changes); err != nil {
		_ = batch.Close()
		return nil, err
	}
	return l, nil
}

// freeze takes what the sandbox has changed. The machine ends, unless it is the session's.
func (r *run) freeze(ctx context.Context, s *Sandbox, b collect.Bounds) (c *collect.Changes, err error) {
	if r.paused != nil {
		c, r.restless, err = r.paused.pause(ctx, s, b)
		return c, err
	}
	return collect.Take(ctx, s, nil, b)
}

// readDisk puts the state into the batch.
func (r *run) readDisk(ctx context.Context, s *Sandbox, l *collected, c *collect.Changes) error {
	base, err := r.base(ctx, s, l.batch)
	if err != nil {
		return err
	}
	if r.plan.Secrets != nil { // looked through first: nothing of a value may get as far as a pack
		leaks := newLeakWatch(r.plan.Secrets)
		watched := layer.Options{Inspect: leaks.inspect, Check: leaks.check}
		_, _, err := c.Apply(ctx, hashOnly{tree.NewHasher(), l.batch}, base, watched)
		if err == nil {
			err = leaks.found()
		}
		if err != nil {
			return err
		}
	}
	ref, stats, err := c.Apply(ctx, l.batch, base, layer.Options{})
	if err != nil {
		return err
	}
	l.tree = ref
	if l.layer, err = r.layerOf(ctx, l, base, stats); err != nil {
		return err
	}
	env, dropped := r.plan.Secrets.Strip(r.setup.link.Inherited(c.Env))
	if len(dropped) > 0 {
		r.obs.Preparing("not kept, for they hold a secret: " + strings.Join(dropped, ", "))
	}
	if name := r.plan.Secrets.Written().In(c.Cwd); name != "" {
		return leaked("the working directory", name)
	}
	slices.Sort(env)
	b, err := json.Marshal(turnstone.TurnState{Format: repo.StateFormat, Image: r.plan.Image,
		Tree: ref, Env: env, Cwd: c.Cwd})
	if err != nil {
		return err
	}
	l.state, err = l.batch.Put(ctx, b)
	return err
}

// hashOnly keeps nothing of what is put, and gets what others have.
type hashOnly struct {
	*tree.Hasher
	have tree.Getter
}

// Get implements tree.Getter.
func (h hashOnly) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	return h.have.Get(ctx, d)
}

// layerOf is what the turn itself changed. A machine that went on has more than
// that on its disk.
func (r *run) layerOf(ctx context.Context, l *collected, base turnstone.TreeRef,
	stats layer.Stats) (info turnstone.LayerInfo, err error) {
	parent := base
	if r.at.state != nil {
		parent = r.at.state.Tree
	}
	if parent == l.tree {
		return info, nil
	}
	info = turnstone.LayerInfo{Added: stats.Added, Changed: stats.Changed, Removed: stats.Removed}
	if parent != base {
		info = turnstone.LayerInfo{}
		for c, err := range tree.Diff(ctx, l.batch, parent, l.tree) {
			switch {
			case err != nil:
				return info, err
			case c.Old == nil:
				info.Added++
			case c.New == nil:
				info.Removed++
			default:
				info.Changed++
			}
		}
	}
	info.Digest, err = layer.Digest(ctx, l.batch, parent, l.tree)
	return info, err
}

// base returns the tree that the sandbox's disk lies on.
func (r *run) base(ctx context.Context, s *Sandbox, w tree.Writer) (turnstone.TreeRef, error) {
	if r.paused != nil {
		if r.paused.Base == (turnstone.TreeRef{}) { // the template
			ref, err := r.x.Templates().Tree(ctx, s.Template, w)
			r.paused.Base = ref
			return ref, err
		}
		return r.paused.Base, nil
	}
	if r.at.state != nil {
		return r.at.state.Tree, nil
	}
	return r.x.Templates().Tree(ctx, s.Template, w)
}

// A leakWatch looks for secrets in what a state would keep.
type leakWatch struct {
	secrets *secret.Set
	mu      sync.Mutex
	scans   map[string]*secret.Scanner
}

// newLeakWatch returns one that finds secrets in all forms in which they are masked.
func newLeakWatch(secrets *secret.Set) *leakWatch { return &leakWatch{secrets: secrets.Written()} }

func (w *leakWatch) inspect(path string) io.Writer {
	if w.secrets == nil {
		return nil
	}
	c := w.secrets.Scanner()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scans == nil {
		w.scans = map[string]*secret.Scanner{}
	}
	w.scans[path] = c
	return c
}

func (w *leakWatch) check(path string, a *tree.Attr) error {
	if w.secrets == nil {
		return nil
	}
	texts := []string{path, a.Target}
	for _, x := range a.Xattrs {
		texts = append(texts, x.Name, string(x.Value))
	}
	for _, text := range texts {
		if name := w.secrets.In(text); name != "" {
			return leaked(w.secrets.Mask(path), name)
		}
	}
	return nil
}

// found reports the first file, by path, that holds a value.
func (w *leakWatch) found() error {
	var paths []string
	for path, c := range w.scans {
		if c.Found() != "" {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	slices.Sort(paths)
	return leaked(paths[0], w.scans[paths[0]].Found())
}

func leaked(where, name string) error {
	return turnstone.Errorf("executor.commit", turnstone.KindInvalid, where,
		"%w (%s); what the turn changed is not kept", secret.ErrFound, name).
		WithHint("a step wrote it there: let the steps read it from their environment, and remove the file before the turn ends")
}

// commit writes the turn's record and moves its branch. l is nil when the turn left
// no state. What it changes in r.info is in the receipt that it keeps.
func (r *run) commit(ctx context.Context, l *collected) (err error) {
	if l == nil {
		l = &collected{}
		if l.batch, err = r.at.cs.Store.Begin(ctx); err != nil {
			return err
		}
	}
	defer func() { _ = l.batch.Close() }()
	if !r.at.replay && l.state != "" {
		unlock, err := r.lockBranch(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	if err := r.putMachine(ctx); err != nil {
		return err
	}
	r.info.FSHash, r.info.Layer, r.info.Changes = l.tree.Hash, l.layer.Digest, l.layer.String()
	if err := r.searchRecording(); err != nil {
		return err
	}
	r.layer, r.info.Network = l.layer, r.networkInfo()
	rec, err := r.record(ctx, l)
	if err != nil {
		return err
	}
	guests := *rec
	guests.Image = "" // with a digest in it
	if name := receipt.LeakIn(r.plan.Secrets.Written(), &guests); name != "" {
		return leaked("the turn's record", name)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	digest, err := l.batch.Put(ctx, b)
	if err != nil {
		return err
	}
	if err := l.batch.Flush(ctx); err != nil {
		return err
	}
	if r.recordDigest, r.stateDigest = digest, l.state; r.at.replay {
		return nil
	}
	_, _, err = r.at.cs.DB.Finish(ctx, session.Finish{Turn: r.info.ID, Result: r.info.Result, Record: digest, State: l.state,
		MoveBranch: l.state != "", ExpectedHead: r.at.head()})
	return err
}

// commitWithoutState keeps a turn whose state could not be kept as one that left none. When
// not even that can be written, it is in the session without a record.
func (r *run) commitWithoutState() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r.collected, r.layer, r.stateDigest, r.recordDigest = nil, turnstone.LayerInfo{}, "", ""
	r.info.FSHash, r.info.Layer, r.info.Changes = "", "", ""
	r.info.Branch, r.diverged = r.plan.Branch, false
	if err := r.commit(ctx, nil); err != nil && !r.at.replay {
		_, _, _ = r.at.cs.DB.Finish(ctx, session.Finish{Turn: r.info.ID, Result: r.info.Result})
	}
}

// lockBranch finds out which branch will end with this turn, so that the receipt can say
// it, and keeps others from moving it until unlock is called.
func (r *run) lockBranch(ctx context.Context) (unlock func(), err error) {
	path := r.x.home.Path("leases", string(r.at.session.ID)+".head")
	lock, err := statedir.Acquire(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	unlock = func() {
		_ = os.Remove(path) // while it is held; else there would be one of each session
		lock.Release()
	}
	r.info.Branch, r.diverged, err = r.at.cs.DB.Landing(ctx, r.at.turn.ID, r.plan.Branch, r.at.head())
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// head is the turn that the branch has to end with for this one to come next.
func (at *branchPoint) head() *turnstone.TurnID {
	if at.parent == nil {
		return nil
	}
	return &at.parent.ID
}

// record puts all that is kept of the turn beside its state into the batch.
func (r *run) record(ctx context.Context, l *collected) (*turnstone.TurnRecord, error) {
	rec := &turnstone.TurnRecord{Format: repo.RecordFormat, ID: r.info.ID, Session: r.at.session.ID,
		Number: r.at.turn.Number, Branch: r.info.Branch,
		Parents: r.at.turn.Parents, Kind: turnstone.TurnKindRun, Image: r.plan.Image,
		Template: r.info.Template, Substrate: r.info.Substrate,
		Isolation: r.info.Isolation, Shape: r.shape, Started: r.info.Started, Millis: r.info.Duration.Milliseconds(),
		Result: r.info.Result, Error: r.info.Error, Env: r.plan.Given, Secrets: r.plan.Secrets.Names(), Timeout: r.plan.Timeout,
		State: l.state, Layer: l.layer, Home: r.info.Home, Lifetime: r.info.Lifetime}
	put := func(to *turnstone.Content, b []byte) (err error) {
		*to, err = l.batch.PutContent(ctx, bytes.NewReader(b), int64(len(b)))
		return err
	}
	if err := put(&rec.Document, r.doc.Clean()); err != nil {
		return nil, err
	}
	r.receipt = r.steps.Receipt(&r.info)
	if err := put(&rec.Receipt, r.receipt); err != nil {
		return nil, err
	}
	if r.snapshot != nil {
		rec.VM = r.snapshot.ref
	}
	var err error
	if rec.Network, err = r.keepNetwork(ctx, l.batch); err != nil {
		return nil, err
	}
	r.network = rec.Network
	if rec.Inputs, err = r.keepInputs(ctx, l.batch); err != nil {
		return nil, err
	}
	for _, step := range r.doc.Steps {
		res := r.steps.Result(step)
		out := turnstone.RecordStep{Name: step.Name, Status: res.Status, ExitCode: res.ExitCode}
		if out.Stdout, err = r.putOutput(ctx, l.batch, step, turnstone.Stdout); err != nil {
			return nil, err
		}
		if out.Stderr, err = r.putOutput(ctx, l.batch, step, turnstone.Stderr); err != nil {
			return nil, err
		}
		rec.Steps = append(rec.Steps, out)
	}
	return rec, nil
}

// putOutput keeps all of an output; nil when it is empty or not kept.
func (r *run) putOutput(ctx context.Context, w tree.ContentPutter, step *document.Step,
	stream turnstone.Stream) (*turnstone.Content, error) {
	in, size, err := r.steps.Open(step, stream)
	if in == nil || err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	content, err := w.PutContent(ctx, in, size)
	return &content, err
}
