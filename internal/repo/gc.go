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
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// The ages that GC has when it is told none.
const (
	DefaultKeepAnonymous   = 7 * 24 * time.Hour
	DefaultKeepUnreachable = 30 * 24 * time.Hour
)

// GCRequest says what is old enough to be deleted.
type GCRequest struct {
	KeepAnonymous   time.Duration // sessions without a name and without a tag, counted from their last turn; folders of turns in no session
	KeepUnreachable time.Duration // turns that no branch, tag or running turn has behind it
	DryRun          bool
	Now             time.Time // zero: the time it is
}

// GCReport says what GC deleted, or would delete.
type GCReport struct {
	DryRun   bool              `json:"dry_run"`
	Sessions []session.Session `json:"sessions"`
	Turns    []session.Turn    `json:"turns"`
	Store    store.Swept       `json:"store"`        // of a dry run: objects only
	Folders  int               `json:"turn_folders"` // below turns/, of turns that are in no session
	Captures int               `json:"captures"`     // outputs of turns that were killed, which no receipt names
	Leases   int               `json:"leases"`       // left by processes that were killed; a dry run does not count them
	Images   int               `json:"images"`       // of the cache, that led to turns that are gone
	Freed    int64             `json:"freed_bytes"`  // packs, images and folders; of a dry run: without packs
	Remain   int               `json:"turns_remain"`
	Objects  int               `json:"objects_remain"`
	Stuck    []string          `json:"stuck,omitempty"` // what broken-out machines left and cannot be removed, with the reason
}

// GC deletes what nothing leads to any more. What stays: every turn behind a
// branch's head, a tag or a running turn, with all it needs; and what is younger
// than req says. It may run beside turns, imports and other calls of GC. When
// something that is needed cannot be read, nothing is deleted from the store.
func (x *Repo) GC(ctx context.Context, req GCRequest) (*GCReport, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	if req.Now.IsZero() {
		req.Now = time.Now()
	}
	rule := session.Rule{Now: req.Now, Anonymous: req.KeepAnonymous, Unreachable: req.KeepUnreachable}
	rep := &GCReport{DryRun: req.DryRun}
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
		rep.Store, err = cs.Store.Sweep(ctx, func(ctx context.Context, keep func(turnstone.Digest) bool) error {
			rep.Remain, err = cs.mark(ctx, nil, keep)
			return err
		})
		rep.Objects = rep.Store.Kept
	}
	if err != nil {
		return nil, err
	}
	rep.Freed = rep.Store.Freed
	if err := x.sweepFolders(ctx, cs, rep, req); err != nil {
		return nil, err
	}
	if err := cs.pruneImages(ctx, rep); err != nil {
		return nil, err
	}
	if !req.DryRun {
		rep.Leases, err = cs.DB.SweepLeases(ctx)
		rep.Stuck = x.Dir.EmptyTrash(ctx)
	}
	return rep, err
}

// pruneImages removes from the cache what holds files of turns that are gone.
func (cs *ContextStore) pruneImages(ctx context.Context, rep *GCReport) error {
	all, err := cs.DB.Every(ctx)
	if err != nil {
		return err
	}
	gone := map[turnstone.TurnID]bool{} // of a dry run they are still there
	for _, t := range rep.Turns {
		gone[t.ID] = true
	}
	records := map[turnstone.Digest]bool{}
	for _, t := range all {
		if !gone[t.ID] {
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
	var freed int64
	rep.Images, freed, err = cs.Images.Prune(func(r lowerdir.Recipe) bool { return records[r.Newest] }, rep.DryRun)
	rep.Freed += freed
	return err
}

// mark calls keep for all that the turns of all sessions need, but those in without.
func (cs *ContextStore) mark(ctx context.Context, without map[turnstone.TurnID]bool, keep func(turnstone.Digest) bool) (turns int, err error) {
	r := &Reach{In: cs, Object: keep, Failed: func(what string, err error) error {
		return turnstone.NewError("executor.gc", turnstone.KindOf(err), what, err).
			WithHint("nothing was deleted from the store; turn fsck lists all that is damaged")
	}}
	r.Content = func(ctx context.Context, c tree.Content) error { return cs.keepContent(ctx, c, keep) }
	layers, err := cs.Layers(ctx)
	if err != nil {
		return 0, err
	}
	for _, l := range layers {
		if err := r.Tree(ctx, "template "+l.Spec.Short(), l.Tree); err != nil {
			return 0, err
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
		if err := r.Turn(ctx, t); err != nil {
			return turns, err
		}
	}
	return turns, nil
}

// keepContent calls keep for the objects that c consists of.
func (cs *ContextStore) keepContent(ctx context.Context, c tree.Content, keep func(turnstone.Digest) bool) error {
	if c.Chunks == "" {
		keep(c.Digest) // where a template has it, there is no such object
		return nil
	}
	if !keep(c.Chunks) {
		return nil
	}
	objects, err := cs.Store.ContentObjects(ctx, c)
	if turnstone.KindOf(err) == turnstone.KindNotFound && cs.InTemplate(c.Digest) {
		return nil
	}
	for _, d := range objects {
		keep(d)
	}
	return err
}

// wouldSweep counts what Sweep would delete.
func (cs *ContextStore) wouldSweep(ctx context.Context, rep *GCReport) error {
	without := map[turnstone.TurnID]bool{}
	for _, t := range rep.Turns {
		without[t.ID] = true
	}
	kept := map[turnstone.Digest]bool{}
	var err error
	rep.Remain, err = cs.mark(ctx, without, func(d turnstone.Digest) bool {
		first := !kept[d]
		kept[d] = true
		return first
	})
	if err != nil {
		return err
	}
	for d := range kept {
		has, err := cs.Store.Has(ctx, d)
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

// sweepFolders removes the folders of turns that are in no session and are old, and
// what turns that were cut off left in theirs.
func (x *Repo) sweepFolders(ctx context.Context, cs *ContextStore, rep *GCReport, req GCRequest) error {
	entries, err := os.ReadDir(x.Dir.Path("turns"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return turnstone.NewError("executor.gc", turnstone.KindUnavailable, x.Dir.Path("turns"),
			err)
	}
	expired := map[turnstone.TurnID]bool{}
	for _, t := range rep.Turns {
		expired[t.ID] = true
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), "t_") || ctx.Err() != nil {
			continue
		}
		dir := x.Dir.Path("turns", e.Name())
		if err := cs.sweepFolder(ctx, dir, expired[turnstone.TurnID(e.Name())], rep, req); err != nil {
			return turnstone.NewError("executor.gc", turnstone.KindUnavailable, dir, err).
				WithHint("check its permissions")
		}
	}
	return nil
}

func (cs *ContextStore) sweepFolder(ctx context.Context, dir string, expired bool, rep *GCReport, req GCRequest) error {
	lock, err := LockFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil // its turn runs, or another gc was here
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
	// A replay is in no session, and a session that was removed is none: what they left
	// stays for a while. The lock says that nobody writes it any more.
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

// diskUse is what the files below dir take up, in bytes; what cannot be read counts nothing.
func diskUse(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a file that is gone takes up nothing
		}
		if i, err := d.Info(); err == nil && i.Mode().IsRegular() {
			sum += statedir.Allocated(i)
		}
		return nil
	})
	return sum
}
