package repo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/session"
)

// GC deletes unreachable data. It keeps every turn that is reachable from a branch's head, a tag or
// a running turn, with all its data, and everything that is younger than req's ages. It may run
// concurrently with turns, imports and other calls of GC. If needed data cannot be read, nothing is
// deleted from the store.
func (x *Repo) GC(ctx context.Context, req turnstone.GCRequest) (*turnstone.GCReport, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	rule := session.Rule{Now: req.Now, Anonymous: req.KeepAnonymous,
		Unreachable: req.KeepUnreachable}
	if req.Now.IsZero() { // what ends from now on has no age: a turn that is found interrupted stays
		rule.Now, req.Now = cs.DB.Now(), time.Now() // keys are this machine's
	}
	rep := &turnstone.GCReport{DryRun: req.DryRun}
	forget := cs.DB.Prune
	if req.DryRun {
		forget = cs.DB.Expired
	}
	gone, err := forget(ctx, rule)
	if err != nil {
		return nil, err
	}
	rep.Sessions, rep.Turns = gone.Sessions, gone.Turns
	if req.DryRun {
		err = cs.wouldSweep(ctx, rep)
	} else {
		rep.Store, err = cs.Store.Sweep(ctx,
			func(ctx context.Context, keep func(turnstone.Digest) bool) error {
				rep.Remain, err = cs.mark(ctx, nil, keep)
				return err
			})
		rep.Objects = rep.Store.Kept
	}
	if err != nil {
		return nil, err
	}
	rep.Freed = rep.Store.Freed
	if err := cs.collectKeys(ctx, rep, req); err != nil {
		return nil, err
	}
	if err := x.sweepFolders(ctx, cs, rep, req); err != nil {
		return nil, err
	}
	if err := cs.pruneImages(ctx, rep); err != nil {
		return nil, err
	}
	if !req.DryRun {
		if err := x.sweepMemory(ctx, cs); err != nil {
			return nil, err
		}
		rep.Leases, err = cs.DB.SweepLeases(ctx)
		rep.Stuck = x.Dir.EmptyTrash(ctx)
	}
	return rep, err
}

// pruneImages removes images with files of deleted turns from the cache.
func (cs *ContextStore) pruneImages(ctx context.Context, rep *turnstone.GCReport) error {
	all, err := cs.DB.Every(ctx)
	if err != nil {
		return err
	}
	gone := idsOf(rep.Turns) // a dry run has not deleted them
	records := map[turnstone.Digest]bool{}
	for _, t := range all {
		if !gone[t.ID] && t.Domain == "" {
			records[t.Record] = true // the images of sealed sessions are in memory
		}
	}
	unfinished, err := cs.DB.Checkpoints(ctx)
	if err != nil {
		return err
	}
	for _, t := range unfinished {
		if t.Domain == "" {
			records[t.Record] = true
		}
	}
	layers, err := cs.Layers(ctx)
	if err != nil {
		return err
	}
	for _, l := range layers {
		records[l.Tree.Root] = true
	}
	if err := cs.homeImages(ctx, all, gone, records); err != nil {
		return err
	}
	var freed int64
	needed := func(r turnstone.ImageRecipe) bool { return records[r.Newest] }
	rep.Images, freed, err = cs.Images.Prune(needed, rep.DryRun)
	rep.Freed += freed
	return err
}

// homeImages adds the keys of the states with homes in them to keys: those that all turns but the
// gone ones began and ended with, and templates with homes as they are now.
func (cs *ContextStore) homeImages(ctx context.Context, all []turnstone.Turn,
	gone map[turnstone.TurnID]bool, keys map[turnstone.Digest]bool) error {
	homes, err := cs.DB.AllHomes(ctx)
	if err != nil {
		return err
	}
	for _, h := range homes {
		keys[HomeKey("", h.Tree.Root)] = true
	}
	uses, err := cs.DB.AllHomeUses(ctx)
	if err != nil {
		return err
	}
	byID := map[turnstone.TurnID]turnstone.Turn{}
	for _, t := range all {
		byID[t.ID] = t
	}
	for _, u := range uses {
		t, ok := byID[u.Turn]
		if !ok || gone[u.Turn] {
			continue
		}
		keys[HomeKey(t.Record, u.Ended.Root)] = true
		keys[HomeKey(byID[t.Parent()].Record, u.Began.Root)] = true
	}
	return nil
}

func idsOf(turns []turnstone.Turn) map[turnstone.TurnID]bool {
	ids := map[turnstone.TurnID]bool{}
	for _, t := range turns {
		ids[t.ID] = true
	}
	return ids
}

