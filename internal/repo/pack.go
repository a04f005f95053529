package repo

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Pack finds the file or folder at name in the state of the turn that ref names. It returns a
// function that writes it to w as a tar stream, whose entries are called base and base/…. Times
// and modes are written, without set-user-ID and set-group-ID bits; hard links become separate
// files; devices and pipes are omitted. skipped receives each name that is omitted or changed.
func (x *Repo) Pack(ctx context.Context, ref, name string) (
	write func(w io.Writer, skipped func(name, why string)) error, err error) {
	cs, st, real, e, err := x.entry(ctx, ref, name)
	if err != nil {
		return nil, err
	}
	if e.Type != tree.File && e.Type != tree.Dir {
		return nil, turnstone.Errorf("executor.copy", turnstone.KindInvalid, real,
			"is a %s, which is not copied", typeName(e.Type))
	}
	base := path.Base(path.Clean("/" + name))
	if base == "/" {
		base = "root" // the whole state; tarfiles.TopInState expects these names
	}
	return func(w io.Writer, skipped func(name, why string)) error {
		return cs.pack(ctx, w, st, real, base, skipped)
	}, nil
}

// pack writes the file or directory at real as a tar stream, whose entries are called name and
// name/….
func (cs *ContextStore) pack(ctx context.Context, w io.Writer, st *turnstone.TurnState, real,
	name string, skipped func(name, why string)) error {
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
