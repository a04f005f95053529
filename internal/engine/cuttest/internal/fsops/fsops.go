// Package fsops performs file operations, each described by a line of text, and reports what a
// program sees of them. Tests perform the same lines in sandboxes and on the host, and compare.
//
// A line is an operation, its paths and its further arguments, separated by blanks. Paths are
// relative to a directory. A result is "ok", a value that was read, or the name of an error number.
// Results have nothing that may differ between two file systems of the same content: no inode
// numbers, no sizes of directories, no times except those that utimes sets.
package fsops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Dir performs operations below a directory of this machine.
type Dir string

// An operation takes the arguments that follow its name.
type operation struct {
	args int
	do   func(d Dir, a []string) (string, error)
}

// operations are all operations by name. "as UID OPERATION" performs one as another user.
var operations = map[string]operation{
	"begin": {0, begin}, "walk": {0, walk},
	"write": {2, opens(unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC)}, "append": {2, opens(unix.O_WRONLY | unix.O_APPEND)},
	"create": {2, opens(unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL)}, "at": {3, writeAt}, "truncate": {2, truncate},
	"ftruncate": {2, ftruncate}, "punch": {3, punch}, "map": {2, writeMapped},
	"mkdir": {2, mkdir}, "rmdir": {1, rmdir}, "unlink": {1, unlink}, "rmall": {1, removeAll},
	"rename": {2, renames(0)}, "exchange": {2, renames(unix.RENAME_EXCHANGE)}, "noreplace": {2, renames(unix.RENAME_NOREPLACE)},
	"link": {2, link}, "symlink": {2, symlink}, "fifo": {2, mknod(unix.S_IFIFO)},
	"char": {4, mknod(unix.S_IFCHR)}, "block": {4, mknod(unix.S_IFBLK)}, "temp": {2, unnamed},
	"chmod": {2, chmod}, "chown": {3, chown}, "utimes": {2, utimes},
	"setx": {3, setXattr}, "rmx": {2, removeXattr}, "getx": {2, getXattr}, "listx": {1, listXattrs},
	"acl": {3, setACL}, "cap": {1, setCapability},
	"read": {1, read}, "readdir": {1, readDir}, "stat": {1, stat}, "readlink": {1, readLink},
	"same": {2, same}, "sparse": {1, sparse}, "access": {2, access},
	"held": {2, held}, "heldmove": {3, heldMove}, "heldgone": {2, heldGone}, "pass": {2, pass},
}

// Do performs an operation and returns its result.
func (d Dir) Do(line string) string {
	got, err := d.perform(strings.Fields(line))
	var number unix.Errno
	switch {
	case errors.As(err, &number):
		if name := unix.ErrnoName(number); name != "" {
			return name
		}
		return number.Error()
	case err != nil:
		return "error: " + err.Error()
	case got == "":
		return "ok"
	}
	return got
}

func (d Dir) perform(f []string) (string, error) {
	if len(f) > 2 && f[0] == "as" {
		uid, err := strconv.Atoi(f[1])
		if err != nil {
			return "", err
		}
		return as(uid, func() (string, error) { return d.perform(f[2:]) })
	}
	if len(f) == 0 {
		return "", errors.New("no operation")
	}
	o, found := operations[f[0]]
	if !found || len(f)-1 != o.args {
		return "", fmt.Errorf("%q is no operation", strings.Join(f, " "))
	}
	return o.do(d, f[1:])
}

// inside is the folder of a Dir that operations are performed in. A link such as "../a" leads out of
// it, and not out of the Dir.
const inside = "in"

// Inside returns the folder that the paths of operations are relative to.
func (d Dir) Inside() string { return string(d) + "/" + inside }

func (d Dir) path(name string) string { return d.Inside() + "/" + name }

// as calls do with the user and the group uid and without further groups. Only the calling thread
// has that user, so do must not leave it.
func as(uid int, do func() (string, error)) (got string, err error) {
	runtime.LockOSThread()
	groups, err := unix.Getgroups()
	if err != nil {
		return "", err
	}
	call := func(number uintptr, a ...int) {
		if _, _, e := unix.RawSyscall(number, uintptr(a[0]), uintptr(a[1]), uintptr(a[2])); e != 0 && err == nil {
			err = e
		}
	}
	none := []int{}
	setGroups(none, &err)
	call(unix.SYS_SETRESGID, uid, uid, 0)
	call(unix.SYS_SETRESUID, uid, uid, 0)
	if err == nil {
		got, err = do()
	}
	failed := err
	err = nil
	call(unix.SYS_SETRESUID, 0, 0, 0)
	call(unix.SYS_SETRESGID, 0, 0, 0)
	setGroups(groups, &err)
	if err != nil {
		return "", fmt.Errorf("the thread stays user %d: %w", uid, err) // it ends with its goroutine
	}
	runtime.UnlockOSThread()
	return got, failed
}

// number parses a decimal or octal (0o644) number of an operation.
func number(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }

func numbers(list ...string) ([]int64, error) {
	out := make([]int64, len(list))
	for i, s := range list {
		n, err := number(s)
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

// Mask is the umask that operations need.
const Mask = 0o022

// begin makes the directory, in which all users may perform operations.
func begin(d Dir, _ []string) (string, error) {
	return "", errors.Join(os.Mkdir(string(d), 0o755), os.Mkdir(d.Inside(), 0o755), os.Chmod(string(d), 0o777),
		os.Chmod(d.Inside(), 0o777))
}

func mkdir(d Dir, a []string) (string, error) {
	mode, err := number(a[1])
	if err != nil {
		return "", err
	}
	return "", unix.Mkdir(d.path(a[0]), uint32(mode))
}

func rmdir(d Dir, a []string) (string, error)  { return "", unix.Rmdir(d.path(a[0])) }
func unlink(d Dir, a []string) (string, error) { return "", unix.Unlink(d.path(a[0])) }

// removeAll removes a path and everything below it, as rm -r does.
func removeAll(d Dir, a []string) (string, error) {
	if _, err := os.Lstat(d.path(a[0])); err != nil {
		return "", err
	}
	return "", os.RemoveAll(d.path(a[0]))
}

func renames(flags uint) func(Dir, []string) (string, error) {
	return func(d Dir, a []string) (string, error) {
		if flags == 0 {
			return "", unix.Rename(d.path(a[0]), d.path(a[1]))
		}
		return "", unix.Renameat2(unix.AT_FDCWD, d.path(a[0]), unix.AT_FDCWD, d.path(a[1]), flags)
	}
}

func link(d Dir, a []string) (string, error) { return "", unix.Link(d.path(a[0]), d.path(a[1])) }

func symlink(d Dir, a []string) (string, error) { return "", unix.Symlink(a[1], d.path(a[0])) }

// mknod makes a special file: NAME MODE, and of a device MAJOR MINOR.
func mknod(kind uint32) func(Dir, []string) (string, error) {
	return func(d Dir, a []string) (string, error) {
		n, err := numbers(a[1:]...)
		if err != nil {
			return "", err
		}
		device := 0
		if len(n) == 3 {
			device = int(unix.Mkdev(uint32(n[1]), uint32(n[2])))
		}
		return "", unix.Mknod(d.path(a[0]), kind|uint32(n[0]), device)
	}
}

func chmod(d Dir, a []string) (string, error) {
	mode, err := number(a[1])
	if err != nil {
		return "", err
	}
	return "", unix.Chmod(d.path(a[0]), uint32(mode))
}

func chown(d Dir, a []string) (string, error) {
	n, err := numbers(a[1:]...)
	if err != nil {
		return "", err
	}
	return "", unix.Lchown(d.path(a[0]), int(n[0]), int(n[1]))
}

// old is the first second that the results do not name: utimes sets earlier times.
const old = 1_300_000_000

// utimes sets a file's times to the N-th of some times long ago. Links are not followed.
func utimes(d Dir, a []string) (string, error) {
	n, err := number(a[1])
	if err != nil {
		return "", err
	}
	t := unix.Timespec{Sec: 1_000_000_000 + n*100_000, Nsec: 123_456_789}
	return "", unix.UtimesNanoAt(unix.AT_FDCWD, d.path(a[0]), []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

func modified(st *unix.Stat_t) string {
	if st.Mtim.Sec >= old {
		return "recent"
	}
	return fmt.Sprintf("%d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
}

// letters are the types of files as ls shows them.
var letters = map[uint32]string{unix.S_IFDIR: "d", unix.S_IFREG: "-", unix.S_IFLNK: "l", unix.S_IFIFO: "p",
	unix.S_IFCHR: "c", unix.S_IFBLK: "b", unix.S_IFSOCK: "s"}

func stat(d Dir, a []string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(d.path(a[0]), &st); err != nil {
		return "", err
	}
	return describe(&st), nil
}

// describe says of a file what stat shows of it.
func describe(st *unix.Stat_t) string {
	kind := st.Mode & unix.S_IFMT
	s := fmt.Sprintf("%s%04o %d:%d", letters[kind], st.Mode&0o7777, st.Uid, st.Gid)
	switch kind {
	case unix.S_IFDIR: // file systems count a directory's names, and its size, in different ways
	case unix.S_IFCHR, unix.S_IFBLK:
		return s + fmt.Sprintf(" %d:%d names=%d", unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Nlink)
	case unix.S_IFLNK, unix.S_IFREG:
		s += fmt.Sprintf(" size=%d names=%d", st.Size, st.Nlink)
	default:
		return s + fmt.Sprintf(" names=%d", st.Nlink) // an overlay does not tell when a FIFO was written to
	}
	return s + " " + modified(st)
}

func readLink(d Dir, a []string) (string, error) { return targetOf(d.path(a[0])) }

func targetOf(path string) (string, error) {
	to, err := os.Readlink(path)
	return "->" + to, err
}

// readDir lists the names of a directory and their types, as the directory has them.
func readDir(d Dir, a []string) (string, error) {
	list, err := os.ReadDir(d.path(a[0]))
	if err != nil {
		return "", err
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name() + kindOf(e.Type())
	}
	return "[" + strings.Join(names, " ") + "]", nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "/"
	case m&fs.ModeSymlink != 0:
		return "@"
	case m&fs.ModeNamedPipe != 0:
		return "|"
	case m&fs.ModeCharDevice != 0:
		return "%"
	case m&fs.ModeDevice != 0:
		return "#"
	}
	return ""
}

// same reports whether two names are one file.
func same(d Dir, a []string) (string, error) {
	var x, y unix.Stat_t
	if err := errors.Join(unix.Lstat(d.path(a[0]), &x), unix.Lstat(d.path(a[1]), &y)); err != nil {
		return "", err
	}
	return strconv.FormatBool(x.Dev == y.Dev && x.Ino == y.Ino), nil
}

// access reports whether the calling user may use a file: "4" reads, "2" writes, "1" executes.
func access(d Dir, a []string) (string, error) {
	mode, err := number(a[1])
	if err != nil {
		return "", err
	}
	return "", unix.Faccessat(unix.AT_FDCWD, d.path(a[0]), uint32(mode), 0)
}

// setGroups sets the groups of the calling thread alone, unless *err is an error already.
func setGroups(groups []int, err *error) {
	list := make([]uint32, len(groups)+1) // one more, so that there is an address
	for i, g := range groups {
		list[i] = uint32(g)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0); e != 0 &&
		*err == nil {
		*err = e
	}
}
