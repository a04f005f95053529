package tarfiles

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sparse"
)

// Limits bound what Unpack writes. Zero values mean the defaults.
type Limits struct {
	Entries int             // default 1,000,000
	Bytes   turnstone.Bytes // total file content; default 64 GiB
	// Holes are zeros that use no space, beyond Bytes. Without them, zeros count like other content.
	Holes turnstone.Bytes

	// Trusted means that the stream is the caller's own and is written unchanged: symbolic links
	// with any target, hard links, and modes regardless of the umask.
	Trusted bool
	// Owners gives each entry to the user and group that the stream names, by numbers.
	Owners bool
	// Owner owns the files and folders that are created in its own folders, which needs the right to give files away.
	// Elsewhere, and for links, the owner is who calls: a name may lead to a place that is not the owner's. Nil: nobody.
	Owner *Owner
	// Contents means that the stream is one folder, and that what is in it goes into dest, without the
	// folder's own name.
	Contents bool
	// Room, if set, is called periodically and returns an error if the file system of dir is full;
	// the error ends the copy.
	Room func(dir string) error
	// Skipped is called for each skipped entry with the reason; may be nil.
	Skipped func(name, why string)
}

const (
	defaultEntries = 1_000_000
	defaultBytes   = 64 << 30
	maxDepth       = 255 // path elements: far more than people use, and few enough for fast walks
	maxName        = 4096
	maxPart        = 255 // bytes of a path element: file systems have no longer names

	entryCost = 4096     // approximate bytes that a name uses
	roomEvery = 16 << 20 // bytes written between two calls of Room
)

// Unpack reads a tar stream from r and writes its content in the manner of docker cp: into dest if
// dest is a folder or ends in a slash, otherwise under the name dest instead of the stream's single
// top-level name. Existing files are replaced, but a folder does not take the name of a file at dest.
// Missing folders on the way to the destination are created, unless Room rejects the file system.
//
// For any stream, Unpack writes nothing outside of the destination, and nothing beside what top allows:
// other names, names that are absolute or contain "..", and entries below symbolic links, are errors of
// kind Invalid. Unpack skips devices, pipes and sockets, and of untrusted streams hard links, and
// symbolic links that could lead out of their top-level name, now or after later copies. The umask applies to modes; set-user-ID and set-group-ID bits are
// dropped; existing folders keep their mode. Exceeding a limit is an error of kind Exhausted.
//
// A file gets its name when its content is complete. After an error, the entries before the one that
// failed remain, and what stood in the place of the others is unchanged.
func Unpack(ctx context.Context, r io.Reader, dest string, top Top, limits Limits) error {
	if limits.Entries == 0 {
		limits.Entries = defaultEntries
	}
	if limits.Bytes == 0 {
		limits.Bytes = defaultBytes
	}
	if limits.Skipped == nil {
		limits.Skipped = func(string, string) {}
	}
	u := &unpacker{ctx: ctx, lim: limits, dest: dest, allowed: top, buf: make([]byte, 256<<10),
		tops: map[string]*topLevel{}}
	dir := dest
	if st, err := os.Stat(dest); limits.Contents {
		if dir, u.rename, err = nameOf(dest); err != nil {
			return u.fail(dest, turnstone.KindInvalid, err, "name a folder below it")
		}
	} else if !(err == nil && st.IsDir()) && !strings.HasSuffix(dest, "/") {
		dir, u.rename = filepath.Dir(filepath.Clean(dest)), filepath.Base(filepath.Clean(dest))
	}
	if err := u.room(existing(dir)); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return u.fail(dest, kindOfWrite(err), cause(err), "check that the destination is writable")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return u.fail(dest, kindOfWrite(err), cause(err), "check that the destination is writable")
	}
	defer func() { _ = root.Close() }()
	u.root = root
	err = u.unpack(tar.NewReader(ctxReader{ctx, r}))
	u.settle()
	if err != nil {
		return err
	}
	return u.finish()
}

// nameOf returns the folder above dest and dest's name in it, which is no symbolic link if dest exists.
func nameOf(dest string) (dir, name string, err error) {
	if real, err := filepath.EvalSymlinks(dest); err == nil {
		dest = real
	}
	if dest, err = filepath.Abs(dest); err != nil {
		return "", "", err
	}
	if dir, name = filepath.Dir(dest), filepath.Base(dest); dir == dest {
		return "", "", errors.New("the contents of a folder are not copied to it")
	}
	return dir, name, nil
}

