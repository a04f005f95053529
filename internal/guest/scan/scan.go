// Package scan reads a directory and everything below it, for the export of a sandbox's files.
package scan

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// files that a scanner delivers together, because each delivery wakes the consumer
	batchFiles = 128
	batchBytes = 256 << 10 // of their contents
	batches    = 8         // that a scanner is ahead
	// bytes; the scanner reads files up to this size itself, and they are sent with their holes
	smallFile = 128 << 10
)

// A Scanner reads a directory and everything below it, each directory before its contents, while
// its consumer processes earlier files: a file system call is slow in a sandbox.
type Scanner struct {
	ctx    context.Context
	cancel context.CancelFunc
	fds    string
	found  chan []*File // closed at the end
	err    error        // valid when found is closed

	filling []*File // the scanner's own
	bytes   int
}

// A File is a file that a Scanner has found.
type File struct {
	Path   string // relative to the top, which is "."
	Stat   unix.Stat_t
	Target string
	Xattrs []Xattr
	Data   []byte // the content of a small file; then never nil
	FD     int    // of any other file; -1: none
}

// A Xattr is an extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Close closes the file.
func (f *File) Close() {
	if f.FD >= 0 {
		_ = unix.Close(f.FD)
		f.FD = -1
	}
}

// New scans dir, which it closes. fds is the directory in which a process finds its open files as
// paths.
func New(ctx context.Context, dir int, fds string) *Scanner {
	s := &Scanner{fds: fds, found: make(chan []*File, batches)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.found)
		if s.err = s.top(dir); s.err == nil {
			s.err = s.flush()
		}
		CloseAll(s.filling)
	}()
	return s
}

// Next returns the next files, and none at the end.
func (s *Scanner) Next() ([]*File, error) {
	if batch, ok := <-s.found; ok {
		return batch, nil
	}
	return nil, s.err
}

// Close ends the scan.
func (s *Scanner) Close() {
	s.cancel()
	for batch := range s.found {
		CloseAll(batch)
	}
}

// CloseAll closes files.
func CloseAll(batch []*File) {
	for _, f := range batch {
		f.Close()
	}
}

func (s *Scanner) put(f *File) error {
	s.filling = append(s.filling, f)
	s.bytes += len(f.Data)
	if f.FD >= 0 { // the number of open descriptors is limited
		s.bytes += batchBytes / 8
	}
	if len(s.filling) < batchFiles && s.bytes < batchBytes {
		return nil
	}
	return s.flush()
}

// flush delivers the scanned files.
func (s *Scanner) flush() error {
	batch := s.filling
	s.filling, s.bytes = nil, 0
	select {
	case s.found <- batch:
		return nil
	case <-s.ctx.Done():
		CloseAll(batch)
		return context.Cause(s.ctx)
	}
}

func (s *Scanner) top(fd int) error {
	f := &File{Path: ".", FD: -1}
	b := &scanBuffers{fds: s.fds, names: make([]byte, 64<<10), value: make([]byte, 64<<10),
		entries: make([]byte, 32<<10)}
	err := unix.Fstat(fd, &f.Stat)
	if err == nil {
		f.Xattrs, err = b.xattrs(fd, "")
	}
	if err == nil {
		err = s.put(f)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	return s.directory(b, fd, "")
}

// directory scans the contents of a directory, which it closes. Subdirectories are opened one at a
// time.
func (s *Scanner) directory(b *scanBuffers, fd int, dir string) error {
	defer unix.Close(fd)
	names, err := b.list(fd)
	if err != nil {
		return err
	}
	if dir != "" {
		dir += "/"
	}
	for _, name := range names {
		f, sub, err := b.look(fd, name, dir+name)
		if err != nil {
			return err
		}
		if f == nil {
			continue
		}
		if err := s.put(f); err != nil {
			if sub >= 0 {
				_ = unix.Close(sub)
			}
			return err
		}
		if sub >= 0 {
			if err := s.directory(b, sub, dir+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanBuffers are buffers that a scanner reuses.
type scanBuffers struct {
	fds                   string
	names, value, entries []byte
}

// list returns the names in a directory, sorted.
func (b *scanBuffers) list(fd int) ([]string, error) {
	var names []string
	for {
		n, err := unix.ReadDirent(fd, b.entries)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(b.entries[:n], -1, names)
	}
}

// look opens one name of a directory. It returns nil if the name no longer exists, and the
// descriptor of a directory, otherwise -1.
func (b *scanBuffers) look(dir int, name, path string) (f *File, sub int, err error) {
	f = &File{Path: path, FD: -1}
	// Opening a device or a pipe could have side effects.
	if err := unix.Fstatat(dir, name, &f.Stat, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
		return nil, -1, nil
	} else if err != nil {
		return nil, -1, err
	}
	at := b.fds + strconv.Itoa(dir) + "/" + name
	switch f.Stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, err := unix.Openat(dir, name,
			unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, -1, err
		}
		f.FD = fd
		if f.Xattrs, err = b.xattrs(fd, ""); err == nil && f.Stat.Size <= smallFile {
			f.Data = make([]byte, f.Stat.Size)
			var n int
			n, err = ReadAt(fd, f.Data, 0)
			f.Data = f.Data[:n]
			f.Close()
		}
		if err != nil {
			f.Close()
			return nil, -1, err
		}
		return f, -1, nil
	case unix.S_IFDIR:
		fd, err := unix.Openat(dir, name,
			unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			if f.Xattrs, err = b.xattrs(fd, ""); err != nil {
				_ = unix.Close(fd)
			}
		}
		if err != nil {
			return nil, -1, err
		}
		return f, fd, nil
	case unix.S_IFLNK:
		n, err := unix.Readlinkat(dir, name, b.value)
		if err != nil {
			return nil, -1, err
		}
		f.Target = string(b.value[:n])
		f.Xattrs, err = b.xattrs(-1, at)
		return f, -1, err
	case unix.S_IFCHR:
		if f.Stat.Rdev == 0 { // a whiteout: its other attributes have no meaning
			return f, -1, nil
		}
	case unix.S_IFSOCK:
		return f, -1, nil
	}
	f.Xattrs, err = b.xattrs(-1, at)
	return f, -1, err
}

// xattrs returns the extended attributes of an open file, or, without one, of the file at path.
// Lists and values have at most 64 KiB (xattr(7)).
func (b *scanBuffers) xattrs(fd int, path string) ([]Xattr, error) {
	list := func() (int, error) {
		if fd >= 0 {
			return unix.Flistxattr(fd, b.names)
		}
		return unix.Llistxattr(path, b.names)
	}
	n, err := list()
	if n <= 0 || err != nil {
		if err == unix.ENOTSUP {
			err = nil
		}
		return nil, err
	}
	var out []Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(b.names[:n]), "\x00"), "\x00") {
		if fd >= 0 {
			n, err = unix.Fgetxattr(fd, name, b.value)
		} else {
			n, err = unix.Lgetxattr(path, name, b.value)
		}
		if err == unix.ENODATA {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, Xattr{name, bytes.Clone(b.value[:n])})
	}
	return out, nil
}

// ReadAt reads the file's content at off, up to its end or the end of b.
func ReadAt(fd int, b []byte, off int64) (n int, err error) {
	for n < len(b) {
		k, err := unix.Pread(fd, b[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if k <= 0 || err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}
