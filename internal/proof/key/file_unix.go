//go:build unix

package key

import (
	"io/fs"
	"os"
	"syscall"

	"turnstone.dev/turnstone"
)

// errSymlink is the error of openNoFollow for a symbolic link.
const errSymlink = syscall.ELOOP

// openNoFollow opens a file that is no symbolic link; it does not wait for the writer of a FIFO.
func openNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// checkOwn rejects a file that another user owns or can read.
func checkOwn(path, what string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return turnstone.Errorf("key.load", turnstone.KindInvalid, path,
			"has mode %04o: other users can read %s", info.Mode().Perm(), what).
			WithHint("chmod 600 " + path + ", and replace " + what + " if others had access")
	}
	return checkOwner(path, info)
}

// checkWriters rejects a file that another user owns or can write.
func checkWriters(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return turnstone.Errorf("key.load", turnstone.KindInvalid, path,
			"has mode %04o: other users can write it", info.Mode().Perm()).
			WithHint("compare it with its copy, then chmod 600 " + path)
	}
	return checkOwner(path, info)
}

func checkOwner(path string, info fs.FileInfo) error {
	st, _ := info.Sys().(*syscall.Stat_t)
	if st == nil || int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return turnstone.Errorf("key.load", turnstone.KindInvalid, path,
			"belongs to another user")
	}
	return nil
}
