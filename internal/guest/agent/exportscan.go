package agent

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

// A scanner reads a directory and everything below it, each directory before its contents, while
// its consumer processes earlier files: a file system call is slow in a sandbox.
type scanner struct {
	ctx    context.Context
	cancel context.CancelFunc
	fds    string
	found  chan []*scanned // closed at the end
	err    error           // valid when found is closed

	filling []*scanned // the scanner's own
	bytes   int
}

// A scanned is a file that a scanner has found.
type scanned struct {
	path   string // relative to the top, which is "."
	st     unix.Stat_t
	target string
	xattrs []xattr
	data   []byte // the content of a small file; then never nil
	fd     int    // of any other file; -1: none
}

type xattr struct {
	name  string
	value []byte
}

func (f *scanned) close() {
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
		f.fd = -1
	}
}

// newScanner scans dir, which it closes. fds is as in Options.
func newScanner(ctx context.Context, dir int, fds string) *scanner {
	s := &scanner{fds: fds, found: make(chan []*scanned, batches)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.found)
		if s.err = s.top(dir); s.err == nil {
			s.err = s.flush()
		}
		closeAll(s.filling)
	}()
	return s
}

// next returns the next files, and none at the end.
func (s *scanner) next() ([]*scanned, error) {
	if batch, ok := <-s.found; ok {
		return batch, nil
	}
	return nil, s.err
}

// close ends the scan.
func (s *scanner) close() {
	s.cancel()
	for batch := range s.found {
		closeAll(batch)
	}
}

func closeAll(batch []*scanned) {
	for _, f := range batch {
		f.close()
	}
}

func (s *scanner) put(f *scanned) error {
	s.filling = append(s.filling, f)
	s.bytes += len(f.data)
	if f.fd >= 0 { // the number of open descriptors is limited
		s.bytes += batchBytes / 8
	}
	if len(s.filling) < batchFiles && s.bytes < batchBytes {
		return nil
	}
	return s.flush()
}

// flush delivers the scanned files.
func (s *scanner) flush() error {
	batch := s.filling
	s.filling, s.bytes = nil, 0
	select {
	case s.found <- batch:
		return nil
	case <-s.ctx.Done():
		closeAll(batch)
		return context.Cause(s.ctx)
	}
}

func (s *scanner) top(fd int) error {
	f := &scanned{path: ".", fd: -1}
	b := &scanBuffers{fds: s.fds, names: make([]byte, 64<<10), value: make([]byte, 64<<10),
		entries: make([]byte, 32<<10)}
	err := unix.Fstat(fd, &f.st)
	if err == nil {
		f.xattrs, err = b.xattrs(fd, "")
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
func (s *scanner) directory(b *scanBuffers, fd int, dir string) error {
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
func (b *scanBuffers) look(dir int, name, path string) (f *scanned, sub int, err error) {
	f = &scanned{path: path, fd: -1}
	// Opening a device or a pipe could have side effects.
	if err := unix.Fstatat(dir, name, &f.st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
		return nil, -1, nil
	} else if err != nil {
		return nil, -1, err
	}
	at := b.fds + strconv.Itoa(dir) + "/" + name
	switch f.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, err := unix.Openat(dir, name,
			unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, -1, err
		}
		f.fd = fd
		if f.xattrs, err = b.xattrs(fd, ""); err == nil && f.st.Size <= smallFile {
			f.data = make([]byte, f.st.Size)
			var n int
			n, err = readAt(fd, f.data, 0)
			f.data = f.data[:n]
			f.close()
		}
		if err != nil {
			f.close()
			return nil, -1, err
		}
		return f, -1, nil
	case unix.S_IFDIR:
		fd, err := unix.Openat(dir, name,
			unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			if f.xattrs, err = b.xattrs(fd, ""); err != nil {
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
		f.target = string(b.value[:n])
		f.xattrs, err = b.xattrs(-1, at)
		return f, -1, err
	case unix.S_IFCHR:
		if f.st.Rdev == 0 { // a whiteout: its other attributes have no meaning
			return f, -1, nil
		}
	case unix.S_IFSOCK:
		return f, -1, nil
	}
	f.xattrs, err = b.xattrs(-1, at)
	return f, -1, err
}

// xattrs returns the extended attributes of an open file, or, without one, of the file at path.
// Lists and values have at most 64 KiB (xattr(7)).
func (b *scanBuffers) xattrs(fd int, path string) ([]xattr, error) {
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
	var out []xattr
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
		out = append(out, xattr{name, bytes.Clone(b.value[:n])})
	}
	return out, nil
}