// mark calls keep for all data that the turns of all sessions need, except the sessions in without.
func (cs *ContextStore) mark(ctx context.Context, without map[turnstone.TurnID]bool,
	keep func(turnstone.Digest) bool) (turns int, err error) {
	r := &Reach{In: cs, Object: keep, Failed: func(what string, err error) error {
		return turnstone.NewError("executor.gc", turnstone.KindOf(err), what, err).
			WithHint("list all damage with turn fsck; nothing was deleted from the store")
	}}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		return cs.keepContent(ctx, c, keep)
	}
	trees, err := cs.DB.Pins(ctx)
	layers, failed := cs.Layers(ctx)
	err = errors.Join(err, failed)
	for _, l := range layers {
		trees = append(trees, l.Tree)
	}
	for _, l := range trees {
		err = errors.Join(err, r.Tree(ctx, "template", l))
	}
	if err != nil {
		return 0, err
	}
	// Before the turns: a turn that ends meanwhile has its data in its record.
	unfinished, err := cs.DB.Checkpoints(ctx)
	if err != nil {
		return 0, err
	}
	for _, t := range unfinished {
		if !without[t.ID] && t.Domain == "" {
			if err := r.Turn(ctx, t); err != nil {
				return 0, err
			}
		}
	}
	all, err := cs.DB.Every(ctx)
	if err != nil {
		return 0, err
	}
	for _, t := range all {
		if without[t.ID] {
			continue
		}
		turns++
		if t.Domain != "" {
			continue // what it needs is in the database
		}
		if err := r.Turn(ctx, t); err != nil {
			return turns, err
		}
	}
	if err := cs.markSealed(ctx, r, without); err != nil {
		return turns, err
	}
	if err := r.Homes(ctx, without); err != nil {
		return turns, err
	}
	return turns, cs.markHeld(ctx, r)
}

// markSealed marks what the turns of sealed sessions need, which the database knows without a key,
// and the trees of templates below them.
func (cs *ContextStore) markSealed(ctx context.Context, r *Reach,
	without map[turnstone.TurnID]bool) error {
	if err := cs.DB.Needs(ctx, without, r.Object); err != nil {
		return err
	}
	bases, err := cs.DB.Bases(ctx)
	if err != nil {
		return err
	}
	for _, b := range bases {
		if err := r.Tree(ctx, "template of session "+string(b.Session), b.Tree); err != nil {
			return err
		}
	}
	return nil
}

// keepContent calls keep for the objects of c.
func (cs *ContextStore) keepContent(ctx context.Context, c turnstone.Content,
	keep func(turnstone.Digest) bool) error {
	if c.Chunks == "" {
		keep(c.Digest) // a content in a template has no object
		return nil
	}
	if !keep(c.Chunks) {
		return nil
	}
	objects, err := cs.Store.ContentObjects(ctx, c)
	if turnstone.KindOf(err) == turnstone.KindNotFound && cs.inTemplate(c.Digest) {
		return nil
	}
	for _, d := range objects {
		keep(d)
	}
	return err
}

// wouldSweep counts what Sweep would delete.
func (cs *ContextStore) wouldSweep(ctx context.Context, rep *turnstone.GCReport) error {
	kept := Seen{}
	var err error
	if rep.Remain, err = cs.mark(ctx, idsOf(rep.Turns), kept.First); err != nil {
		return err
	}
	for d := range kept {
		has, err := cs.Store.HasName(ctx, d)
		if err != nil {
			return err
		}
		if has {
			rep.Objects++
		}
	}
	usage, err := cs.Store.Usage(ctx)
	rep.Store.Kept, rep.Store.Objects = rep.Objects, max(0, usage.Objects-rep.Objects)
	return err
}

// sweepFolders removes the old folders of turns that are in no session, and the remains of
// interrupted turns in their folders.
func (x *Repo) sweepFolders(ctx context.Context, cs *ContextStore, rep *turnstone.GCReport,
	req turnstone.GCRequest) error {
	entries, err := os.ReadDir(x.Dir.Path("turns"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return turnstone.NewError("executor.gc", turnstone.KindUnavailable, x.Dir.Path("turns"),
			err)
	}
	expired := idsOf(rep.Turns)
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), "t_") || ctx.Err() != nil {
			continue
		}
		dir := x.Dir.Path("turns", e.Name())
		if err := cs.sweepFolder(ctx, dir, expired[turnstone.TurnID(e.Name())], rep,
			req); err != nil {
			return turnstone.NewError("executor.gc", turnstone.KindUnavailable, dir, err).
				WithHint("check its permissions")
		}
	}
	return nil
}

func (cs *ContextStore) sweepFolder(ctx context.Context, dir string, expired bool,
	rep *turnstone.GCReport,
	req turnstone.GCRequest) error {
	lock, err := LockFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil // its turn runs, or another gc has locked it
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	t, err := cs.DB.Turn(ctx, turnstone.TurnID(filepath.Base(dir)))
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		return nil
	}
	known := err == nil
	st, err := lock.Stat()
	if err != nil {
		return err
	}
	// A replay is in no session, and a removed session no longer exists: their files stay for some
	// time. The lock shows that nobody writes them.
	if expired || !known && req.Now.Sub(st.ModTime()) >= req.KeepAnonymous {
		size := diskUse(dir)
		if !req.DryRun {
			err = os.RemoveAll(dir)
		}
		rep.Folders++
		rep.Freed += size
		return err
	}
	if known && !t.Interrupted() {
		return nil
	}
	files, freed, err := sweepCaptures(dir, req.DryRun)
	rep.Captures += files
	rep.Freed += freed
	return err
}

// diskUse returns the bytes that the files below dir occupy; unreadable files count as zero.
func diskUse(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a removed file uses no space
		}
		if i, err := d.Info(); err == nil && i.Mode().IsRegular() {
			sum += statedir.Allocated(i)
		}
		return nil
	})
	return sum
}
