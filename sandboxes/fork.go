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

// MaxForks bounds the clones of a single Fork.
const MaxForks = 1000

// A Fork describes how to clone a running sandbox.
type Fork struct {
	Count   int           // number of clones, 1 to MaxForks
	Prefix  string        // clones are named PREFIX-1 and so on; empty: no names
	Label   string        // label of each clone; see Spec
	TTL     time.Duration // lifetime of each clone from its ready state; 0: unlimited
	Secrets bool          // allow a sandbox that holds secrets: the clones have them too
	// IDs are the IDs of the clones, one for each, which no other sandboxes have; empty: random ones.
	IDs []turnstone.SandboxID
	// Names are the names of the clones, one for each, in place of Prefix.
	Names []string
}

// Check reports the first fault of f; the error is of kind KindInvalid.
func (f Fork) Check() error {
	if f.Count < 1 || f.Count > MaxForks {
		return forkError(turnstone.KindInvalid, "sandbox",
			fmt.Errorf("%d is not between 1 and %d", f.Count, MaxForks), "")
	}
	if len(f.IDs) > 0 && len(f.IDs) != f.Count {
		return forkError(turnstone.KindInvalid, "sandbox",
			fmt.Errorf("%d IDs for %d clones", len(f.IDs), f.Count), "")
	}
	for _, id := range f.IDs {
		if err := (Spec{ID: id, Shape: turnstone.DefaultShape()}).Check(); err != nil {
			return err
		}
	}
	if len(f.Names) > 0 && (len(f.Names) != f.Count || f.Prefix != "") {
		return forkError(turnstone.KindInvalid, "sandbox",
			fmt.Errorf("%d names for %d clones", len(f.Names), f.Count), "")
	}
	for _, name := range f.Names {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	if f.Prefix != "" {
		return CheckName(fmt.Sprintf("%s-%d", f.Prefix, f.Count))
	}
	return nil
}

func forkError(kind turnstone.Kind, subject string, err error, hint string) error {
	return turnstone.NewError("sandbox.fork", kind, subject, err).WithHint(hint)
}

// Fork clones a running sandbox including its memory. The sandbox is paused for a single snapshot,
// from which all clones start. Its connections end; its processes do not notice. Each clone has its
// own random numbers, clock, names and network stack. ready is called for each started clone,
// sequentially; it may be nil. If some clones fail, the error contains their number and the others
// remain. If ctx ends, no clone remains.
func (s *Store) Fork(ctx context.Context, id turnstone.SandboxID, f Fork,
	ready func(Info)) ([]Info, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	parent, err := s.read(id)
	if err != nil {
		return nil, err
	}
	if n := parent.Network; n != nil && len(n.Headers) > 0 {
		return nil, forkError(turnstone.KindInvalid, "sandbox "+parent.Title(),
			errors.New("it has secret headers, whose values its clones would not have"),
			"create another sandbox, with --secret-header")
	}
	if parent.Session != nil && len(parent.Secrets) > 0 {
		return nil, forkError(turnstone.KindInvalid, "sandbox "+parent.Title(),
			errors.New("it belongs to a session and holds secrets, which its clones could not mask"),
			"create another sandbox of the session")
	}
	s.sweep()
	dir, release, err := s.forkFolder()
	if err != nil {
		return nil, createError(err)
	}
	defer release()
	spec := Spec{Image: parent.Image, Shape: parent.Shape, Network: parent.Network,
		Substrate: parent.Substrate, TTL: f.TTL, Label: f.Label,
		From: filepath.Join(dir, "vm"), Root: parent.Root, Parent: id, Holds: parent.Secrets,
		Belongs: parent.Session, DataOf: parent.DataOf}
	if err := s.snapshot(ctx, id, spec.From, f.Secrets); err != nil {
		return nil, err
	}
	return s.clones(ctx, spec, f, ready)
}

func (s *Store) snapshot(ctx context.Context, id turnstone.SandboxID, dir string,
	secrets bool) error {
	c, err := s.Control(ctx, id)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Snapshot(ctx, dir, SnapshotOptions{Secrets: secrets})
}

// forkPrefix is the name prefix of a folder with a snapshot for clones.
const forkPrefix = ".fork-"

// Folder creates a folder for a machine that is being saved or started. release removes the folder;
// if this process is killed, the next creation of a sandbox removes it.
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

// forkFolder creates a folder that sweep ignores until release.
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

// clones starts f.Count sandboxes from spec, concurrently up to the number of CPUs.
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
		enough := len(errs) > 0 // further clones would fail too
		mu.Unlock()
		if ctx.Err() != nil || enough {
			<-slots
			break
		}
		one := spec
		if f.Prefix != "" {
			one.Name = fmt.Sprintf("%s-%d", f.Prefix, n+1)
		}
		if len(f.Names) > 0 {
			one.Name = f.Names[n]
		}
		if len(f.IDs) > 0 {
			one.ID = f.IDs[n]
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
		return all, forkError(turnstone.KindOf(errs[0]),
			fmt.Sprintf("%d of %d clones failed", f.Count-len(all), f.Count), errs[0],
			turnstone.HintOf(errs[0]))
	}
	return all, nil
}
