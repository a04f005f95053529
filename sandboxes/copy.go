package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/archive"
	"turnstone.dev/turnstone/wire"
)

// Upload copies the file or folder src of this machine to dest in a sandbox: into
// it when it is a folder there or ends in a slash, else under that name.
func (s *Store) Upload(ctx context.Context, id turnstone.SandboxID, src, dest string) error {
	c, err := s.client(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer closeAfter(ctx, c)()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.Pack(ctx, w, src, "")
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = c.Put(ctx, dest, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packer when Put gave up early
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return orCanceled(ctx, perr)
	}
	return orCanceled(ctx, s.fate(id, err))
}

// maxSkipped bounds how many left-out files are named: their names are a guest's.
const maxSkipped = 10

// Download copies the file or folder path of a sandbox to dest on this machine, by
// the same rules. What comes is hostile: it is unpacked by archive.Unpack's, and is
// at most as much as the sandbox can hold. tell is told what is left out.
func (s *Store) Download(ctx context.Context, id turnstone.SandboxID, path, dest string, tell func(string)) error {
	i, err := s.Get(id)
	if err != nil {
		return err
	}
	c, err := s.client(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer closeAfter(ctx, c)()
	skipped := 0
	limits := archive.Limits{Bytes: i.Shape.Disk + i.TemplateSize, Room: room,
		Skipped: func(name, why string) {
			if skipped++; skipped <= maxSkipped {
				tell(fmt.Sprintf("left out %q: %s", name, why))
			}
		}}
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		err := c.Get(ctx, path, w)
		_ = w.CloseWithError(err)
		got <- err
	}()
	err = archive.Unpack(ctx, r, dest, limits)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if skipped > maxSkipped {
		tell(fmt.Sprintf("left out %d more", skipped-maxSkipped))
	}
	if gerr := <-got; gerr != nil && !errors.Is(gerr, io.ErrClosedPipe) {
		err = gerr
	}
	return orCanceled(ctx, s.fate(id, err))
}

// keepFree is what a download leaves free of this machine's disk, or a twentieth
// of a small one.
const keepFree = 1 << 30

// room says whether the disk of dir has room left.
func room(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	total, free := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
	if free < min(keepFree, total/20) {
		return unix.ENOSPC
	}
	return nil
}

// WriteFile writes what r yields to one file of a sandbox, whole or not at all.
// Reading r may outlive the call by one Read.
func (s *Store) WriteFile(ctx context.Context, id turnstone.SandboxID, path string, r io.Reader) error {
	c, err := s.client(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer closeAfter(ctx, c)()
	err = c.Feed(r, func(stream wire.StreamID) error {
		_, err := c.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: path, Stream: stream})
		return err
	})
	if err == nil {
		return nil
	}
	return orCanceled(ctx, s.fate(id, err))
}

// ReadFile writes the content of one file of a sandbox to w.
func (s *Store) ReadFile(ctx context.Context, id turnstone.SandboxID, path string, w io.Writer) error {
	c, err := s.client(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer closeAfter(ctx, c)()
	stream := c.NewStream()
	r, err := c.Receiver(stream)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()
	answer := make(chan error, 1)
	go func() {
		_, err := c.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: path, Stream: stream})
		if err != nil {
			_ = r.Close()
		}
		answer <- err
	}()
	out := &counter{w: w}
	err = transfer(out, r)
	if err != nil {
		_ = r.Close()
	}
	failed := <-answer
	switch {
	case out.err != nil:
		return out.err // and the rest is what follows from it
	case failed != nil:
		err = failed
	}
	return orCanceled(ctx, s.fate(id, err))
}
