package repo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Seal gives each session that is not sealed a domain, and seals all that the state directory has of
// it. Until a session is sealed as a whole nothing of it changes. A process that is killed leaves
// what the next call removes, and sessions that are sealed or not. A session with a running turn is
// an error of kind Unavailable; the report has what was sealed before it.
func (x *Repo) Seal(ctx context.Context, sessions []string) (*turnstone.SealReport, error) {
	rep := &turnstone.SealReport{Sealed: []turnstone.SealedSession{}}
	cs, err := x.Open(ctx)
	if err == nil {
		err = cs.DB.NotShared("sealing a session", "their files stay in the clear", "see docs/shared.md")
	}
	if err != nil {
		return rep, err
	}
	var failed error
	for _, name := range sessions {
		one, err := x.sealOne(ctx, name)
		if failed = err; err != nil {
			break
		}
		rep.Sealed = append(rep.Sealed, one)
	}
	if len(rep.Sealed) == 0 {
		return rep, failed
	}
	rep.Freed, err = x.scrub(ctx)
	return rep, errors.Join(failed, err)
}

func (x *Repo) sealOne(ctx context.Context, nameOrID string) (turnstone.SealedSession, error) {
	var one turnstone.SealedSession
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return one, err
	}
	if one.Session, one.Already = s, s.Domain != ""; !one.Already {
		if one.Session, one.Objects, err = x.seal(ctx, cs, s); err != nil {
			return one, err
		}
	}
	in, err := cs.In(ctx, one.Session.Domain)
	if err != nil {
		return one, err
	}
	return one, x.sealFolders(ctx, in, s.ID)
}

// scrub removes every object from the store that no session needs, every image of sealed sessions
// from the disk, and older versions of rows from the database: they were made before.
func (x *Repo) scrub(ctx context.Context) (freed int64, err error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return 0, err
	}
	swept, err := cs.Store.SweepAll(ctx,
		func(ctx context.Context, keep func(turnstone.Digest) bool) error {
			_, err := cs.mark(ctx, nil, keep)
			return err
		})
	if err != nil {
		return 0, err
	}
	rep := &turnstone.GCReport{}
	err = cs.pruneImages(ctx, rep)
	return swept.Freed + rep.Freed, errors.Join(err, cs.DB.Scrub(ctx))
}

// seal copies what the session's turns need into a new domain, and moves the session there.
func (x *Repo) seal(ctx context.Context, cs *ContextStore, s turnstone.Session) (
	_ turnstone.Session, objects int, err error) {
	in, d, err := cs.NewDomain(ctx)
	if err != nil {
		return s, 0, err
	}
	defer func() {
		cs.Settle(d)
		if err != nil && d != "" {
			_ = cs.Discard(context.WithoutCancel(ctx), d) // or the next gc
		}
	}()
	if d == "" {
		return s, 0, turnstone.Errorf("executor.seal", turnstone.KindInvalid, s.Label(),
			"cannot be sealed: keys.seal is off").
			WithHint(`write seal = "session" below [keys] in config.toml: see docs/keys.md`)
	}
	if paused, _ := filepath.Glob(x.Dir.Path("machines", string(s.ID)+"-*.json")); len(paused) > 0 {
		return s, 0, turnstone.Errorf("executor.seal", turnstone.KindUnavailable, s.Label(),
			"has a paused machine, which cannot be sealed").
			WithHint("run a turn without lifetime: session first")
	}
	g, err := cs.DB.Graph(ctx, s.ID)
	if err != nil {
		return s, 0, err
	}
	batch, err := in.Store.Begin(ctx)
	if err != nil {
		return s, 0, err
	}
	defer func() { _ = batch.Close() }()
	bases, err := x.basesOf(ctx, cs, g.Turns)
	if err != nil {
		return s, 0, err
	}
	if err := cs.copyTo(ctx, batch, g.Turns, bases); err != nil {
		return s, 0, err
	}
	if err := batch.Flush(ctx); err != nil {
		return s, 0, err
	}
	needs := batch.Needs()
	if err := cs.DB.MoveTo(ctx, s.ID, d, g.Turns, needs, bases); err != nil {
		return s, 0, err
	}
	s.Domain = d
	return s, len(needs), nil
}

