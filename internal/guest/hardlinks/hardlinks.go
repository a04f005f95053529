// Package hardlinks completes the hard links of an overlay's upper directory.
//
// An overlay with an index (index=on, Documentation/filesystems/overlayfs.rst) copies a file with
// several names once, and all of its names become names of the copy. But the upper directory has only
// the names that were used since. The host reads the upper directory alone, and needs all names.
package hardlinks

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth bounds the directories that Complete has open.
const maxDepth = 512

// A Completer completes the upper directory of one overlay, as often as it is read. The zero value is
// ready. It is not safe for concurrent use.
type Completer struct {
	done map[string]bool // names in the index whose files are complete
}

// Complete adds all visible names of the files in an overlay's index to its upper directory. root is
// a descriptor of the overlay's top directory, index one of its index (the directory index in its
// work directory). It reads all directories of the overlay, but only if the index has a file that
// the last call did not see. No process may change the overlay meanwhile. Names in directories that
// are nested more than 512 deep are left out.
func (c *Completer) Complete(ctx context.Context, root, index int) error {
	names, err := c.added(index)
	if err != nil || len(names) == 0 {
		return err
	}
	w := &walk{ctx: ctx, copied: copiedInodes(names)}
	fd, err := reopen(root, ".")
	if err == nil {
		err = w.dir(fd, 0)
	}
	if err != nil {
		return err
	}
	if c.done == nil {
		c.done = make(map[string]bool, len(names))
	}
	for _, name := range names {
		c.done[name] = true
	}
	return nil
}

// added returns the names that an index has in addition to those that are complete.
func (c *Completer) added(index int) ([]string, error) {
	fd, err := reopen(index, ".")
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	f := os.NewFile(uintptr(fd), "index")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	return slices.DeleteFunc(names, func(name string) bool {
		return c.done[name] || strings.HasPrefix(name, "#") // a whiteout for all that are removed
	}), err
}

// inodes are the numbers of inodes below an overlay that it has copied.
type inodes struct {
	all     bool // they are unknown
	lookup  bool // a lookup links a name to its copy: gVisor
	numbers map[uint64]bool
}

func (i *inodes) has(number uint64) bool { return i.all || i.numbers[number] }

// copiedInodes returns the inodes for which names in an index stand.
func copiedInodes(names []string) inodes {
	found := inodes{numbers: make(map[uint64]bool, len(names))}
	for _, name := range names {
		if strings.Contains(name, "-") {
			found.lookup = true
			continue
		}
		number, ok := inodeOf(name)
		found.all = found.all || !ok
		found.numbers[number] = true
	}
	return found
}

// inodeOf returns the number of the inode that a name in an index stands for: the file handle of the
// inode in hexadecimal digits (struct ovl_fb of the kernel's fs/overlayfs/overlayfs.h).
func inodeOf(name string) (uint64, bool) {
	const (
		head     = 21 // bytes before the file system's own part
		typeAt   = 4
		ino32    = 0x01 // enum fid_type: FILEID_INO32_GEN
		ino64    = 0x81 // FILEID_INO64_GEN
		magic    = 0xfb
		bigFlag  = 1 << 0 // OVL_FH_FLAG_BIG_ENDIAN
		flagsAt  = 3
		magicAt  = 1
		ino64Len = 12
	)
	b, err := hex.DecodeString(name)
	if err != nil || len(b) < head+8 || b[magicAt] != magic || b[flagsAt]&bigFlag != 0 {
		return 0, false
	}
	switch own := b[head:]; {
	case b[typeAt] == ino32:
		return uint64(binary.LittleEndian.Uint32(own)), true
	case b[typeAt] == ino64 && len(own) >= ino64Len:
		return binary.LittleEndian.Uint64(own), true
	}
	return 0, false
}

type walk struct {
	ctx    context.Context
	copied inodes
}

// dir completes a directory and those below it. It closes fd.
func (w *walk) dir(fd, depth int) error {
	defer unix.Close(fd)
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return os.NewSyscallError("readdir", err)
		}
		if n == 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			var e entry
			e, rest = next(rest)
			if err := w.entry(fd, e, depth); err != nil {
				return &os.PathError{Op: "link", Path: e.name, Err: err}
			}
		}
	}
}

// An entry is a name in a directory.
type entry struct {
	inode uint64 // of a file from below: its number there
	kind  byte
	name  string
}

// next reads the next entry (struct linux_dirent64, getdents(2)), which the kernel wrote.
func next(b []byte) (e entry, rest []byte) {
	const head = 19 // inode u64, offset i64, length u16, type u8
	length := int(binary.NativeEndian.Uint16(b[16:]))
	name, _, _ := bytes.Cut(b[head:length], []byte{0})
	return entry{inode: binary.NativeEndian.Uint64(b), kind: b[18], name: string(name)}, b[length:]
}

func (w *walk) entry(dir int, e entry, depth int) error {
	if e.name == "." || e.name == ".." {
		return nil
	}
	kind := e.kind
	var st unix.Stat_t
	found := w.copied.has(e.inode)
	if found || w.copied.lookup && kind != unix.DT_DIR || kind == unix.DT_UNKNOWN {
		if err := unix.Fstatat(dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("stat", err)
		}
		kind = byte(st.Mode & unix.S_IFMT >> 12)
	}
	switch {
	case kind == unix.DT_DIR && depth < maxDepth:
		return w.enter(dir, e.name, depth)
	case kind == unix.DT_DIR || !found:
		return nil
	}
	// The change of a time to what it is makes the overlay link the name to the copy, of each type
	// of file, also of a program that runs. It keeps the set-user-ID bit, which a change of the owner
	// would not.
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}
	return os.NewSyscallError("utimensat",
		unix.UtimesNanoAt(dir, e.name, times, unix.AT_SYMLINK_NOFOLLOW))
}

// enter completes a subdirectory, unless another file system is mounted there: no call may reach
// that, because a process that no longer runs may serve it.
func (w *walk) enter(dir int, name string, depth int) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS})
	if err == unix.EXDEV {
		return nil
	} else if err != nil {
		return os.NewSyscallError("open", err)
	}
	return w.dir(fd, depth+1)
}

// reopen opens the directory name in dir for reading.
func reopen(dir int, name string) (int, error) {
	return unix.Openat(dir, name,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}
