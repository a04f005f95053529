// Package local stores blobs as files below a folder. A blob is first written to a file below .tmp,
// made durable, and then renamed to its name.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
)

// Options are for tests. The zero value is correct otherwise.
type Options struct {
	// Fault, if set, is called before every write, fsync, rename and removal; its error replaces
	// the operation.
	Fault func(op string) error
}

// A Store is a folder. Its methods are safe for concurrent use, also by several processes on the
// same folder.
type Store struct {
	dir   string
	root  *os.Root // no name and no symbolic link leads out of it
	fault func(op string) error
	files handles
}

var (
	_ blob.Store       = (*Store)(nil)
	_ blob.RangeReader = (*Store)(nil)
)

// tmpDir contains the files that are being written. No blob's name begins with a dot.
const tmpDir = ".tmp"

// tmpAge bounds the time for writing a file; older files are remains of killed processes.
const tmpAge = 24 * time.Hour

// Open opens the folder dir, which is created, private to its user, if it is missing.
func Open(dir string, opts Options) (*Store, error) {
	s := &Store{dir: dir, fault: opts.Fault}
	if s.fault == nil {
		s.fault = func(string) error { return nil }
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		s.root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, turnstone.NewError("blob.open", turnstone.KindUnavailable, dir, err).
			WithHint("use a folder that you can write")
	}
	s.files.root = s.root
	s.removeOldTmp()
	return s, nil
}

// Close closes the files that are open for reading.
func (s *Store) Close() error {
	s.files.close()
	return s.root.Close()
}

// removeOldTmp is best effort: the files that remain use space but are harmless.
func (s *Store) removeOldTmp() {
	dir, err := s.root.Open(tmpDir)
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	entries, _ := dir.ReadDir(-1)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > tmpAge {
			_ = s.root.Remove(path.Join(tmpDir, e.Name()))
		}
	}
}

// Put implements blob.Store.
func (s *Store) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	const op = "blob.put"
	if err := blob.Begin(ctx, op, name); err != nil {
		return err
	}
	f, tmp, err := s.createTmp()
	if err != nil {
		return blob.Error(op, name, err)
	}
	err = s.write(ctx, f, r, size)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = s.publish(tmp, name)
	}
	if err != nil {
		_ = s.root.Remove(tmp)
		return blob.Error(op, name, err)
	}
	return nil
}

func (s *Store) createTmp() (*os.File, string, error) {
	if err := s.fault("create"); err != nil {
		return nil, "", err
	}
	// The time makes the name unique on this machine, the process ID among machines that share the
	// folder; O_EXCL guarantees uniqueness.
	for try := 0; ; try++ {
		tmp := fmt.Sprintf("%s/%x-%x-%x", tmpDir, os.Getpid(), time.Now().UnixNano(), try)
		f, err := s.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrNotExist) && try < 100 {
			if err := s.root.Mkdir(tmpDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, "", err
			}
			continue
		}
		if errors.Is(err, fs.ErrExist) && try < 100 {
			continue
		}
		return f, tmp, err
	}
}

// write copies size bytes of r into f and makes them durable.
func (s *Store) write(ctx context.Context, f *os.File, r io.Reader, size int64) error {
	w := &writer{ctx: ctx, f: f, left: size, fault: s.fault}
	// A reader with WriteTo, such as a reader of memory, saves a copy.
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	if w.left != 0 {
		return turnstone.Errorf("blob.put", turnstone.KindInvalid, "",
			"the data is %d bytes shorter than announced", w.left)
	}
	if err := s.fault("fsync"); err != nil {
		return err
	}
	return syscall.Fdatasync(int(f.Fd()))
}

// A writer accepts no more bytes than announced, and nothing after ctx is done.
type writer struct {
	ctx   context.Context
	f     *os.File
	left  int64
	fault func(op string) error
}