// basesOf returns the trees of the templates on which those of turns began that have no parent, as
// far as these are built here: only then can files of theirs be in an image alone.
func (x *Repo) basesOf(ctx context.Context, cs *ContextStore, turns []turnstone.Turn) (
	bases []turnstone.TreeRef, err error) {
	for _, t := range turns {
		if len(t.Parents) > 0 || t.State == "" {
			continue
		}
		st, err := cs.State(ctx, t.State)
		if err != nil {
			return nil, err
		}
		base, err := x.templateState(ctx, cs, st.Image)
		if turnstone.KindOf(err) == turnstone.KindNotFound ||
			turnstone.KindOf(err) == turnstone.KindUnavailable {
			continue
		}
		if err != nil {
			return nil, err
		}
		bases = append(bases, base.Tree)
	}
	return bases, nil
}

// copyTo puts what turns need into a batch, except what only the images of the templates bases have.
func (cs *ContextStore) copyTo(ctx context.Context, batch *store.Batch, turns []turnstone.Turn,
	bases []turnstone.TreeRef) error {
	failed := func(what string, err error) error {
		return turnstone.NewError("executor.seal", turnstone.KindOf(err), what, err).
			WithHint("list all damage with turn fsck; the session is as before")
	}
	below := Seen{}
	template := &Reach{In: cs, Object: Seen{}.First, Failed: failed,
		Content: func(_ context.Context, c turnstone.Content) error {
			below.First(c.Digest)
			return nil
		}}
	for _, ref := range bases {
		if err := template.Tree(ctx, "template", ref); err != nil {
			return err
		}
	}
	seen := Seen{}
	put := func(_ turnstone.Digest, b []byte) error {
		_, err := batch.Put(ctx, b)
		return err
	}
	r := &Reach{In: cs, Object: seen.First, Got: put, Failed: failed}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		objects, err := cs.Store.ContentObjects(ctx, c)
		for _, d := range objects {
			if err != nil || !seen.First(d) {
				continue
			}
			var b []byte
			if b, err = cs.Store.Get(ctx, d); err == nil {
				err = put(d, b)
			}
		}
		if (err == nil && len(objects) == 0 || turnstone.KindOf(err) == turnstone.KindNotFound) &&
			cs.inTemplate(c.Digest) {
			if below[c.Digest] || c.Size > store.MaxObject || !seen.First(c.Digest) {
				return nil
			}
			// A template has it by chance, such as a package that was installed.
			var b []byte
			if b, err = cs.Read(ctx, c, store.MaxObject); err == nil {
				err = put(c.Digest, b)
			}
		}
		return err
	}
	for _, t := range turns {
		if err := r.Turn(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// sealFolders removes the folders of a sealed session's turns, which were written before it was
// sealed: the store has what is in them. Of an interrupted turn, which the store does not have, the
// receipt is sealed.
func (x *Repo) sealFolders(ctx context.Context, in *ContextStore, s turnstone.SessionID) error {
	turns, err := in.DB.Turns(ctx, s)
	if err != nil {
		return err
	}
	for _, t := range turns {
		if err := x.sealFolder(in.Domain, t); err != nil {
			return turnstone.NewError("executor.seal", turnstone.KindUnavailable,
				x.Dir.Path("turns", string(t.ID)), err).WithHint("check its permissions, and seal again")
		}
	}
	return nil
}

func (x *Repo) sealFolder(d *seal.Domain, t turnstone.Turn) error {
	dir := x.Dir.Path("turns", string(t.ID))
	lock, err := LockFolder(dir, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if t.Record != "" {
		return os.RemoveAll(dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, receiptFile))
	if err == nil {
		sealed, err := d.SealBytes(receiptPlace+string(t.ID), text)
		if err == nil {
			err = filestamp.WriteFile(filepath.Join(dir, sealedReceipt), sealed, 0o600)
		}
		if err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != sealedReceipt {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// sweepMemory removes what sealed sessions have left in memory: the images of domains that no session
// has, and the files of turns and sandboxes whose processes were killed.
func (x *Repo) sweepMemory(ctx context.Context, cs *ContextStore) error {
	domains, err := cs.DB.Domains(ctx)
	if err != nil || len(domains) == 0 && !x.Dir.HasMemory() {
		return err
	}
	top, err := x.Dir.Memory()
	if err != nil {
		return err
	}
	images, _ := os.ReadDir(filepath.Join(top, "images"))
	for _, e := range images {
		if len(domains[turnstone.DomainID(e.Name())]) == 0 {
			err = errors.Join(err, x.Dir.ForgetMemory("images", e.Name()))
		}
	}
	for _, kind := range []string{"turns", MemoryOfSandboxes, MemoryOfMachines} {
		left, _ := filepath.Glob(filepath.Join(top, kind, "*"))
		for _, dir := range left {
			lock, lerr := LockFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
			if lerr != nil {
				continue // its process runs, or it is gone
			}
			err = errors.Join(err, os.RemoveAll(dir), lock.Close())
		}
	}
	return err
}

// A Shredder is Keys that can destroy a domain's key. Destroying it again does nothing.
type Shredder interface {
	// Shred calls alone when no session can be added to the domain any longer, and destroys nothing
	// if that fails.
	Shred(ctx context.Context, id turnstone.DomainID, alone func(context.Context) error) error
}

// Shred destroys the key of a session's domain, and then removes the session with all that is
// sealed with the key. After an error it can be called again; what was read before is not undone.
func (x *Repo) Shred(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return s, err
	}
	turns, id, err := cs.shreddable(ctx, s)
	if err != nil {
		return s, err
	}
	alone := func(ctx context.Context) error { _, _, err := cs.shreddable(ctx, s); return err }
	if err := cs.keys.(Shredder).Shred(ctx, s.Domain, alone); err != nil {
		return s, err
	}
	if err := cs.DB.Erase(ctx, s.ID); err != nil {
		return s, err
	}
	errs := []error{x.Dir.ForgetMemory("images", string(s.Domain))}
	for _, t := range turns {
		errs = append(errs, os.RemoveAll(x.Dir.Path("turns", string(t.ID))),
			x.Dir.ForgetMemory("turns", string(t.ID)))
	}
	_, err = cs.Store.RemoveDomain(ctx, id)
	// Killed processes may have left files of the session in memory.
	return s, errors.Join(append(errs, err, x.sweepMemory(ctx, cs))...)
}

// shreddable returns the turns of a session that can be shredded, and its domain.
func (cs *ContextStore) shreddable(ctx context.Context, s turnstone.Session) (
	turns []turnstone.Turn, id seal.ID, err error) {
	fail := func(hint, format string, args ...any) error {
		return turnstone.Errorf("executor.shred", turnstone.KindInvalid, s.Label(), format, args...).
			WithHint(hint)
	}
	if s.Domain == "" {
		return nil, id, fail("remove it without --shred, or seal it first: turn session seal "+s.Label(),
			"is not sealed")
	}
	if _, can := cs.keys.(Shredder); !can {
		return nil, id, fail("see docs/keys.md", "its key is not kept here")
	}
	in, err := cs.DB.Domains(ctx)
	if err != nil {
		return nil, id, err
	}
	if all := in[s.Domain]; len(all) > 1 {
		i := slices.IndexFunc(all, func(o turnstone.SessionID) bool { return o != s.ID })
		return nil, id, fail("remove it without --shred, or remove the others first",
			"has one key with %d other sessions, such as %s", len(all)-1, all[i])
	}
	if turns, err = cs.DB.Turns(ctx, s.ID); err != nil {
		return nil, id, err
	}
	for _, t := range turns {
		if t.Status == turnstone.TurnRunning {
			return nil, id, turnstone.Errorf("executor.shred", turnstone.KindUnavailable, s.Label(),
				"turn %d is still running", t.Number).WithHint("wait for it, or end it")
		}
	}
	id, err = seal.ParseID(string(s.Domain))
	return turns, id, err
}
