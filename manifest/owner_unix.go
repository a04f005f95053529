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

// distrusted returns why a file is not used: it belongs to another user, or others can write it; empty: it is used. The
// group of its owner's own number has no other members where users have groups of their own.
func distrusted(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return ""
	case int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", st.Uid)
	case st.Mode&0o002 != 0:
		return "can be written by everybody"
	case st.Mode&0o020 != 0 && st.Gid != st.Uid:
		return fmt.Sprintf("can be written by group %d", st.Gid)
	}
	return ""
}

// together reports whether a folder and the one above it have one owner and are in one file system.
func together(at, above fs.FileInfo) bool {
	a, ok := at.Sys().(*syscall.Stat_t)
	b, known := above.Sys().(*syscall.Stat_t)
	return ok && known && a.Uid == b.Uid && a.Dev == b.Dev
}
