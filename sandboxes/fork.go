package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// MaxForks bounds how many clones one Fork makes.
const MaxForks = 1000

// A Fork says how a sandbox is cloned as it runs.
type Fork struct {
	Count   int           // clones, 1 to MaxForks
	Prefix  string        // the clones are called PREFIX-1 and on; empty: they have no names
	Label   string        // of each clone; see Spec
	TTL     time.Duration // of each clone, from when it is ready; 0: they stay
	Secrets bool          // also a sandbox that holds secrets: the clones have them too
}

// Check says what is wrong with f; the error is of kind Invalid.
func (f Fork) Check() error {
	if f.Count < 1 || f.Count > MaxForks {
		return forkError(turnstone.KindInvalid, "sandbox", fmt.Errorf("%d is not between 1 and %d", f.Count, MaxForks), "")
	}
	if f.Prefix != "" {
		return CheckName(fmt.Sprintf("%s-%d", f.Prefix, f.Count))
	}
	return nil
}

func forkError(kind turnstone.Kind, subject string, err error, hint string) error {
	return turnstone.NewError("sandbox.fork", kind, subject, err).WithHint(hint)
}

// Fork clones a sandbox as it runs, memory and all. The sandbox stands still for
// one snapshot, from which all clones start; its connections end, and its processes
// do not notice. Each clone has random numbers, a clock, names and a network stack of its own.
// ready is called for each clone that has come up, one call at a time; it may be nil. When
// some cannot be made the error says how many; those that came up stay. When ctx
// ends none of them is left.
func (s *Store) Fork(ctx context.Context, id turnstone.SandboxID, f Fork, ready func(Info)) ([]Info, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	parent, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	if n := parent.Network; n != nil && len(n.Headers) > 0 {
		return nil, forkError(turnstone.KindInvalid, "sandbox "+parent.Title(), errors.New("it has secret headers, whose values its clones would not have"), "create another sandbox, with --secret-header")
	}
	s.sweep()
	dir, release, err := s.forkFolder()
	if err != nil {
		return nil, createError(err)
	}
	defer release()
	spec := Spec{Image: parent.Image, Shape: parent.Shape, Network: parent.Network, Substrate: parent.Substrate, TTL: f.TTL, Label: f.Label,
		From: filepath.Join(dir, "vm"), Root: parent.Root, Parent: id, Holds: parent.Secrets}
	if err := s.snapshot(ctx, id, spec.From, f.Secrets); err != nil {
		return nil, err
	}
	return s.clones(ctx, spec, f, ready)
}

func (s *Store) snapshot(ctx context.Context, id turnstone.SandboxID, dir string, secrets bool) error {
	c, err := s.Control(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return c.Snapshot(ctx, dir, SnapshotOptions{Secrets: secrets})
}

// forkPrefix begins the name of a folder with a snapshot that clones start from.
const forkPrefix = ".fork-"

// Folder makes a folder for a machine that is being written down or started. It is
// there until release, which removes it; should this process be killed, the next
// creation of a sandbox does.
func (s *Store) Folder() (dir string, release func(), err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", nil, createError(err)
	}
	dir, release, err = s.forkFolder()
	if err != nil {
		return "", nil, createError(err)
	}
	return dir, release, nil
}

// forkFolder makes a folder that sweep leaves alone until release.
func (s *Store) forkFolder() (dir string, release func(), err error) {
	if dir, err = os.MkdirTemp(s.dir, forkPrefix+"*"); err != nil {
		return "", nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	lock, err := statedir.TryAcquire(filepath.Join(dir, lockFile))
	if err == nil && lock == nil {
		err = errors.New("its lock is held")
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, err
	}
	return dir, func() { _ = os.RemoveAll(dir); lock.Release() }, nil
}

// clones starts f.Count sandboxes from spec, as many at a time as there are CPUs to
// start them.
func (s *Store) clones(ctx context.Context, spec Spec, f Fork, ready func(Info)) ([]Info, error) {
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		all   []Info
		errs  []error
		slots = make(chan struct{}, max(2, runtime.NumCPU()))
	)
	for n := range f.Count {
		slots <- struct{}{}
		mu.Lock()
		enough := len(errs) > 0 // the next would fare no better
		mu.Unlock()
		if ctx.Err() != nil || enough {
			<-slots
			break
		}
		one := spec
		if f.Prefix != "" {
			one.Name = fmt.Sprintf("%s-%d", f.Prefix, n+1)
		}
		wg.Go(func() {
			defer func() { <-slots }()
			i, err := s.create(ctx, one, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			all = append(all, i)
			if ready != nil {
				ready(i)
			}
		})
	}
	wg.Wait()
	switch {
	case ctx.Err() != nil:
		for _, i := range all {
			_ = s.Remove(context.WithoutCancel(ctx), i.ID)
		}
		return nil, canceled(ctx, "sandbox.fork")
	case len(errs) > 0:
		return all, forkError(turnstone.KindOf(errs[0]), fmt.Sprintf("%d of %d clones could not be made", f.Count-len(all), f.Count), errs[0], turnstone.HintOf(errs[0]))
	}
	return all, nil
}
