// Package filestamp detects changes of a file that is written once, without reading the file each
// time. A stamp holds the digest and the file's metadata at the time of the digest.
package filestamp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
)

// A Stamp describes a regular file. It includes the inode change time because nobody can set it
// back: editing the file and restoring its modification time is still detected.
type Stamp struct {
	Digest  turnstone.Digest `json:"digest"`
	Size    int64            `json:"size"`
	Inode   uint64           `json:"inode"`
	MtimeNs int64            `json:"mtime_ns"`
	CtimeNs int64            `json:"ctime_ns"`
}

// ofTries bounds how often Of reads a file whose metadata changes meanwhile: another name that it gets
// or loses changes the inode, and not the content.
const ofTries = 5

// Of reads the file at path and returns its stamp.
func Of(ctx context.Context, path string) (Stamp, error) {
	for try := 1; ; try++ {
		s, still, err := read(ctx, path)
		switch {
		case err != nil:
			return Stamp{}, err
		case still:
			return s, nil
		case try == ofTries:
			return Stamp{}, changed(path)
		}
	}
}

// read reads the file at path, and reports whether its metadata was still the same at the end. The
// stamp has that of the beginning, so that one of a file that changed is not fresh.
func read(ctx context.Context, path string) (s Stamp, still bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return Stamp{}, false, err
	}
	defer f.Close()
	s, err = stat(f)
	if err != nil {
		return Stamp{}, false, err
	}
	s.Digest, err = turnstone.DigestReader(contextReader{ctx, f})
	if err != nil {
		return Stamp{}, false, err
	}
	after, err := stat(f)
	if err != nil {
		return Stamp{}, false, err
	}
	return s, s.same(after), nil
}

func changed(path string) error { return fmt.Errorf("%s changed while it was read", path) }

// Quick returns a stamp without a digest, for a file that is rebuilt instead of read after a
// change. Only Fresh accepts such a stamp.
func Quick(path string) (Stamp, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Stamp{}, err
	}
	return fromInfo(fi)
}

// Fresh reports whether the metadata of the file at path is unchanged since s was taken. It does
// not read the content.
func (s Stamp) Fresh(path string) bool {
	fi, err := os.Lstat(path)
	if err != nil || !fi.Mode().IsRegular() {
		return false
	}
	now, err := fromInfo(fi)
	return err == nil && s.same(now)
}

// Check returns a fresh stamp for the file at path if the file's content matches s: s itself at the
// cost of a stat, or a new stamp after reading a file that was touched or copied. The error is of
// kind Integrity if the content differs or is missing.
func (s Stamp) Check(ctx context.Context, path string) (Stamp, error) {
	if s.Fresh(path) {
		return s, nil
	}
	return s.Verify(ctx, path)
}

// Verify is Check that always reads the whole file. The stamp of a file whose metadata changed
// meanwhile is not fresh.
func (s Stamp) Verify(ctx context.Context, path string) (Stamp, error) {
	damaged := func(err error) error {
		return turnstone.NewError("stamp.verify", turnstone.KindIntegrity, path, err)
	}
	fi, err := os.Lstat(path)
	switch {
	case err != nil:
		return Stamp{}, damaged(err)
	case !fi.Mode().IsRegular():
		return Stamp{}, damaged(fmt.Errorf("is not a regular file"))
	case fi.Size() != s.Size:
		return Stamp{}, damaged(fmt.Errorf("has %d bytes instead of %d", fi.Size(), s.Size))
	}
	now, still, err := read(ctx, path)
	switch {
	case err != nil && ctx.Err() != nil:
		return Stamp{}, err
	case err != nil:
		return Stamp{}, damaged(err)
	case now.Digest == s.Digest:
		// Also if the file got another name meanwhile, as images do for each tenant: what was read is
		// what it has to be, and the next Check reads it again.
		return now, nil
	case !still:
		return Stamp{}, damaged(changed(path))
	}
	return Stamp{}, damaged(fmt.Errorf("is %s instead of %s", now.Digest, s.Digest))
}

// WriteFile atomically and durably writes b to path: readers, also after a power loss, see either
// the old file or the new file.
func WriteFile(path string, b []byte, mode os.FileMode) error {
	if err := replace(path, b, mode, (*os.File).Sync); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Replace atomically writes b to path: readers, also after the end of this process, see either the
// old file or the new file. Until a following Sync has returned, a power loss may leave an empty
// file, or the old one.
func Replace(path string, b []byte, mode os.FileMode) error {
	return replace(path, b, mode, func(*os.File) error { return nil })
}

// Sync makes a file that Replace has written durable.
func Sync(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// replace writes to a temporary file, which then gets its name.
func replace(path string, b []byte, mode os.FileMode, sync func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if err = f.Chmod(mode); err != nil {
		return err
	}
	if err = sync(f); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func (s Stamp) same(t Stamp) bool {
	return s.Size == t.Size && s.Inode == t.Inode &&
		s.MtimeNs == t.MtimeNs && s.CtimeNs == t.CtimeNs
}

func stat(f *os.File) (Stamp, error) {
	fi, err := f.Stat()
	if err != nil {
		return Stamp{}, err
	}
	return fromInfo(fi)
}

func fromInfo(fi os.FileInfo) (Stamp, error) {
	s, ok := metadata(fi)
	if !ok {
		return Stamp{}, fmt.Errorf("%s: the system reports no inode", fi.Name())
	}
	return s, nil
}

// contextReader ends a long read when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
