package filestamp

import (
	"os"
	"syscall"
)

// metadata returns a stamp without a digest.
func metadata(fi os.FileInfo) (Stamp, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return Stamp{}, false
	}
	return Stamp{Size: fi.Size(), Inode: st.Ino, MtimeNs: st.Mtimespec.Nano(),
		CtimeNs: st.Ctimespec.Nano()}, true
}
