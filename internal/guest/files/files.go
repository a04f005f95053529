// Package files implements the agent's domain FileSystem: it reads, writes, packs and watches files
// of a sandbox. The sandbox's processes may change links and directories at any time and are
// hostile: paths are opened below the sandbox's root and never lead out of it.
package files

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sparse"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

const (
	maxEntries = 1000    // of one FileSystem.list
	maxInline  = 1 << 20 // bytes that FileSystem.read puts into its result
)

// Files answers the domain FileSystem.
type Files struct {
	chroot  string // the sandbox's root; "": the agent's own
	fds     string // directory of the agent's open files
	watches func(*wire.Conn) *Watches
	owner   func() *tarfiles.Owner
	Writes  Writes

	mu   sync.Mutex
	root int // descriptor of the sandbox's root; 0: not opened yet
}

// NewFiles returns the files below chroot, or of the agent's own root if chroot is "". fds is the
// directory of the agent's open files; watches returns a connection's watches, and owner to whom what is created
// belongs, or nil.
func NewFiles(chroot, fds string, watches func(*wire.Conn) *Watches, owner func() *tarfiles.Owner) *Files {
	return &Files{chroot: chroot, fds: fds, watches: watches, owner: owner}
}

// TempPrefix begins the names of files that are incomplete.
const TempPrefix = ".turn-"

// RootFD opens the sandbox's root on first use, because configuring the sandbox replaces the root.
func (f *Files) RootFD() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.root != 0 {
		return f.root, nil
	}
	fd, err := unix.Open(cmp.Or(f.chroot, "/"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		f.root = fd
	}
	return fd, err
}

func (f *Files) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.root != 0 {
		_ = unix.Close(f.root)
		f.root = 0
	}
}

// Stat implements FileSystem.stat.
func (f *Files) Stat(_ context.Context, _ *wire.Conn,
	p *wire.FileSystemStatParams) (*wire.FileSystemStatResult, error) {
	const op = wire.MethodFileSystemStat
	if err := checkPath(op, p.Path); err != nil {
		return nil, err
	}
	flags := unix.O_PATH
	if p.Follow != nil && !*p.Follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := f.Open(p.Path, flags, 0)
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fsError(op, p.Path, err)
	}
	info := fileInfo(path.Clean(p.Path), &st)
	if info.Type == wire.FileSystemFileInfoTypeSymlink {
		info.Target, _ = readlinkat(fd, "")
	}
	if flags&unix.O_NOFOLLOW == 0 {
		info.Resolved = f.resolved(fd, info.Path)
	}
	return &wire.FileSystemStatResult{File: info}, nil
}

// resolved returns the path of an open file as the kernel knows it, "" if that is name.
func (f *Files) resolved(fd int, name string) string {
	at, err := os.Readlink(f.procFD(fd))
	at, inside := strings.CutPrefix(at, strings.TrimSuffix(f.chroot, "/"))
	if err != nil || !inside || !path.IsAbs(at) || at == name {
		return ""
	}
	return at
}

// fileInfo describes a file.
func fileInfo(name string, st *unix.Stat_t) wire.FileSystemFileInfo {
	kind := wire.FileSystemFileInfoTypeFile
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		kind = wire.FileSystemFileInfoTypeDirectory
	case unix.S_IFLNK:
		kind = wire.FileSystemFileInfoTypeSymlink
	case unix.S_IFIFO:
		kind = wire.FileSystemFileInfoTypeFifo
	case unix.S_IFSOCK:
		kind = wire.FileSystemFileInfoTypeSocket
	case unix.S_IFBLK:
		kind = wire.FileSystemFileInfoTypeBlock
	case unix.S_IFCHR:
		kind = wire.FileSystemFileInfoTypeChar
	}
	return wire.FileSystemFileInfo{Path: name, Name: path.Base(name), Type: kind, Size: st.Size,
		Mode: int64(st.Mode & 0o7777),
		UID:  int64(st.Uid), GID: int64(st.Gid),
		Modified: time.Unix(st.Mtim.Unix()).UTC().Format(time.RFC3339Nano)}
}

