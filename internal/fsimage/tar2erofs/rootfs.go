// Package tar2erofs converts tar streams to a read-only EROFS image
// (https://docs.kernel.org/filesystems/erofs.html). It keeps owners, modes, devices, extended
// attributes, hard links and names of any bytes. The same entries result in the same bytes, in any
// order.
package tar2erofs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/erofs/go-erofs"
)

// Limits of an image. A tar stream that exceeds them is rejected.
const (
	maxName    = 255       // bytes of a path segment, as in Linux
	maxPath    = 4095      // bytes of a path
	maxTarget  = 4095      // bytes of a symlink's target
	maxXattrs  = 32 << 10  // bytes of a file's extended attributes, including names
	maxEntries = 4_000_000 // files, folders and links
)

// Options of a Writer. The zero value means only the format's limits, and unchanged file times.
type Options struct {
	MaxBytes int64 // total file content; 0: 64 GiB
	// later modification times are replaced by Latest; it is also the image's build time
	Latest  time.Time
	Built   time.Time // the image's build time, and the time of implicit folders; zero: Latest
	TempDir string    // folder for content until Close; "": the system's
}

// built returns the image's build time.
func (o Options) built() time.Time {
	if !o.Built.IsZero() {
		return o.Built
	}
	if o.Latest.IsZero() {
		return time.Unix(0, 0)
	}
	return o.Latest
}

// A Writer collects entries and writes the image on Close. Only one goroutine may use it. It is
// unusable after an error.
type Writer struct {
	file    *os.File
	fsys    *erofs.Writer
	opts    Options
	entries map[string]*entry // by path without a leading slash; "" is the root
	links   []*entry          // additional names of files
	bytes   int64
}

// An entry is the Writer's data for a path.
type entry struct {
	path   string
	mode   uint16 // type and permission bits as in stat(2)
	target *entry // the first name of a hard link; otherwise nil
	names  uint32 // the file's number of names
}

// The type bits of stat(2)'s st_mode, inode(7).
const (
	typeMask    = 0o170000
	typeSocket  = 0o140000
	typeSymlink = 0o120000
	typeRegular = 0o100000
	typeBlock   = 0o060000
	typeDir     = 0o040000
	typeChar    = 0o020000
	typeFifo    = 0o010000
)

// New returns a Writer that writes the image to file, which must be empty and open for reading and
// writing.
func New(file *os.File, opts Options) *Writer {
	if opts.MaxBytes == 0 {
		opts.MaxBytes = 64 << 30
	}
	var create []erofs.CreateOpt
	if opts.TempDir != "" {
		create = append(create, erofs.WithTempDir(opts.TempDir))
	}
	create = append(create, erofs.WithBuildTime(uint64(opts.built().Unix()), 0))
	return &Writer{
		file:    file,
		fsys:    erofs.Create(file, create...),
		opts:    opts,
		entries: map[string]*entry{"": {mode: typeDir | 0o755}},
	}
}

// AddTar adds the entries of r for which keep returns true; a nil keep accepts all. keep gets the
// entry's path, clean and without a leading slash, and may replace *content to read the file's
// bytes on their way. A path that is absolute, leaves the root or leads through something other
// than a folder is rejected.
func (w *Writer) AddTar(r io.Reader, keep func(path string, hdr *tar.Header,
	content *io.Reader) bool) error {
	for tr := tar.NewReader(r); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("tar: %w", err)
		}
		path, err := cleanPath(hdr.Name)
		if err != nil {
			return err
		}
		content := io.Reader(tr)
		if keep != nil && !keep(path, hdr, &content) {
			continue
		}
		if err := w.Add(hdr, content); err != nil {
			return err
		}
	}
}

// Add adds an entry; content provides a regular file's hdr.Size bytes. A repeated folder changes
// its attributes; other entries must be unique.
func (w *Writer) Add(hdr *tar.Header, content io.Reader) error {
	path, err := cleanPath(hdr.Name)
	if err == nil {
		err = w.add(path, hdr, content)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", hdr.Name, err)
	}
	return nil
}

