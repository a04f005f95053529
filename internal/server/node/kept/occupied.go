package kept

import (
	"io/fs"
	"syscall"
)

// occupied returns the bytes that a file occupies, without its holes.
func occupied(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
