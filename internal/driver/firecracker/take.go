package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/sparse"
)

// Firecracker's files in its folder are untrusted: an attacker who has taken over Firecracker may
// have put a link to a file of the host there, or may continue to write. Therefore no file there is
// opened by a path, no link is followed, and only copies are stored.

// openWritten opens the file called name that owner has written into the folder dir. It is neither
// a link nor has another name, and has at most limit bytes.
func openWritten(dir *os.File, name string, owner uint32, limit int64) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name,
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("firecracker has not written its snapshot: %w",
			&fs.PathError{Op: "open", Path: name, Err: err})
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
			err = errors.New("it is not a regular file")
		case st.Uid != owner:
			err = fmt.Errorf("it belongs to user %d", st.Uid)
		case st.Nlink != 1:
			err = fmt.Errorf("it has %d names", st.Nlink)
		case st.Size > limit:
			err = fmt.Errorf("it has %d bytes, at most %d can be right", st.Size, limit)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("firecracker has written a snapshot that cannot be used: %s: %w",
			name, err)
	}
	return f, nil
}

// take copies a file that the machine's Firecracker has written to the new file dst.
func (m *machine) take(ctx context.Context, name, dst string, limit int64) (err error) {
	src, err := openWritten(m.cell.outDir, name, m.owner, limit)
	if err != nil {
		return err
	}
	defer src.Close()
	f, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := copyPages(ctx, f, src, limit); err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o444), f.Sync())
}

// copyPages copies the first limit bytes of src to dst, which is empty, except the pages that are
// all zeros. A machine's memory has many of these, and Firecracker writes all of them.
func copyPages(ctx context.Context, dst, src *os.File, limit int64) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	size := min(st.Size(), limit)
	if err := dst.Truncate(size); err != nil {
		return err
	}
	const page, part = 4096, 1 << 20
	buf, zeros := make([]byte, part), make([]byte, page)
	for off := int64(0); off < size; {
		data, hole, err := sparse.Next(src, off)
		if err != nil || data == hole || data >= size {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(part, hole-data, size-data)]
		if _, err := io.ReadFull(io.NewSectionReader(src, data, int64(len(b))), b); err != nil {
			return err
		}
		for at := 0; at < len(b); {
			begin := at
			for at < len(b) &&
				string(b[at:min(at+page, len(b))]) != string(zeros[:min(page, len(b)-at)]) {
				at = min(at+page, len(b))
			}
			if at > begin {
				if _, err := dst.WriteAt(b[begin:at], data+int64(begin)); err != nil {
					return err
				}
				continue
			}
			at = min(at+page, len(b))
		}
		off = data + int64(len(b))
	}
	return nil
}

// dialIn connects to the socket called name in the folder dir, and never to the target of a link of
// that name.
func dialIn(ctx context.Context, dir *os.File, name string) (net.Conn, error) {
	fail := func(err error) (net.Conn,
		error) {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: err}
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(os.NewSyscallError("openat", err))
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(os.NewSyscallError("fstat", err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		// it does not become a socket
		return nil, &fs.PathError{Op: "connect", Path: name, Err: syscall.ENOTSOCK}
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}