type unpacker struct {
	ctx     context.Context
	root    *os.Root
	lim     Limits
	dest    string
	rename  string // new top-level name; empty: unchanged
	allowed Top
	only    string // the stream's top-level name if there is a rename
	entries int
	bytes   int64 // of content, except holes
	holes   int64
	used    int64 // approximate bytes written
	asked   int64 // value of used at the last call of Room
	dirs    []dirMeta
	buf     []byte

	tops     map[string]*topLevel // by their names at the destination
	held     int                  // bytes of deferred links
	settling bool                 // deferred links are being written
}

// dirMeta is the metadata that a folder gets when its content is complete.
type dirMeta struct {
	name string
	mode fs.FileMode
	time time.Time
}

func (u *unpacker) fail(subject string, kind turnstone.Kind, err error, hint string) error {
	return turnstone.NewError("archive.unpack", kind, subject, err).WithHint(hint)
}

func (u *unpacker) unpack(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return u.broken(err)
		}
		if u.entries++; u.entries > u.lim.Entries {
			return u.fail(u.dest, turnstone.KindExhausted,
				fmt.Errorf("more than %d files", u.lim.Entries), "copy a smaller folder")
		}
		name, err := u.place(h.Name)
		if err != nil {
			return u.fail(fmt.Sprintf("%.200q", h.Name), turnstone.KindInvalid, err, "")
		}
		if err := u.entry(tr, h, name); err != nil {
			return err
		}
	}
}

// broken returns the reason for the stream's end: the sender's error, or a malformed stream.
func (u *unpacker) broken(err error) error {
	var te *turnstone.Error
	if errors.As(err, &te) {
		return err
	}
	return u.fail(u.dest, turnstone.KindInvalid,
		fmt.Errorf("the archive is damaged or truncated: %w", err), "")
}

// place validates a name and returns its path below the root.
func (u *unpacker) place(name string) (string, error) {
	if name == "" || strings.HasPrefix(name, "/") || strings.IndexByte(name, 0) >= 0 {
		return "", errors.New("an empty or absolute name")
	}
	parts := strings.Split(strings.TrimRight(name, "/"), "/")
	if len(parts) > maxDepth {
		return "", errors.New("a folder that is nested too deeply")
	}
	for _, p := range parts {
		if p == ".." {
			return "", errors.New("a name that leads out of the destination")
		}
		if len(p) > maxPart || len(name) > maxName {
			return "", errors.New("a name that is too long")
		}
	}
	clean := path.Clean(strings.Join(parts, "/"))
	top, rest, _ := strings.Cut(clean, "/")
	if !u.allowed.allows(top) {
		return "", errors.New("a name beside what was asked for")
	}
	if u.rename == "" {
		return clean, nil
	}
	if u.only == "" {
		u.only = top
	}
	if top != u.only || top == "." {
		return "", errors.New("several top-level names for a single destination")
	}
	return path.Join(u.rename, rest), nil
}

func (u *unpacker) entry(tr *tar.Reader, h *tar.Header, name string) error {
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if err := u.take(entryCost); err != nil {
		return err
	}
	if !u.lim.Trusted && name != "." {
		if _, err := u.top(name); err != nil { // before any of its entries exists
			return u.writeError(name, err)
		}
	}
	var err error
	if u.lim.Contents && name == u.rename && h.Typeflag != tar.TypeDir {
		return u.writeError(name, errNoFolder)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err = u.dir(name, mode, h.ModTime); err == nil && u.lim.Owners && name != "." {
			err = u.root.Lchown(name, h.Uid, h.Gid)
		}
	case tar.TypeReg:
		return u.file(tr, h, name, mode)
	case tar.TypeSymlink:
		if err = u.link(name, h.Linkname); err == nil && u.lim.Owners {
			err = u.root.Lchown(name, h.Uid, h.Gid)
		}
	case tar.TypeLink:
		if u.lim.Trusted {
			err = u.hardLink(name, h.Linkname)
			break
		}
		fallthrough
	default:
		u.lim.Skipped(name, "not a file, folder or symbolic link")
		return nil
	}
	if err != nil {
		return u.writeError(name, err)
	}
	return nil
}