func (w *writer) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	if int64(len(p)) > w.left {
		return 0, turnstone.Errorf("blob.put", turnstone.KindInvalid, "",
			"the data is longer than announced")
	}
	if err := w.fault("write"); err != nil {
		return 0, err
	}
	n, err := w.f.Write(p)
	w.left -= int64(n)
	return n, err
}

// publish durably renames the file tmp to its name.
func (s *Store) publish(tmp, name string) error {
	parent := path.Dir(name)
	if parent != "." {
		if err := s.mkdirs(parent); err != nil {
			return err
		}
	}
	if err := s.fault("rename"); err != nil {
		return err
	}
	if err := s.root.Rename(tmp, name); err != nil {
		return err
	}
	s.files.forget(name)
	return s.syncDir(parent)
}

// mkdirs creates the folder dir and its parents, each durable in its parent.
func (s *Store) mkdirs(dir string) error {
	if _, err := s.root.Stat(dir); err == nil {
		return nil
	}
	parent := path.Dir(dir)
	if parent != "." {
		if err := s.mkdirs(parent); err != nil {
			return err
		}
	}
	if err := s.fault("mkdir"); err != nil {
		return err
	}
	if err := s.root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.syncDir(parent)
}

func (s *Store) syncDir(dir string) error {
	if err := s.fault("fsync-dir"); err != nil {
		return err
	}
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

// Get implements blob.Store.
func (s *Store) Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	const op = "blob.get"
	if err := blob.Begin(ctx, op, name); err != nil {
		return nil, err
	}
	f, err := s.root.Open(name)
	if err != nil {
		return nil, blob.Error(op, name, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err == nil {
		n, err = blob.Range(op, name, off, n, info.Size())
	}
	if err != nil {
		_ = f.Close()
		return nil, blob.Error(op, name, err)
	}
	return &reader{ctx: ctx, f: f, off: off, left: n}, nil
}

// A reader reads a range of a file.
type reader struct {
	ctx       context.Context
	f         *os.File
	off, left int64
}

func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.f.ReadAt(p[:min(int64(len(p)), r.left)], r.off)
	r.off += int64(n)
	r.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if n == 0 && len(p) > 0 { // the file was truncated after it was opened
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

func (r *reader) Close() error { return r.f.Close() }

// ReadAt implements blob.RangeReader.
func (s *Store) ReadAt(ctx context.Context, name string, p []byte, off int64) error {
	const op = "blob.get"
	if err := blob.Begin(ctx, op, name); err != nil {
		return err
	}
	if off < 0 {
		_, err := blob.Range(op, name, off, int64(len(p)), 0)
		return err
	}
	h, err := s.files.open(name)
	if err != nil {
		return blob.Error(op, name, err)
	}
	defer s.files.done(h)
	n, err := h.f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		_, err := blob.Range(op, name, off, int64(len(p)), off+int64(n))
		return err
	}
	return blob.Error(op, name, err)
}

// Remove implements blob.Store.
func (s *Store) Remove(ctx context.Context, name string) error {
	const op = "blob.remove"
	if err := blob.Begin(ctx, op, name); err != nil {
		return err
	}
	if err := s.fault("remove"); err != nil {
		return blob.Error(op, name, err)
	}
	s.files.forget(name)
	// A folder is not a blob, and Remove would remove an empty folder.
	if info, err := s.root.Lstat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := s.root.Remove(name); err != nil && !missing(err) {
		return blob.Error(op, name, err)
	}
	// Not made durable: a blob that returns after a power failure is removed later.
	return nil
}

// Sync implements blob.Syncer.
func (s *Store) Sync(ctx context.Context, folder string) error {
	const op = "blob.sync"
	if err := ctx.Err(); err != nil {
		return blob.Error(op, folder, err)
	}
	if err := s.syncDir(path.Clean(folder)); err != nil && !missing(err) {
		return blob.Error(op, folder, err)
	}
	return nil
}

// missing reports whether err means that the file does not exist, which includes a file in the
// place of a folder.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// join is path.Join for the parts of a name; the first part may be empty.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + strings.TrimPrefix(name, "/")
}
