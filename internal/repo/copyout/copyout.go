// Package copyout copies files of a turn's state to the host.
package copyout

import (
	"context"
	"errors"
	"io"
	"sync"

	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/tarfiles"
)

// Copy copies the file or folder at name in the state of the turn that ref names to dest on the
// host: into it if it is a folder or ends in a slash, otherwise under that name. Modes, less the
// umask, and times are kept; owners, set-user-ID and set-group-ID bits are not; hard links become
// separate files. Nothing is written outside of dest. Devices and pipes, and symlinks that lead out
// of the copied folder, are omitted: skipped receives each of them, and may be nil. Missing folders
// on the way to dest are created. The configured free_space of the state directory must stay free
// on the disk with dest, or else the error is of kind Exhausted.
func Copy(ctx context.Context, x *repo.Repo, ref, name, dest string,
	skipped func(name, why string)) error {
	pack, err := x.Pack(ctx, ref, name)
	if err != nil {
		return err
	}
	c, err := config.Load(x.Dir.Root)
	if err != nil {
		return err
	}
	room := func(dir string) error { return diskspace.New(dir).Check(c.Limits.FreeSpace, 1) }
	skipped = oneAtATime(skipped) // packing and unpacking run concurrently
	limits := tarfiles.Limits{Entries: 1 << 30, Bytes: 1 << 50, Skipped: skipped, Room: room}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(w, skipped)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = tarfiles.Unpack(ctx, r, dest, tarfiles.TopInState(name), limits)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packer if Unpack returned early
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return perr
	}
	return err
}

func oneAtATime(f func(name, why string)) func(name, why string) {
	var mu sync.Mutex
	return func(name, why string) {
		mu.Lock()
		defer mu.Unlock()
		if f != nil {
			f(name, why)
		}
	}
}