// take counts n bytes that are about to use space, and periodically calls Room.
func (u *unpacker) take(n int64) error {
	u.used += n
	if u.lim.Room == nil || u.asked != 0 && u.used-u.asked < roomEvery {
		return nil
	}
	u.asked = u.used
	return u.room(u.root.Name())
}

// room calls Room, which may be nil.
func (u *unpacker) room(dir string) error {
	if u.lim.Room == nil {
		return nil
	}
	err := u.lim.Room(dir)
	var te *turnstone.Error
	if err == nil || errors.As(err, &te) {
		return err
	}
	return u.writeError(u.dest, err)
}

// existing returns the closest existing folder above dir, or dir itself.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func (u *unpacker) writeError(name string, err error) error {
	hint := "check that the destination is writable and that no file has the name of a folder"
	kind := kindOfWrite(err)
	if kind == turnstone.KindExhausted {
		hint = "free some space at the destination"
	}
	return u.fail(fmt.Sprintf("%.200q", name), kind, cause(err), hint)
}

func (u *unpacker) dir(name string, mode fs.FileMode, mtime time.Time) error {
	if name == "." {
		return nil
	}
	if err := u.noLinks(path.Dir(name)); err != nil {
		return err
	}
	st, err := u.root.Lstat(name)
	if err == nil && !st.IsDir() {
		if name == u.rename {
			return errOverFile
		}
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	there := err == nil && st.IsDir()
	if !there {
		if st, err = u.makeDir(name, mode); err != nil {
			return err
		}
	}
	now := st.Mode() & (fs.ModePerm | fs.ModeSticky | fs.ModeSetgid)
	final := now
	switch {
	case u.lim.Trusted:
		final = mode
	case !there:
		final = now&^(0o700&^mode) | mode&fs.ModeSticky
	}
	u.dirs = append(u.dirs, dirMeta{name, final, mtime})
	// Writable until its content is complete, whatever its final mode.
	if writable := now | 0o700; writable != now {
		return u.chmod(name, writable)
	}
	return nil
}

// makeDir creates a folder with a mode limited by the umask and writable for its user.
func (u *unpacker) makeDir(name string, mode fs.FileMode) (fs.FileInfo, error) {
	if dir := path.Dir(name); dir != "." {
		if err := u.mkdirAll(dir); err != nil {
			return nil, err
		}
	}
	if err := u.root.Mkdir(name, mode.Perm()|0o700); err != nil {
		return nil, err
	}
	if err := u.own(name); err != nil {
		return nil, err
	}
	return u.root.Lstat(name)
}

// chmod sets the mode of a folder. Root.Chmod needs /proc/self on kernels before Linux 6.6, and an
// agent outside of its processes' PID namespace has no /proc/self.
func (u *unpacker) chmod(name string, mode fs.FileMode) error {
	d, err := u.root.OpenFile(name, os.O_RDONLY|onlyFolder, 0)
	if err != nil { // such as an unreadable folder
		return u.root.Chmod(name, mode)
	}
	return errors.Join(d.Chmod(mode), d.Close())
}

// folder creates the folder of a file or link.
func (u *unpacker) folder(name string) error {
	if name == "." {
		return errNoName
	}
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if err := u.noLinks(dir); err != nil {
		return err
	}
	return u.mkdirAll(dir)
}

// clear prepares the place of a link: it creates the folder and removes an existing entry.
func (u *unpacker) clear(name string) error {
	if err := u.folder(name); err != nil {
		return err
	}
	err := u.root.Remove(name) // removes only an empty folder
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// noLinks rejects a path through a symbolic link, of this stream or older. os.Root keeps such a
// path inside of the root, but the path would still lead to another place than its name says.
func (u *unpacker) noLinks(dir string) error {
	for i, c := range dir + "/" {
		if c != '/' || dir == "." {
			continue
		}
		st, err := u.root.Lstat(dir[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st.Mode()&fs.ModeSymlink != 0 {
			return errThroughLink
		}
	}
	return nil
}

// tempPrefix begins the names of files that are incomplete.
const tempPrefix = ".turn-"

// file writes a file under another name in its folder, and renames it.
func (u *unpacker) file(tr *tar.Reader, h *tar.Header, name string, mode fs.FileMode) error {
	if h.Size < 0 || h.Size > u.left(true) {
		return u.tooMuch()
	}
	if err := u.folder(name); err != nil {
		return u.writeError(name, err)
	}
	temp := path.Join(path.Dir(name), tempPrefix+rand.Text())
	f, err := u.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	if err != nil {
		return u.writeError(name, err)
	}
	switch { // before the mode
	case u.lim.Owners:
		err = f.Chown(h.Uid, h.Gid)
	case u.gives(path.Dir(name)):
		err = f.Chown(u.lim.Owner.UID, u.lim.Owner.GID)
	}
	if err != nil {
		_ = f.Close()
		err = u.writeError(name, err)
	} else if err = u.content(f, tr, h, name, mode); err == nil {
		_ = u.root.Chtimes(temp, time.Time{}, h.ModTime)
		if err = u.replace(temp, name); err != nil {
			err = u.writeError(name, err)
		}
	}
	if err != nil {
		_ = u.root.Remove(temp)
	}
	return err
}

// content writes what a file has, and closes f.
func (u *unpacker) content(f *os.File, tr *tar.Reader, h *tar.Header, name string,
	mode fs.FileMode) error {
	defer func() { _ = f.Close() }()
	out := &sparse.Writer{File: f, Take: u.count}
	n, err := out.CopyFrom(tr, u.buf)
	if err != nil {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return u.writeError(name, err)
		}
		return u.broken(err)
	}
	if n != h.Size {
		return u.broken(io.ErrUnexpectedEOF)
	}
	if u.lim.Trusted {
		if err := f.Chmod(mode); err != nil {
			return u.writeError(name, err)
		}
	}
	if err := f.Close(); err != nil { // a full disk may be reported only here
		return u.writeError(name, err)
	}
	return nil
}

// left returns how many more bytes of content there may be: zeros, or others.
func (u *unpacker) left(hole bool) int64 {
	left := int64(u.lim.Bytes) - u.bytes
	if hole {
		left += max(int64(u.lim.Holes)-u.holes, 0)
	}
	return left
}

func (u *unpacker) tooMuch() error {
	return u.fail(u.dest, turnstone.KindExhausted, fmt.Errorf("more than %s", u.lim.Bytes),
		"copy less data at a time")
}

// count counts content that is about to be written, or left out because it is a hole.
func (u *unpacker) count(n int64, hole bool) error {
	if n > u.left(hole) {
		return u.tooMuch()
	}
	if hole {
		free := min(n, max(int64(u.lim.Holes)-u.holes, 0))
		u.holes += free
		u.bytes += n - free
		return nil
	}
	u.bytes += n
	return u.take(n)
}

// hardLink makes a name of an earlier file of the stream.
func (u *unpacker) hardLink(name, target string) error {
	old, err := u.place(target)
	if err != nil {
		return err
	}
	if err := u.noLinks(path.Dir(old)); err != nil {
		return err
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.root.Link(old, name)
}

// replace gives a complete file its name, in place of what has it. A folder has to be empty.
func (u *unpacker) replace(temp, name string) error {
	err := u.root.Rename(temp, name)
	if err == nil {
		return nil
	}
	if st, serr := u.root.Lstat(name); serr != nil || !st.IsDir() {
		return err
	}
	if err := u.root.Remove(name); err != nil {
		return err
	}
	return u.root.Rename(temp, name)
}

// finish sets the folders' modes and times, deepest first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		st, err := u.root.Lstat(d.name)
		if err != nil || !st.IsDir() {
			continue // replaced by a later entry
		}
		_ = u.root.Chtimes(d.name, time.Time{}, d.time)
		if st.Mode()&(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid) == d.mode {
			continue
		}
		if err := u.chmod(d.name, d.mode); err != nil {
			return u.writeError(d.name, err)
		}
	}
	return nil
}

// Faults of the stream that appear only when writing.
var (
	errNoName      = errors.New("a file without a name")
	errNoFolder    = errors.New("what was to be copied is no folder")
	errOverFile    = errors.New("a folder is not copied in the place of a file")
	errThroughLink = errors.New("a symbolic link in the place of a folder")
)

func kindOfWrite(err error) turnstone.Kind {
	switch {
	case turnstone.IsFull(err):
		return turnstone.KindExhausted
	case errors.Is(err, errNoName), errors.Is(err, errThroughLink),
		errors.Is(err, errNoFolder), errors.Is(err, errOverFile):
		return turnstone.KindInvalid
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR),
		errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST),
		errors.Is(err, syscall.ELOOP):
		return turnstone.KindInvalid
	}
	return turnstone.KindUnavailable
}
