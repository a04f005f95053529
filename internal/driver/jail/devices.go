//go:build linux && amd64

package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nodes returns a file system with new device nodes for the devices at paths, which are all in one
// folder; the nodes keep their names. The nodes belong to nobody and other users cannot open them,
// whoever owns the host's nodes; nothing in the file system can be changed. Only root can create it
// (since Linux 5.2); a root's jail mounts it.
func nodes(paths []string) (*os.File, error) {
	dir := filepath.Dir(paths[0])
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fsfd)
	err = errors.Join(unix.FsconfigSetString(fsfd, "size", "64k"),
		unix.FsconfigSetString(fsfd, "nr_inodes", "64"),
		unix.FsconfigSetString(fsfd, "mode", "755"), unix.FsconfigCreate(fsfd))
	if err != nil {
		return nil, fmt.Errorf("a file system of devices: %w", err)
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	made := os.NewFile(uintptr(mfd), dir)
	for _, path := range paths {
		if filepath.Dir(path) != dir {
			err = fmt.Errorf("%s and %s are in two folders", paths[0], path)
		} else {
			err = node(mfd, path)
		}
		if err != nil {
			_ = made.Close()
			return nil, err
		}
	}
	if err := errors.Join(unix.FsconfigSetFlag(fsfd, "ro"),
		unix.FsconfigReconfigure(fsfd)); err != nil {
		_ = made.Close()
		return nil, fmt.Errorf("a file system of devices: %w", err)
	}
	return made, nil
}

// node creates the node of the device at path in the folder dirfd.
func node(dirfd int, path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%s is not a character device", path)
	}
	name := filepath.Base(path)
	if err := unix.Mknodat(dirfd, name, unix.S_IFCHR|0o600, int(st.Rdev)); err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	if err := unix.Fchownat(dirfd, name, Nobody, Nobody, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "chown", Path: path, Err: err}
	}
	return nil
}

// OwnsDevices returns why this user's jails cannot have their own device nodes; nil: they can, so
// that the mode of the host's nodes does not matter.
func OwnsDevices(paths ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can make device nodes")
	}
	f, err := nodes(paths)
	if err != nil {
		return err
	}
	return f.Close()
}
