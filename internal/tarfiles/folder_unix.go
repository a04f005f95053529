//go:build unix

package tarfiles

import (
	"io/fs"
	"syscall"
)

// onlyFolder makes an open fail of what is no folder.
const onlyFolder = syscall.O_DIRECTORY

// uidOf returns a file's user.
func uidOf(st fs.FileInfo) int {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// gidOf returns a file's group.
func gidOf(st fs.FileInfo) int {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(s.Gid)
	}
	return -1
}
