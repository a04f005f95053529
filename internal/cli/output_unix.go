//go:build unix

package cli

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// An owner is the user and the group of a file.
type owner struct{ *syscall.Stat_t }

func ownerOf(info fs.FileInfo) owner {
	st, _ := info.Sys().(*syscall.Stat_t)
	return owner{st}
}

// give makes f a file of o. Only root can keep another user's ownership. A failure is no reason to
// lose the receipt.
func (o owner) give(f *os.File) {
	if o.Stat_t != nil {
		_ = f.Chown(int(o.Uid), int(o.Gid))
	}
}

// writable reports whether this process can create files in dir.
func writable(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }

// umask returns the process's file mode mask. It can only be read by setting it.
func umask() fs.FileMode {
	old := syscall.Umask(0o077)
	syscall.Umask(old)
	return fs.FileMode(old)
}
