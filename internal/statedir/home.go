// Package statedir defines the layout of the directory that holds Turnstone's state on a machine,
// and provides the locks by which several processes share it.
//
//	kernel/      the guest kernel, its modules, initramfs images
//	templates/   root images, one folder per spec digest
//	snapshots/   memory snapshots, one folder per key
//	sandboxes/   sandboxes that stay, one folder each; running gVisor sandboxes; unnamed
//	             scratch disks
//	store/       objects of the context store: packs (blobs/), their index, locks
//	context.db   sessions, branches, turns
//	domains/     the wrapped key of each domain (package keyring)
//	keys/        keys that sign; rest, the keyring that unwraps the keys of domains
//	leases/      a lock for each running turn
//	images/      images that sandboxes mount below their disks; a cache
//	homes/       a lock for each home directory; disks of homes from before they were trees
//	machines/    the machine of each session's branch
//	turns/       receipts and kept outputs, one folder per turn
//	gvisor/      images with the agent, the root of gVisor's sandboxes
//	firecracker/ a folder for each running Firecracker machine
//	cache/       costly results, such as whether KVM works; data from registries
//	last-session-UID  the session that the user used last
//	slots/       a lock for each concurrent sandbox
//	config.toml  the owner's configuration (package config); optional
package statedir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostpath"
)

// Dir is a state directory. Its methods are safe for concurrent use, also by several processes.
type Dir struct {
	Root string // absolute
}

// Locate returns the absolute path of dir, or of the user's state directory if dir is empty:
// $XDG_DATA_HOME/turnstone, else ~/.local/share/turnstone.
func Locate(dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "turnstone"), nil
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(user, ".local", "share", "turnstone"), nil
}

// Open opens the state directory dir, or the user's if dir is empty. It creates the directory,
// private to its user, if it does not exist. A directory that another user could write or replace
// is an error of kind Invalid.
func Open(dir string) (*Dir, error) {
	dir, err := Locate(dir)
	if err == nil {
		err = makePrivate(dir)
	}
	if err != nil {
		return nil, turnstone.NewError("home.open", turnstone.KindUnavailable, dir, err).
			WithHint("set TURN_HOME to a directory that you can write")
	}
	if err := checkPrivate(dir); err != nil {
		return nil, err
	}
	return &Dir{Root: dir}, nil
}

// Path appends elem to the state directory's path.
func (h *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{h.Root}, elem...)...)
}

// Paths returns what hides the path of the state directory, and those of directories that contain
// it, in texts that others read.
func (h *Dir) Paths(within ...string) *hostpath.Hider {
	return hostpath.New(append(within, h.Root)...)
}

// MkdirAll creates the folder at elem and returns its path.
func (h *Dir) MkdirAll(elem ...string) (string, error) {
	dir := h.Path(elem...)
	return dir, os.MkdirAll(dir, 0o700)
}

// A Lock is a lock on a file (flock, LockFileEx): exclusive, or that of TryShare. The kernel releases it when its holder
// ends for any reason.
type Lock struct{ f *os.File }

// Acquire takes the lock at path, waiting until ctx ends. waiting, if not nil, is called once if
// another process holds the lock.
func Acquire(ctx context.Context, path string, waiting func()) (*Lock, error) {
	told := false
	for delay := time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		l, err := TryAcquire(path)
		if l != nil || err != nil {
			return l, err
		}
		if !told && waiting != nil {
			waiting()
		}
		told = true
		select {
		case <-ctx.Done():
			return nil, turnstone.NewError("home.lock", turnstone.KindCanceled, path, ctx.Err())
		case <-time.After(delay):
		}
	}
}

// TryAcquire takes the lock at path if it is free; otherwise it returns nil, nil.
func TryAcquire(path string) (*Lock, error) { return try(path, true) }

// TryShare takes a lock at path that others may share, unless somebody holds an exclusive one;
// otherwise it returns nil, nil.
func TryShare(path string) (*Lock, error) { return try(path, false) }

func try(path string, alone bool) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	free, err := lockFile(f, alone)
	if err == nil && !free {
		return nil, f.Close()
	}
	if err == nil && !sameFile(f, path) {
		// The last holder removed the file after this process opened it, so no other process would
		// see this lock.
		_ = f.Close()
		return try(path, alone)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f: f}, nil
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// Release releases the lock. It may be called on nil.
func (l *Lock) Release() {
	if l != nil {
		// A child process between fork and exec still has the descriptor open, so Close alone would
		// leave the lock held for a moment (flock(2)).
		_ = unlockFile(l.f)
		_ = l.f.Close()
	}
}
