package access

import (
	"context"
	"errors"
	"fmt"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// Upload copies the file or folder src of this machine to dest in a sandbox: into dest if it is a
// folder there or ends in a slash, otherwise under dest's name.
func (a *Access) Upload(ctx context.Context, id turnstone.SandboxID, src, dest string) error {
	c, err := a.Client(ctx, id)
	if err != nil {
		return err
	}
	defer c.Close()
	defer closeAfter(ctx, c)()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tarfiles.Pack(ctx, w, src, "")
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = c.Put(ctx, dest, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packer if Put returned early
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return orCanceled(ctx, perr)
	}
	return orCanceled(ctx, a.EndReason(ctx, id, err))
}

// maxSkipped bounds the number of skipped files that are named: their names come from the guest.
const maxSkipped = 10

// Download copies the file or folder path of a sandbox to dest on this machine by the same rules.
// The data is untrusted: nothing is written outside of dest, and the size is bounded by the
// sandbox's capacity. tell is called for skipped files.
func (a *Access) Download(ctx context.Context, id turnstone.SandboxID, path, dest string,
	tell func(string)) error {
	top, err := tarfiles.TopOf(path)
	if err != nil {
		return err
	}
	i, err := a.Info(ctx, id)
	if err != nil {
		return err
	}
	c, err := a.Client(ctx, id)
	if err != nil {
		return err
	}
	defer c.Close()
	defer closeAfter(ctx, c)()
	skipped := 0
	limits := tarfiles.Limits{Bytes: i.Capacity, Room: room,
		Skipped: func(name, why string) {
			if skipped++; skipped <= maxSkipped {
				tell(fmt.Sprintf("skipped %q: %s", name, why))
			}
		}}
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		err := c.Get(ctx, path, w)
		_ = w.CloseWithError(err)
		got <- err
	}()
	err = tarfiles.Unpack(ctx, r, dest, top, limits)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if skipped > maxSkipped {
		tell(fmt.Sprintf("skipped %d more", skipped-maxSkipped))
	}
	if gerr := <-got; gerr != nil && !errors.Is(gerr, io.ErrClosedPipe) {
		err = gerr
	}
	return orCanceled(ctx, a.EndReason(ctx, id, err))
}

// WriteFile atomically writes the data of r to a file of a sandbox. Reading r may outlive the call
// by one Read.
func (a *Access) WriteFile(ctx context.Context, id turnstone.SandboxID, path string,
	r io.Reader) error {
	c, done, err := a.use(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	defer closeAfter(ctx, c)()
	err = c.Feed(r, func(stream wire.StreamID) error {
		_, err := c.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: path, Stream: stream})
		return err
	})
	if err == nil {
		return nil
	}
	return orCanceled(ctx, a.EndReason(ctx, id, err))
}

// ReadFile writes the content of a sandbox's file to w.
func (a *Access) ReadFile(ctx context.Context, id turnstone.SandboxID, path string,
	w io.Writer) error {
	c, done, err := a.use(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	defer closeAfter(ctx, c)()
	stream := c.NewStream()
	r, err := c.Receiver(stream)
	if err != nil {
		return err
	}
	defer r.Close()
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
		return out.err // the other errors are its consequences
	case failed != nil:
		err = failed
	}
	return orCanceled(ctx, a.EndReason(ctx, id, err))
}

// transfer is io.Copy with its own buffer, which neither side replaces.
func transfer(dst io.Writer, src io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src},
		make([]byte, copyBuffer))
	return err
}

const copyBuffer = wire.SendChunk
