package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// Stat describes a file or folder of a sandbox. It follows symbolic links.
func (a *Access) Stat(ctx context.Context, id turnstone.SandboxID, path string) (
	info wire.FileSystemFileInfo, err error) {
	err = a.Use(ctx, id, func(c *wire.Client) error {
		r, err := c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: path})
		if err == nil {
			info = r.File
		}
		return err
	})
	return info, err
}

// A Copy is a copy of a file or folder. Its names are those of Upload and Download.
type Copy struct {
	From, To string
	// Owners means that the copies belong to the users and groups of the originals, by numbers. On this
	// machine only root may give files away.
	Owners bool
	// Skipped is called for files that are left out of a copy to this machine; nil: nothing is called.
	Skipped func(string)
}

// Upload copies the file or folder src of this machine to dest in a sandbox: into dest if it is a
// folder there or ends in a slash, otherwise under dest's name. If src ends in "/.", what is in the
// folder src is copied into the folder dest, without src's own name.
func (a *Access) Upload(ctx context.Context, id turnstone.SandboxID, src, dest string) error {
	return a.CopyIn(ctx, id, Copy{From: src, To: dest})
}

// CopyIn is Upload with options.
func (a *Access) CopyIn(ctx context.Context, id turnstone.SandboxID, what Copy) error {
	c, err := a.Client(ctx, id)
	if err != nil {
		return err
	}
	defer c.Close()
	defer closeAfter(ctx, c)()
	name, dest := "", what.To
	if _, contents := tarfiles.CutContents(what.From); contents {
		name, dest = ".", strings.TrimRight(dest, "/")+"/"
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		pack := tarfiles.Packer{Holes: true, Owners: what.Owners}
		err := pack.Pack(ctx, w, what.From, name)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = c.Unpack(ctx, wire.FileSystemUnpackParams{Dest: dest, Owners: what.Owners}, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packer if Put returned early
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return orCanceled(ctx, perr)
	}
	return orCanceled(ctx, a.EndReason(ctx, id, err))
}

// maxSkipped bounds the number of skipped files that are named: their names come from the guest.
const maxSkipped = 10

// maxHoles bounds the zeros that are copied out of a sandbox and use no space here, in bytes.
const maxHoles = 1 << 40

// Download copies the file or folder path of a sandbox to dest on this machine by the same rules.
// The data is untrusted: nothing is written outside of dest, and the size is bounded by the
// sandbox's capacity, except holes. tell is called for skipped files.
func (a *Access) Download(ctx context.Context, id turnstone.SandboxID, path, dest string,
	tell func(string)) error {
	return a.CopyOut(ctx, id, Copy{From: path, To: dest, Skipped: tell})
}

// CopyOut is Download with options.
func (a *Access) CopyOut(ctx context.Context, id turnstone.SandboxID, what Copy) error {
	tell := what.Skipped
	if tell == nil {
		tell = func(string) {}
	}
	path, contents := tarfiles.CutContents(what.From)
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
	limits := tarfiles.Limits{Bytes: i.Capacity, Holes: maxHoles, Room: room, Contents: contents, Owners: what.Owners,
		Skipped: func(name, why string) {
			if skipped++; skipped <= maxSkipped {
				tell(fmt.Sprintf("skipped %q: %s", name, why))
			}
		}}
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		err := pack(ctx, c, wire.FileSystemPackParams{Path: path, Owners: what.Owners, Holes: true}, w)
		_ = w.CloseWithError(err)
		got <- err
	}()
	err = tarfiles.Unpack(ctx, r, what.To, top, limits)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if skipped > maxSkipped {
		tell(fmt.Sprintf("skipped %d more", skipped-maxSkipped))
	}
	if gerr := <-got; gerr != nil && !errors.Is(gerr, io.ErrClosedPipe) {
		err = gerr
	}
	return orCanceled(ctx, a.EndReason(ctx, id, err))
}

// pack is wire.Client.Pack, also for agents of earlier versions, which do not know p.Holes: they send nothing before they
// say so.
func pack(ctx context.Context, c *wire.Client, p wire.FileSystemPackParams, w io.Writer) error {
	err := c.Pack(ctx, p, w)
	if turnstone.KindOf(err) == turnstone.KindInvalid && strings.Contains(err.Error(), `unknown field "holes"`) {
		p.Holes = false
		return c.Pack(ctx, p, w)
	}
	return err
}

// Unpack writes what is in the tar stream of r into the folder what.To of a sandbox, which is made if it is
// not there. Reading r may outlive the call by one Read.
func (a *Access) Unpack(ctx context.Context, id turnstone.SandboxID, what Copy, r io.Reader) error {
	return a.alone(ctx, id, func(c *wire.Client) error {
		return c.Unpack(ctx, wire.FileSystemUnpackParams{Dest: strings.TrimRight(what.To, "/") + "/",
			Owners: what.Owners}, r)
	})
}

// Pack writes the file or folder what.From of a sandbox to w as a tar stream, which is untrusted.
func (a *Access) Pack(ctx context.Context, id turnstone.SandboxID, what Copy, w io.Writer) error {
	return a.alone(ctx, id, func(c *wire.Client) error {
		return c.Pack(ctx, wire.FileSystemPackParams{Path: what.From, Owners: what.Owners}, w)
	})
}

// alone calls f with a connection that it does not share.
func (a *Access) alone(ctx context.Context, id turnstone.SandboxID, f func(*wire.Client) error) error {
	c, err := a.Client(ctx, id)
	if err != nil {
		return err
	}
	defer c.Close()
	defer closeAfter(ctx, c)()
	return orCanceled(ctx, a.EndReason(ctx, id, f(c)))
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