func (w *Writer) add(path string, hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeDir {
		return w.addDir(path, hdr)
	}
	if path == "" {
		return errors.New("the root must be a folder")
	}
	if w.entries[path] != nil {
		return errors.New("is a duplicate")
	}
	if err := w.parents(path); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeLink {
		return w.addLink(path, hdr)
	}
	e := &entry{path: path, names: 1}
	perm := uint16(hdr.Mode) & 0o7777
	var err error
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		e.mode = typeRegular | perm
		err = w.addFile(path, hdr.Size, content)
	case tar.TypeSymlink:
		e.mode = typeSymlink | 0o777
		if hdr.Linkname == "" || len(hdr.Linkname) > maxTarget ||
			strings.ContainsRune(hdr.Linkname, 0) {
			return errors.New("its target is empty, too long, or contains a zero byte")
		}
		err = w.fsys.Symlink(hdr.Linkname, "/"+path)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.mode = map[byte]uint16{tar.TypeChar: typeChar, tar.TypeBlock: typeBlock,
			tar.TypeFifo: typeFifo}[hdr.Typeflag] | perm
		var dev uint32
		if dev, err = device(hdr); err == nil {
			err = w.fsys.Mknod("/"+path, e.mode, dev)
		}
	default:
		return fmt.Errorf("its type %q is unknown", hdr.Typeflag)
	}
	if err != nil {
		return err
	}
	w.entries[path] = e
	return w.attributes(e, hdr)
}

func (w *Writer) addFile(path string, size int64, content io.Reader) error {
	if size < 0 || size > w.opts.MaxBytes-w.bytes {
		return fmt.Errorf("the image exceeds its limit of %d bytes", w.opts.MaxBytes)
	}
	w.bytes += size
	f, err := w.fsys.Create("/" + path)
	if err != nil {
		return err
	}
	if size > 0 {
		if _, err := io.CopyN(f, content, size); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return f.Close()
}

func (w *Writer) addDir(path string, hdr *tar.Header) error {
	e := w.entries[path]
	if e == nil {
		if err := w.parents(path); err != nil {
			return err
		}
		if err := w.makeDir(path); err != nil {
			return err
		}
		e = w.entries[path]
	}
	if e.mode&typeMask != typeDir {
		return errors.New("is a duplicate of a folder")
	}
	e.mode = typeDir | uint16(hdr.Mode)&0o7777
	return w.attributes(e, hdr)
}

// addLink adds another name of a file. The library has no hard links: the name gets an empty inode
// of the same type, and Close points the name at the first inode.
func (w *Writer) addLink(path string, hdr *tar.Header) error {
	to, err := cleanPath(hdr.Linkname)
	if err != nil {
		return err
	}
	target := w.entries[to]
	if target == nil {
		return fmt.Errorf("is a link to %q, which does not precede it", hdr.Linkname)
	}
	if target.target != nil {
		target = target.target
	}
	if target.mode&typeMask == typeDir {
		return fmt.Errorf("is a link to the folder %q", hdr.Linkname)
	}
	target.names++
	e := &entry{path: path, mode: target.mode, target: target}
	w.entries[path] = e
	w.links = append(w.links, e)
	return w.fsys.Mknod("/"+path, target.mode, 0)
}

// parents creates the folders above path that no entry has named yet.
func (w *Writer) parents(path string) error {
	for i := 0; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		switch e := w.entries[path[:i]]; {
		case e == nil:
			if err := w.makeDir(path[:i]); err != nil {
				return err
			}
		case e.mode&typeMask != typeDir:
			return fmt.Errorf("leads through %q, which is not a folder", e.path)
		}
	}
	if len(w.entries) >= maxEntries {
		return fmt.Errorf("the image has more than %d files", maxEntries)
	}
	return nil
}

// MkdirAll creates the folder at path and its parents if they are missing; they belong to root with
// mode 0755. An existing folder is unchanged.
func (w *Writer) MkdirAll(name string) error {
	path, err := cleanPath(name)
	if err != nil {
		return err
	}
	if e := w.entries[path]; e != nil {
		if e.mode&typeMask != typeDir {
			return fmt.Errorf("%q is not a folder", name)
		}
		return nil
	}
	if err := w.parents(path); err != nil {
		return err
	}
	return w.makeDir(path)
}

