// Package diskspace prevents turns from filling the disk of their host.
package diskspace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
)

// errLow is in the chain of an error that Check and Low return because the disk is nearly full.
var errLow = errors.New("the disk is nearly full")

// CheckEvery is the number of bytes between two checks of the free space by a writer.
const CheckEvery = 16 << 20

// A lowError contains the free bytes and the bytes that must stay free.
type lowError struct{ free, floor uint64 }

// Error implements error.
func (e lowError) Error() string {
	return fmt.Sprintf("%s are free, and %s must stay free", turnstone.Bytes(e.free).Human(),
		turnstone.Bytes(e.floor).Human())
}

// Is reports whether target is errLow.
func (lowError) Is(target error) bool { return target == errLow }

// A Disk is the file system that contains a directory. It is safe for concurrent use as long as its
// fields do not change.
type Disk struct {
	Dir string
	// Statfs returns the size of the file system that contains dir, and its free space, in bytes.
	Statfs func(dir string) (total, free uint64, err error)
	// Every is the time between two checks of Watch. The floor must cover a guest's writes in that
	// time.
	Every time.Duration
}

// New returns the disk that contains dir, with the kernel's figures.
func New(dir string) *Disk { return &Disk{Dir: dir, Statfs: Statfs, Every: time.Second} }

// Statfs returns the size of the file system that contains dir, and the space that this user may
// use, in bytes.
func Statfs(dir string) (total, free uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}

// Check returns an error of kind Exhausted, with errLow in its chain, if less than 1/parts of floor
// is free.
func (d *Disk) Check(floor config.Space, parts uint64) error {
	total, free, err := d.Statfs(d.Dir)
	if err != nil {
		return err
	}
	if low := floor.Floor(total) / parts; free < low {
		return turnstone.NewError("executor.space", turnstone.KindExhausted, "the disk with "+d.Dir,
			lowError{free, low}).
			WithHint("free disk space (turn gc, turn template prune), or lower free_space in " +
				"[limits] of " + config.File)
	}
	return nil
}

// Watch returns a context that ends when less than floor is free; Low then returns the reason. stop
// ends the watch.
func (d *Disk) Watch(ctx context.Context, floor config.Space) (watched context.Context,
	stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(d.Every)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			if err := d.Check(floor, 1); errors.Is(err, errLow) {
				cancel(err)
				return
			}
		}
	}()
	return watched, func() { cancel(nil) }
}

// Low returns the error that ended ctx, which Watch created. It returns nil if ctx runs, or ended
// for another reason.
func Low(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errLow) {
		return cause
	}
	return nil
}

// DefaultRoom is Room with the space that is left free by default.
func DefaultRoom(dir string) error { return Room(dir, config.Space{}) }

// Room returns ENOSPC if less than floor is free on the disk that contains dir, so that writing a
// file in dir fails as on a full disk.
func Room(dir string, floor config.Space) error {
	total, free, err := Statfs(dir)
	if err == nil && free < floor.Floor(total) {
		err = unix.ENOSPC
	}
	return err
}
