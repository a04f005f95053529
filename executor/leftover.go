package executor

import (
	"context"
	"errors"
	"io"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/substrate"
)

// An upperSource is what a sandbox wrote, at rest: nobody writes to it any more.
type upperSource interface {
	// open returns the upper directory of the sandbox's overlay, called name. It may be
	// called more than once.
	open(name string) (tree.Node, error)
	io.Closer
}

// A diskUpper is a scratch disk of ext4, of which no more than size counts.
type diskUpper struct {
	*os.File
	size int64
	opts ext4.Options
}

func (d diskUpper) open(name string) (tree.Node, error) {
	fs, err := ext4.OpenOptions(d, d.size, d.opts)
	if err != nil {
		return nil, err
	}
	return fs.Lookup(name)
}

// An exportUpper is what the agent exported of a disk that the host cannot read.
type exportUpper struct{ *upperdir.Dir }

func (e exportUpper) open(string) (tree.Node, error) { return e.Root(), nil }

// upperIsExport is what Pause returns for a machine whose Disk is an export.
const upperIsExport = "export"

// maxHeaders bounds what an export has beside the files' data: headers, as upper does.
const maxHeaders = 4 << 30

// spoolExport has s's processes stand still and writes what the agent exports into a
// file without a name. s.live is held.
func (s *Sandbox) spoolExport(ctx context.Context) error {
	f, err := os.CreateTemp(s.spoolDir, "export-*")
	if err != nil {
		return err
	}
	_ = os.Remove(f.Name())
	err = s.Client().ExportHeld(ctx, func(in io.Reader) error {
		limit := int64(s.source.Shape.Disk) + maxHeaders
		n, err := io.Copy(f, io.LimitReader(in, limit+1))
		if err == nil && n > limit {
			err = turnstone.Errorf("executor.live", turnstone.KindExhausted, string(s.ID()),
				"its agent exports more than its disk holds")
		}
		return err
	})
	if err != nil {
		_ = f.Close()
		return s.causeOf(err)
	}
	s.exported = f
	return nil
}

// dropExport frees the export. s.live is held.
func (s *Sandbox) dropExport() {
	if s.exported != nil {
		_ = s.exported.Close()
		s.exported = nil
	}
}

// readExport reads what another process has spooled.
func (x *Host) readExport(ctx context.Context, f *os.File, opts upperdir.Options) (upperSource, error) {
	dir, err := x.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	u, err := upperdir.Read(ctx, io.NewSectionReader(f, 0, st.Size()), dir, opts)
	if err != nil {
		return nil, err
	}
	return exportUpper{u}, nil
}

// takeUpper returns what s wrote. Its disk is frozen.
func (r *run) takeUpper(ctx context.Context, s *Sandbox) (upperSource, error) {
	if d, ok := s.machine.(substrate.Disker); ok {
		f, err := d.Disk()
		return diskUpper{f, int64(r.plan.shape.Disk), r.plan.ext4Options()}, err
	}
	dir, err := r.x.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	var u *upperdir.Dir
	err = s.Client().Export(ctx, func(in io.Reader) (err error) {
		u, err = upperdir.Read(ctx, in, dir, r.plan.upperOptions(r.plan.shape.Disk))
		return err
	})
	if err != nil {
		if u != nil {
			err = errors.Join(err, u.Close())
		}
		return nil, s.causeOf(err)
	}
	if u == nil {
		return nil, turnstone.Errorf("executor.commit", turnstone.KindIntegrity, string(s.ID()),
			"its agent exported nothing")
	}
	return exportUpper{u}, nil
}
