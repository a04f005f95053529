package executor

import (
	"context"
	"errors"
	"io"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/ext4"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/tree"
	"turnstone.dev/turnstone/upper"
)

// A leftover is what a sandbox wrote, at rest: nobody writes to it any more.
type leftover interface {
	// open returns the upper directory of the sandbox's overlay, called name. It may be
	// called more than once.
	open(name string) (tree.Node, error)
	io.Closer
}

// A diskLeftover is a scratch disk of ext4, of which no more than size counts.
type diskLeftover struct {
	*os.File
	size int64
}

func (d diskLeftover) open(name string) (tree.Node, error) {
	fs, err := ext4.Open(d, d.size)
	if err != nil {
		return nil, err
	}
	return fs.Lookup(name)
}

// An exportLeftover is what the agent exported of a disk that the host cannot read.
type exportLeftover struct{ *upper.Upper }

func (e exportLeftover) open(string) (tree.Node, error) { return e.Root(), nil }

// takeLeftover returns what s wrote. Its disk is frozen.
func (r *run) takeLeftover(ctx context.Context, s *Sandbox) (leftover, error) {
	if d, ok := s.machine.(substrate.Disker); ok {
		f, err := d.Disk()
		return diskLeftover{f, int64(r.plan.shape.Disk)}, err
	}
	dir, err := r.x.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	var u *upper.Upper
	err = s.Client().Export(ctx, func(in io.Reader) (err error) {
		u, err = upper.Read(ctx, in, dir, upper.Options{Bytes: int64(r.plan.shape.Disk)})
		return err
	})
	if err != nil {
		if u != nil {
			err = errors.Join(err, u.Close())
		}
		return nil, s.fate(err)
	}
	if u == nil {
		return nil, &turnstone.Error{Op: "executor.commit", Kind: turnstone.Integrity, Subject: string(s.ID()), Err: errors.New("its agent exported nothing")}
	}
	return exportLeftover{u}, nil
}
