package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/archive"
)

// inCwd resolves a step's cwd against the document's.
func inCwd(base, dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(base, dir)
}

// fetchLimit bounds --get, which has time of its own: what a turn made before its
// time was up can still be fetched.
const fetchLimit = 30 * time.Minute

// addAll copies what p adds into the sandbox.
func (x *Executor) addAll(ctx context.Context, s *Sandbox, p *plan) error {
	defer x.guard(ctx, s)()
	for _, t := range p.add {
		if err := add(ctx, s, t, io.Discard); err != nil {
			return s.causeOf(err)
		}
	}
	return nil
}

// getAll copies what p gets out of the sandbox.
func (x *Executor) getAll(ctx context.Context, s *Sandbox, p *plan, tell func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	defer x.guard(ctx, s)()
	for _, t := range p.get {
		// All that there can be, but for holes: a sparse file is longer than its disk.
		if err := get(ctx, s, t, p.shape.Disk+turnstone.Bytes(s.Template.Size), tell); err != nil {
			return s.causeOf(err)
		}
	}
	return nil
}

// add copies t.Path from the host to t.Dest in the sandbox: into it when it is a
// folder there or ends in a slash, else under that name.
// What it sends goes to also too, as a tar stream.
func add(ctx context.Context, s *Sandbox, t Transfer, also io.Writer) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(ctx, io.MultiWriter(w, also), t)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err := s.client.Put(ctx, t.Dest, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packer when Put gave up early
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return turnstone.NewError("executor.add", turnstone.KindInvalid, t.Path, perr)
	}
	return err
}

// pack writes t.Path as a tar stream. One that a document names is looked up again
// in the document's folder, the one that is open since it was checked: whatever was
// put in the place of either is not followed out of it.
func pack(ctx context.Context, w io.Writer, t Transfer) error {
	if t.in == nil {
		return archive.Pack(ctx, w, t.Path, "")
	}
	rel, err := filepath.Rel(t.in.Name(), t.Path)
	if err != nil {
		return err
	}
	name := filepath.Base(t.Path)
	if st, err := t.in.Stat(rel); err != nil || !st.IsDir() {
		return archive.PackRoot(ctx, w, t.in, rel, name) // says what is wrong with it
	}
	sub, err := t.in.OpenRoot(rel)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	return archive.PackRoot(ctx, w, sub, ".", name)
}

// getLimits bounds what a sandbox can make --get write to the host.
var getLimits = archive.Limits{Entries: 1_000_000}

// maxSkipped bounds how many left-out files are named: their names are a guest's.
const maxSkipped = 10

// get copies t.Path from the sandbox to t.Dest on the host, and tells what it
// leaves out.
func get(ctx context.Context, s *Sandbox, t Transfer, most turnstone.Bytes, tell func(string)) error {
	limits, skipped := getLimits, 0
	limits.Bytes, limits.Room = most, roomToCopy
	limits.Skipped = func(name, why string) {
		if skipped++; skipped <= maxSkipped {
			tell(fmt.Sprintf("--get %s: left out %q: %s", t.Path, name, why))
		}
	}
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		err := s.client.Get(ctx, t.Path, w)
		_ = w.CloseWithError(err)
		got <- err
	}()
	err := archive.Unpack(ctx, r, t.Dest, limits)
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
			e.Err = inner.Err // the path need not be said twice
		}
		err = e
	}
	return err
}
