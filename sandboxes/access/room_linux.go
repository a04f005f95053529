package access

import "golang.org/x/sys/unix"

// keepFree is the space that a download leaves free on this machine's disk, or a twentieth of a
// small disk.
const keepFree = 1 << 30

// room reports whether the disk of dir has free space.
func room(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	total, free := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
	if free < min(keepFree, total/20) {
		return unix.ENOSPC
	}
	return nil
}
