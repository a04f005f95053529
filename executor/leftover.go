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
	if s.HasDisk() {
		f, err := s.Disk()
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
		return nil, s.CauseOf(err)
	}
	if u == nil {
		return nil, turnstone.Errorf("executor.commit", turnstone.KindIntegrity, string(s.ID()),
			"its agent exported nothing")
	}
	return exportUpper{u}, nil
}
