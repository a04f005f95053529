//go:build unix

package manifest

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openFile opens a file without waiting for the other end of a pipe.
func openFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// otherOwner names the owner of a file, if that is another user than the present one.
func otherOwner(info fs.FileInfo) string {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Sprintf("user %d", st.Uid)
	}
	return ""
}

// together reports whether a folder and the one above it have one owner and are in one file system.
func together(at, above fs.FileInfo) bool {
	a, ok := at.Sys().(*syscall.Stat_t)
	b, known := above.Sys().(*syscall.Stat_t)
	return ok && known && a.Uid == b.Uid && a.Dev == b.Dev
}
