package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/tarfiles"
)

// A Transfer copies a file or folder between the host and the sandbox, in either direction, from
// Path to Dest.
type Transfer struct {
	Path string
	Dest string // empty: the same name in the working directory

	In *os.Root // Path is read in this folder, and must not lead out of it; nil: anywhere
}

// fetchLimit bounds --get, which has its own time limit: the files of a turn can be fetched after
// the turn's time limit.
const fetchLimit = 30 * time.Minute

// AddAll copies files into the sandbox.
func (s *Sandbox) AddAll(ctx context.Context, all []Transfer) error {
	defer s.Guard(ctx)()
	for _, t := range all {
		if err := s.Add(ctx, t, io.Discard); err != nil {
			return s.CauseOf(err)
		}
	}
	return nil
}

// GetAll copies files out of the sandbox, each with at most most bytes. tell receives the names of
// omitted files.
func (s *Sandbox) GetAll(ctx context.Context, all []Transfer, most turnstone.Bytes,
	tell func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	defer s.Guard(ctx)()
	for _, t := range all {
		if err := s.get(ctx, t, most, tell); err != nil {
			return s.CauseOf(err)
		}
	}
	return nil
}

// Add copies t.Path from the host to t.Dest in the sandbox: into it if t.Dest is a folder there or
// ends in a slash, otherwise under that name. It also writes the sent data to also, as a tar
// stream.
func (s *Sandbox) Add(ctx context.Context, t Transfer, also io.Writer) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := t.Pack(ctx, io.MultiWriter(w, also))
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err := s.Client().Put(ctx, t.Dest, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packer if Put returned early
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return turnstone.NewError("executor.add", turnstone.KindInvalid, t.Path, perr)
	}
	return err
}

// Pack writes t.Path as a tar stream. A path in a document is looked up again in the document's
// folder, which has been open since the check: a later replacement of either is not followed out of
// the folder.
func (t Transfer) Pack(ctx context.Context, w io.Writer) error {
	if t.In == nil {
		return tarfiles.Pack(ctx, w, t.Path, "")
	}
	rel, err := filepath.Rel(t.In.Name(), t.Path)
	if err != nil {
		return err
	}
	name := filepath.Base(t.Path)
	if st, err := t.In.Stat(rel); err != nil || !st.IsDir() {
		return tarfiles.PackRoot(ctx, w, t.In, rel, name) // returns the error
	}
	sub, err := t.In.OpenRoot(rel)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	return tarfiles.PackRoot(ctx, w, sub, ".", name)
}

// getLimits bounds what a sandbox can make --get write to the host.
var getLimits = tarfiles.Limits{Entries: 1_000_000, Holes: 1 << 40}

// maxSkipped bounds the number of omitted files that are named: their names are untrusted.
const maxSkipped = 10

// get copies t.Path from the sandbox to t.Dest on the host, and reports omitted files.
func (s *Sandbox) get(ctx context.Context, t Transfer, most turnstone.Bytes,
	tell func(string)) error {
	top, err := tarfiles.TopOf(t.Path)
	if err != nil {
		return turnstone.NewError("executor.get", turnstone.KindInvalid, "--get "+t.Path,
			errors.Unwrap(err)).WithHint(turnstone.HintOf(err))
	}
	limits, skipped := getLimits, 0
	limits.Bytes = most
	limits.Room = func(dir string) error { // a user's folder, to which free_space does not apply
		return diskspace.Room(dir, config.Space{})
	}
	limits.Skipped = func(name, why string) {
		if skipped++; skipped <= maxSkipped {
			tell(fmt.Sprintf("--get %s: left out %q: %s", t.Path, name, why))
		}
	}
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		err := s.Client().Get(ctx, t.Path, w)
		_ = w.CloseWithError(err)
		got <- err
	}()
	err = tarfiles.Unpack(ctx, r, t.Dest, top, limits)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if skipped > maxSkipped {
		tell(fmt.Sprintf("--get %s: left out %d more", t.Path, skipped-maxSkipped))
	}
	if gerr := <-got; gerr != nil && !errors.Is(gerr, io.ErrClosedPipe) {
		err = gerr
	}
	if err != nil && turnstone.KindOf(err) != turnstone.KindDead {
		e := turnstone.NewError("executor.get", turnstone.KindOf(err), "--get "+t.Path, err).
			WithHint(turnstone.HintOf(err))
		var inner *turnstone.Error
		if errors.As(err, &inner) && inner.Subject == t.Path && inner.Err != nil {
			e.Err = inner.Err // the path need not be repeated
		}
		err = e
	}
	return err
}

// MostToGet bounds the bytes that can be copied out of s: all that there can be in a machine of
// that shape, except holes, because a sparse file is longer than its disk.
func (s *Sandbox) MostToGet(shape turnstone.Shape) turnstone.Bytes {
	return shape.Disk + turnstone.Bytes(s.Template.Size)
}
