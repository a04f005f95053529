package repo

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/archive"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/store/tree"
)

// CopyOut copies the file or folder at name in the state of the turn that ref names to dest on the
// host: into it if it is a folder or ends in a slash, otherwise under that name. Modes, less the
// umask, and times are kept; owners, set-user-ID and set-group-ID bits are not; hard links become
// separate files. Nothing is written outside of dest. Devices and pipes, and symlinks that lead out
// of the copied folder, are omitted: skipped receives each of them.
func (x *Repo) CopyOut(ctx context.Context, ref, name, dest string, skipped func(name, why string)) error {
	cs, _, st, err := x.ResolveState(ctx, ref)
	if err != nil {
		return err
	}
	real, e, err := tree.Resolve(ctx, cs.Store, st.Tree, st.inState(name))
	if err = ofTurn(ref, err); err != nil {
		return err
	}
	if e.Type != tree.File && e.Type != tree.Dir {
		return turnstone.Errorf("executor.copy", turnstone.KindInvalid, real,
			"is a %s, which is not copied", typeName(e.Type))
	}
	base := path.Base(path.Clean("/" + name))
	if base == "/" {
		base = "root" // the whole state
	}
	skipped = oneAtATime(skipped) // packing and unpacking run concurrently
	limits := archive.Limits{Entries: 1 << 30, Bytes: 1 << 50, Skipped: skipped, Room: roomToCopy}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := cs.pack(ctx, w, st, real, base, skipped)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = archive.Unpack(ctx, r, dest, limits)
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

// pack writes the file or directory at real as a tar stream, whose entries are called name and
// name/….
func (cs *ContextStore) pack(ctx context.Context, w io.Writer, st *State, real, name string, skipped func(name, why string)) error {
	tw := tar.NewWriter(w)
	buf := make([]byte, 256<<10)
	err := tree.Walk(ctx, cs.Store, st.Tree, real, func(p string, e *tree.Entry) error {
		h := &tar.Header{Name: path.Join(name, strings.TrimPrefix(p, real)),
			Mode: int64(e.Mode & 0o1777), Format: tar.FormatPAX,
			ModTime: time.Unix(e.MTime.Sec, int64(e.MTime.Nsec))}
		if e.Mode&0o6000 != 0 && e.Type == tree.File {
			skipped(p, "it is copied without its set-user-ID and set-group-ID bits")
		}
		switch e.Type {
		case tree.Dir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case tree.Symlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
		case tree.File:
			h.Typeflag, h.Size = tar.TypeReg, e.Size
		default:
			skipped(p, "it is a "+typeName(e.Type))
			return nil
		}
		if err := tw.WriteHeader(h); err != nil || e.Type != tree.File {
			return err
		}
		in, err := cs.openContent(ctx, st, p, e.Content)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{tw}, in, buf)
		return errors.Join(err, in.Close())
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

// roomToCopy checks the disk of a user's folder, to which free_space does not apply.
func roomToCopy(dir string) error { return diskspace.Room(dir, config.Space{}) }