func (w *Writer) makeDir(path string) error {
	if err := w.fsys.Mkdir("/"+path, 0o755); err != nil {
		return err
	}
	w.entries[path] = &entry{path: path, mode: typeDir | 0o755}
	return w.fsys.Chtimes("/"+path, w.opts.built(), w.opts.built())
}

// attributes sets the owner, mode, time and extended attributes of e from hdr.
func (w *Writer) attributes(e *entry, hdr *tar.Header) error {
	name := "/" + e.path
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) > 1<<32-2 || int64(hdr.Gid) > 1<<32-2 {
		return fmt.Errorf("its owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	if err := w.fsys.Chown(name, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	if err := w.fsys.Chmod(name, fileMode(e.mode)); err != nil {
		return err
	}
	mtime := hdr.ModTime
	if !w.opts.Latest.IsZero() && mtime.After(w.opts.Latest) {
		mtime = w.opts.Latest
	}
	if mtime.Unix() < 0 {
		mtime = time.Unix(0, 0)
	}
	if err := w.fsys.Chtimes(name, mtime, mtime); err != nil {
		return err
	}
	total := 0
	for key, value := range hdr.PAXRecords {
		attr, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok || !keptXattr(attr) {
			continue
		}
		if total += len(attr) + len(value); len(attr) > 255 || total > maxXattrs {
			return errors.New("its extended attributes are too long")
		}
		if err := w.fsys.Setxattr(name, WriterXattr(attr), value); err != nil {
			return err
		}
	}
	return nil
}

// keptXattr reports whether an attribute belongs to the content of a tree. Other attributes, such
// as security.selinux, belong to the building host. Without its access control list a file's group
// would have the permissions of the list's mask.
func keptXattr(name string) bool {
	return name == "security.capability" || isACL(name) || strings.HasPrefix(name, "user.") &&
		len(name) > len("user.")
}

func isACL(name string) bool {
	return name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// WriterXattr returns the name of an attribute that the writer of images expects. In the format an
// access control list is a number without a name, and the writer expects a prefix without a suffix
// for it.
func WriterXattr(name string) string {
	if isACL(name) {
		return name + "."
	}
	return name
}

// fileMode converts the bits that Chmod takes.
func fileMode(mode uint16) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint16]fs.FileMode{0o4000: fs.ModeSetuid,
		0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// device returns hdr's device number in the encoding of the kernel's new_encode_dev.
func device(hdr *tar.Header) (uint32, error) {
	if hdr.Typeflag == tar.TypeFifo {
		return 0, nil
	}
	major, minor := hdr.Devmajor, hdr.Devminor
	if major < 0 || major > 0xfff || minor < 0 || minor > 0xfffff {
		return 0, fmt.Errorf("its device number %d:%d is out of range", major, minor)
	}
	return uint32(minor&0xff | major<<8 | (minor&^0xff)<<12), nil
}

// cleanPath returns name without "./" and a trailing slash; the root is "".
func cleanPath(name string) (string, error) {
	refuse := func(why string) (string, error) {
		return "", fmt.Errorf("the path %.200q %s", name, why)
	}
	if len(name) > maxPath {
		return refuse("is too long")
	}
	if strings.HasPrefix(name, "/") {
		return refuse("is absolute")
	}
	if strings.ContainsRune(name, 0) {
		return refuse("contains a zero byte")
	}
	var segments []string
	for segment := range strings.SplitSeq(name, "/") {
		switch {
		case segment == "" || segment == ".":
		case segment == "..":
			return refuse("leaves the root")
		case len(segment) > maxName:
			return refuse("has a segment that is too long")
		default:
			segments = append(segments, segment)
		}
	}
	return strings.Join(segments, "/"), nil
}

// Close writes the image and makes it durable. The Writer's file stays open.
func (w *Writer) Close() error {
	for _, link := range w.links {
		if err := w.fsys.SetNlink("/"+link.target.path, link.target.names); err != nil {
			return err
		}
	}
	if err := w.fsys.Close(); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	links := make([]Link, len(w.links))
	for i, link := range w.links {
		links[i] = Link{link.path, link.target.path}
	}
	if err := JoinLinks(w.file, links); err != nil {
		return fmt.Errorf("erofs: hard links: %w", err)
	}
	return w.file.Sync()
}