// List implements FileSystem.list. It keeps no more names than it returns, however many the
// directory has.
func (f *Files) List(ctx context.Context, _ *wire.Conn,
	p *wire.FileSystemListParams) (*wire.FileSystemListResult, error) {
	const op = wire.MethodFileSystemList
	if err := checkPath(op, p.Path); err != nil {
		return nil, err
	}
	limit := maxEntries
	if p.Limit > 0 {
		limit = int(min(p.Limit, maxEntries))
	}
	fd, err := f.Open(p.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	dir := os.NewFile(uintptr(fd), p.Path)
	defer dir.Close()
	names, err := firstNames(ctx, dir, p.After, limit+1)
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	res := &wire.FileSystemListResult{Entries: []wire.FileSystemFileInfo{},
		More: len(names) > limit}
	for _, name := range names[:min(len(names), limit)] {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // removed meanwhile
		}
		info := fileInfo(path.Join(p.Path, name), &st)
		if info.Type == wire.FileSystemFileInfoTypeSymlink {
			info.Target, _ = readlinkat(fd, name)
		}
		res.Entries = append(res.Entries, info)
	}
	return res, nil
}

// firstNames returns the first n names of a directory that come after a name.
func firstNames(ctx context.Context, dir *os.File, after string, n int) ([]string, error) {
	var names []string
	for {
		batch, err := dir.Readdirnames(1024)
		for _, name := range batch {
			if name > after {
				names = append(names, name)
			}
		}
		if len(names) > 8*n || err != nil {
			slices.Sort(names)
			names = names[:min(len(names), n)]
		}
		switch {
		case errors.Is(err, io.EOF):
			return names, nil
		case err != nil:
			return nil, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
}

// openFile opens a regular file for reading, without waiting for the other end of a pipe with its
// name.
func (f *Files) openFile(name string) (*os.File, *unix.Stat_t, error) {
	fd, err := f.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return file, &st, nil
	case unix.S_IFDIR:
		err = unix.EISDIR
	default:
		err = turnstone.Errorf(wire.MethodFileSystemRead, turnstone.KindInvalid, name,
			"it is not a regular file").WithHint("use a process to read it")
	}
	_ = file.Close()
	return nil, nil, err
}

// Read implements FileSystem.read.
func (f *Files) Read(ctx context.Context, c *wire.Conn,
	p *wire.FileSystemReadParams) (*wire.FileSystemReadResult, error) {
	const op = wire.MethodFileSystemRead
	if err := checkPath(op, p.Path); err != nil {
		return nil, err
	}
	if p.Offset < 0 || p.Length < 0 {
		return nil, invalid(op, p.Path, "offset and length are not negative")
	}
	file, st, err := f.openFile(p.Path)
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	defer file.Close()
	res := &wire.FileSystemReadResult{Size: st.Size}
	if p.Stream != 0 {
		res.Eof, err = f.readTo(ctx, c, p, file)
		return res, fsError(op, p.Path, err)
	}
	length := int64(maxInline)
	if p.Length > 0 {
		length = min(p.Length, maxInline)
	}
	// The file's size is not used, because it is 0 for files of /proc.
	res.Data, err = io.ReadAll(io.NewSectionReader(file, p.Offset, length))
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	res.Eof = int64(len(res.Data)) < length || atEOF(file, p.Offset+length)
	return res, nil
}

// readTo sends a part of a file to a stream.
func (f *Files) readTo(ctx context.Context, c *wire.Conn, p *wire.FileSystemReadParams,
	file *os.File) (eof bool, err error) {
	s, err := c.Sender(p.Stream)
	if err != nil {
		return false, err
	}
	defer s.Until(ctx)()
	length := int64(1<<62) - p.Offset
	if p.Length > 0 {
		length = min(p.Length, length)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{s},
		struct{ io.Reader }{io.NewSectionReader(file, p.Offset, length)},
		make([]byte, wire.SendChunk))
	if err != nil {
		s.Abort(RootCause(err))
		return false, err
	}
	return n < length || atEOF(file, p.Offset+n), s.Close()
}

func atEOF(file *os.File, offset int64) bool {
	var b [1]byte
	n, err := file.ReadAt(b[:], offset)
	return n == 0 && errors.Is(err, io.EOF)
}

// Write implements FileSystem.write: it writes the content to a temporary file beside the old file,
// and then replaces the old file.
func (f *Files) Write(ctx context.Context, c *wire.Conn,
	p *wire.FileSystemWriteParams) (*wire.FileSystemWriteResult, error) {
	const op = wire.MethodFileSystemWrite
	if err := checkPath(op, p.Path); err != nil {
		return nil, err
	}
	switch {
	case p.Stream != 0 && len(p.Data) > 0:
		return nil, invalid(op, p.Path, "the content comes as data or as a stream, not as both")
	case p.Mode < 0 || p.Mode > 0o7777:
		return nil, invalid(op, p.Path, "the mode is not valid for a file")
	case strings.HasSuffix(p.Path, "/"):
		return nil, fsError(op, p.Path, unix.EISDIR)
	}
	var content io.Reader = strings.NewReader(string(p.Data))
	if p.Stream != 0 {
		r, err := c.Receiver(p.Stream)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		content = f.Writes.from(r)
	}
	if p.Parents {
		if dir, _ := split(p.Path); dir != "" {
			if err := f.mkdirAll(dir, 0o755); err != nil {
				return nil, fsError(op, dir, err)
			}
		}
	}
	at, err := f.target(p.Path)
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	defer at.Close()
	n, err := replaceFile(ctx, at, content, uint32(p.Mode), f.owner())
	if err != nil {
		return nil, fsError(op, p.Path, err)
	}
	return &wire.FileSystemWriteResult{Size: n}, nil
}

// owns reports whether the directory that is open belongs to an owner: what is created there does then. A name may lead
// to another directory than its client means, by a link of a process in the sandbox.
func owns(dir int, owner *tarfiles.Owner) bool {
	var st unix.Stat_t
	return owner != nil && unix.Fstat(dir, &st) == nil && int(st.Uid) == owner.UID
}

// replaceFile gives a file new content. Without a mode it keeps the replaced file's mode; it always
// keeps the owner. A new file belongs to owner if its directory does.
func replaceFile(ctx context.Context, at Place, content io.Reader,
	mode uint32, owner *tarfiles.Owner) (n int64, err error) {
	var old unix.Stat_t
	exists := false
	switch err := unix.Fstatat(at.Dir, at.name, &old, unix.AT_SYMLINK_NOFOLLOW); {
	case err == nil && old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return 0, unix.EISDIR
	case err == nil && old.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, turnstone.Errorf(wire.MethodFileSystemWrite, turnstone.KindInvalid, at.name,
			"it is not a regular file").WithHint("use a process to write to it")
	case err == nil:
		exists = true
	case err != unix.ENOENT:
		return 0, err
	}
	if mode == 0 {
		if mode = 0o644; exists {
			mode = old.Mode & 0o7777
		}
	}
	temp := TempPrefix + rand.Text()
	fd, err := unix.Openat(at.Dir, temp,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, err
	}
	file := os.NewFile(uintptr(fd), temp)
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = unix.Unlinkat(at.Dir, temp, 0)
		}
	}()
	out := sparse.Writer{File: file} // what is brought in may have holes, which come as zeros
	if n, err = out.CopyFrom(content, make([]byte, wire.MaxChunk)); err != nil {
		return n, err
	}
	if ctx.Err() != nil {
		return n, context.Cause(ctx)
	}
	if exists { // before the mode, because a change of owner clears set-user-ID
		if err = unix.Fchown(fd, int(old.Uid), int(old.Gid)); err != nil && os.Geteuid() == 0 {
			return n, err
		}
	} else if owns(at.Dir, owner) {
		if err = unix.Fchown(fd, owner.UID, owner.GID); err != nil {
			return n, err
		}
	}
	if err = unix.Fchmod(fd, mode); err != nil {
		return n, err
	}
	if err = file.Sync(); err != nil {
		return n, err
	}
	return n, unix.Renameat(at.Dir, temp, at.Dir, at.name)
}
