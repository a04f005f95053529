package fsops

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// mostRead bounds what is read of a file: some devices have no end.
const mostRead = 4 << 20

// A descriptor is an open file. It is no os.File, because that changes how the kernel waits.
type descriptor int

// open opens a file without waiting for a FIFO's other end.
func open(path string, flags int) (descriptor, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o666)
	return descriptor(fd), err
}

func (f descriptor) close() error { return unix.Close(int(f)) }

func (f descriptor) write(text string) error {
	n, err := unix.Write(int(f), []byte(text))
	if err == nil && n < len(text) {
		err = unix.EIO
	}
	return err
}

// content describes what is read from f, from its offset on.
func (f descriptor) content() (string, error) {
	b := make([]byte, 0, 64<<10)
	for len(b) < mostRead {
		at := len(b)
		b = append(b, make([]byte, 64<<10)...)
		n, err := unix.Read(int(f), b[at:])
		if err != nil {
			return "", err
		}
		if b = b[:at+n]; n == 0 {
			return brief(b), nil
		}
	}
	return fmt.Sprintf("no end, %q first", b[:1]), nil
}

// mostShown bounds the texts of contents.
const mostShown = 200

// brief is b itself if it is short, with its zeros counted.
func brief(b []byte) string {
	var out strings.Builder
	for s := string(b); s != "" && out.Len() < mostShown; {
		rest := strings.TrimLeft(s, "\x00")
		if zeros := len(s) - len(rest); zeros > 0 {
			fmt.Fprintf(&out, "(%d zeros)", zeros)
		}
		text, _, _ := strings.Cut(rest, "\x00")
		quoted := fmt.Sprintf("%q", text)
		out.WriteString(quoted[1 : len(quoted)-1])
		s = rest[len(text):]
	}
	if out.Len() >= mostShown {
		return fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b))
	}
	return `"` + out.String() + `"`
}

// opens writes a text to a file that it opens with flags: PATH TEXT.
func opens(flags int) func(Dir, []string) (string, error) {
	return func(d Dir, a []string) (string, error) {
		f, err := open(d.path(a[0]), flags)
		if err != nil {
			return "", err
		}
		return "", errors.Join(f.write(a[1]), f.close())
	}
}

// writeAt writes a text at an offset: PATH OFFSET TEXT.
func writeAt(d Dir, a []string) (string, error) {
	offset, err := number(a[1])
	if err != nil {
		return "", err
	}
	f, err := open(d.path(a[0]), unix.O_WRONLY)
	if err != nil {
		return "", err
	}
	_, err = unix.Pwrite(int(f), []byte(a[2]), offset)
	return "", errors.Join(err, f.close())
}

func truncate(d Dir, a []string) (string, error) {
	size, err := number(a[1])
	if err != nil {
		return "", err
	}
	return "", unix.Truncate(d.path(a[0]), size)
}

// ftruncate truncates a file through a descriptor.
func ftruncate(d Dir, a []string) (string, error) {
	size, err := number(a[1])
	if err != nil {
		return "", err
	}
	f, err := open(d.path(a[0]), unix.O_RDWR)
	if err != nil {
		return "", err
	}
	return "", errors.Join(unix.Ftruncate(int(f), size), f.close())
}

// punch makes a hole into a file: PATH OFFSET LENGTH.
func punch(d Dir, a []string) (string, error) {
	n, err := numbers(a[1:]...)
	if err != nil {
		return "", err
	}
	f, err := open(d.path(a[0]), unix.O_RDWR)
	if err != nil {
		return "", err
	}
	return "", errors.Join(unix.Fallocate(int(f), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, n[0], n[1]),
		f.close())
}

// writeMapped writes a text at the beginning of a file that is mapped: PATH TEXT.
func writeMapped(d Dir, a []string) (string, error) {
	f, err := open(d.path(a[0]), unix.O_RDWR)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f), &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return "nothing to map", nil
	}
	b, err := unix.Mmap(int(f), 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return "", err
	}
	copy(b, a[1])
	// gVisor does not change the time of a file for this.
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	return "", errors.Join(unix.Msync(b, unix.MS_SYNC), unix.Munmap(b),
		unix.UtimesNanoAt(unix.AT_FDCWD, d.path(a[0]), now, 0))
}

// unnamed makes a file without a name, writes to it, and names it: PATH TEXT.
func unnamed(d Dir, a []string) (string, error) {
	fd, err := unix.Open(d.Inside(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return "", err
	}
	f := descriptor(fd)
	if err = f.write(a[1]); err == nil {
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, d.path(a[0]),
			unix.AT_SYMLINK_FOLLOW)
	}
	return "", errors.Join(err, f.close())
}

func read(d Dir, a []string) (string, error) { return contentOf(d.path(a[0])) }

// contentOf reads a file's content. It follows links.
func contentOf(path string) (string, error) {
	f, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.close() }()
	return f.content()
}

// sparse reports whether a file uses less than half of the blocks that its size needs. Its content
// is written back first, because a file system may choose blocks late.
func sparse(d Dir, a []string) (string, error) {
	f, err := open(d.path(a[0]), unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := errors.Join(unix.Fsync(int(f)), unix.Fstat(int(f), &st), f.close()); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < 1<<16 {
		return "too small", nil
	}
	return fmt.Sprint(st.Blocks*512 < st.Size/2), nil
}

// held opens a file, appends to it through another descriptor, and reads the first: PATH TEXT. It
// reports also whether the descriptor still is the file that has the name.
func held(d Dir, a []string) (string, error) {
	r, err := open(d.path(a[0]), unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.close() }()
	if _, err := opens(unix.O_WRONLY|unix.O_APPEND)(d, a); err != nil {
		return "", err
	}
	text, err := r.content()
	if err != nil {
		return "", err
	}
	return text + " " + r.relation(d.path(a[0])), nil
}

// relation says how f relates to the file called path.
func (f descriptor) relation(path string) string {
	var now, then unix.Stat_t
	if unix.Stat(path, &now) != nil || unix.Fstat(int(f), &then) != nil ||
		now.Ino != then.Ino || now.Dev != then.Dev {
		return "another file"
	}
	if then.Mode&unix.S_IFMT != unix.S_IFREG {
		return "special"
	}
	return fmt.Sprintf("size=%d names=%d", then.Size, then.Nlink)
}

// heldMove opens a file, renames it or a directory above it, and writes through the descriptor:
// PATH FROM TO.
func heldMove(d Dir, a []string) (string, error) {
	f, err := open(d.path(a[0]), unix.O_RDWR)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.close() }()
	if err := unix.Rename(d.path(a[1]), d.path(a[2])); err != nil {
		return "", err
	}
	if _, err := unix.Pwrite(int(f), []byte("moved"), 0); err != nil {
		return "", err
	}
	return f.relation(d.path(a[2] + strings.TrimPrefix(a[0], a[1]))), nil
}

// heldGone opens a file, removes its name, and uses the descriptor: PATH TEXT.
func heldGone(d Dir, a []string) (string, error) {
	f, err := open(d.path(a[0]), unix.O_RDWR|unix.O_APPEND)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.close() }()
	if err := unix.Unlink(d.path(a[0])); err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := errors.Join(f.write(a[1]), unix.Fstat(int(f), &st)); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "special", nil
	}
	if _, err := unix.Seek(int(f), 0, unix.SEEK_SET); err != nil {
		return "", err
	}
	text, err := f.content()
	return fmt.Sprintf("%s names=%d", text, st.Nlink), err
}

// pass writes a text to a FIFO and reads it back: PATH TEXT.
func pass(d Dir, a []string) (string, error) {
	r, err := open(d.path(a[0]), unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.close() }()
	if _, err := opens(unix.O_WRONLY)(d, a); err != nil {
		return "", err
	}
	return r.content()
}
