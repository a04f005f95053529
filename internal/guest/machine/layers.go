package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/wire"
)

const (
	contextDir  = "/context"
	firstUpper  = "upper"  // takes the writes over the template alone
	firstWork   = "work"   // the work directory of the overlay
	secondUpper = "upper2" // takes the writes over layers
	secondWork  = "work2"
	shownDir    = "shown" // see showDisk
	maxLayers   = 16
)

// overlayOptions make an overlay behave like one file system: a rename of a directory from below
// works, and all names of a file stay one file when it is copied up. The host reads the upper
// directory with packages layer and hardlinks, which know both.
const overlayOptions = "redirect_dir=on,metacopy=off,index=on,xino=off,"

// redirectLength is the longest path of a directory that can be renamed without a copy, in bytes. It
// fits into an extended attribute of ext4.
const redirectLength = "3000"

// skeleton returns the lowest directory of each overlay, below the template: mount points that
// belong to no state. An index needs directories whose files have handles, which those of the
// kernel's first root have not. gVisor's overlay does not need them.
func (m *machine) skeleton() string {
	if m.gvisor {
		return skelDir
	}
	return filepath.Join(upperDir, skelDir)
}

// mountOverlay mounts an overlay at dir. The lower directories are in order from the highest;
// without an upper directory the overlay is read-only.
func (m *machine) mountOverlay(dir string, lower []string, upper, work string) error {
	options := overlayOptions
	if m.gvisor { // gVisor has none of these features, and rejects their names
		options = ""
	}
	return mountOverlay(dir, options, lower, upper, work)
}

func mountOverlay(dir, options string, lower []string, upper, work string) error {
	opts := options + "lowerdir=" + strings.Join(lower, ":")
	flags := uintptr(unix.MS_NOATIME)
	if upper != "" {
		opts += ",upperdir=" + upper + ",workdir=" + work
	} else {
		flags |= unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	}
	if err := unix.Mount("overlay", dir, "overlay", flags, opts); err != nil {
		return &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	return nil
}

// mountScratch mounts the disk that takes the writes.
func (m *machine) mountScratch(serial string) error {
	if !m.gvisor {
		dev, err := m.blockDevice(serial, deviceWait)
		if err != nil {
			return err
		}
		// The disk lives as long as the machine, so barriers are useless.
		const opts = "nobarrier,noinit_itable"
		if err := unix.Mount(dev, upperDir, "ext4", unix.MS_NOATIME, opts); err != nil {
			return &os.PathError{Op: "mount", Path: dev, Err: err}
		}
		m.devices = m.blockDevices()
		// A kernel without the setting copies a directory whose path is longer than 256 bytes.
		_ = os.WriteFile("/sys/module/overlay/parameters/redirect_max", []byte(redirectLength), 0)
	}
	dirs := []string{firstUpper, firstWork, firstUpper + "/etc", secondUpper, secondWork,
		secondUpper + "/etc"}
	if !m.gvisor {
		dirs = append(dirs, skelDir, skelDir+contextDir)
	}
	for _, dir := range dirs {
		if err := unix.Mkdir(filepath.Join(upperDir, dir), 0o755); err != nil &&
			err != unix.EEXIST {
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
	}
	m.disks.Upper, m.disks.Work = firstUpper, firstWork
	return m.disks.Add(upperDir)
}

// enterRoot makes the scratch disk over the template the root of the agent and of its processes, as
// switch_root does. /context exists and is empty.
func (m *machine) enterRoot() error {
	var err error
	if m.base, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	upper := filepath.Join(upperDir, firstUpper)
	if err := resemble(upper, []string{lowerDir}); err != nil {
		return err
	}
	if err := m.mountOverlay(mergedDir, []string{lowerDir, m.skeleton()}, upper,
		filepath.Join(upperDir, firstWork)); err != nil {
		return err
	}
	for _, dir := range kernelDirs {
		dst := mergedDir + dir
		if err := unix.Mount(dir, dst, "", unix.MS_MOVE, ""); err != nil {
			return &os.PathError{Op: "move", Path: dir, Err: err}
		}
	}
	if err := makeDevices(m.devices); err != nil {
		return err
	}
	if err := bindReadOnly(m.skeleton()+contextDir, mergedDir+contextDir); err != nil {
		return err
	}
	return m.switchRoot(mergedDir)
}

// bindReadOnly mounts the directory src read-only at dst too.
func bindReadOnly(src, dst string) error {
	if err := unix.Mount(src, dst, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: dst, Err: err}
	}
	if err := unix.Mount("", dst, "",
		unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME,
		""); err != nil {
		return &os.PathError{Op: "remount", Path: dst, Err: err}
	}
	return nil
}

// switchRoot moves the mount at dir over the root, which becomes the agent's.
func (m *machine) switchRoot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return &os.PathError{Op: "chdir", Path: dir, Err: err}
	}
	return errors.Join(
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		m.space.Enter(),
	)
}

// enterStack makes layers over the template the root, the lowest first. It returns to the kernel's
// initial root, which contains the template and the scratch disk, and enters a new root over the
// snapshot's root, whose directories for the kernel's file systems it moves along. The layers' own
// mounts stay behind: no path in the new root leads to them.
func (m *machine) enterStack(layers []string, id identity) error {
	var kernel []int
	for _, dir := range kernelDirs {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(fd)
		kernel = append(kernel, fd)
	}
	if err := m.leaveRoot(); err != nil {
		return err
	}
	mount := mountLayers
	if m.gvisor {
		mount = mountedLayers
	}
	lower, context, err := mount(layers)
	if err != nil {
		return err
	}
	upper := filepath.Join(upperDir, secondUpper)
	if err := id.write(upper); err != nil {
		return err
	}
	lower = append(lower, lowerDir)
	if err := resemble(upper, lower); err != nil {
		return err
	}
	lower = append(lower, m.skeleton())
	if err := m.mountOverlay(stackDir, lower, upper, filepath.Join(upperDir, secondWork)); err != nil {
		return err
	}
	m.disks.Upper, m.disks.Work = secondUpper, secondWork
	for i, dir := range kernelDirs {
		if err := unix.MoveMount(kernel[i], "", unix.AT_FDCWD, stackDir+dir,
			unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move", Path: dir, Err: err}
		}
	}
	if len(context) == 1 {
		err = bindReadOnly(context[0], stackDir+contextDir)
	} else {
		err = m.mountOverlay(stackDir+contextDir, context, "", "")
	}
	if err != nil {
		return err
	}
	return m.switchRoot(stackDir)
}

// resemble gives the agent's own directories in an upper directory the attributes of the
// directories that they hide; the highest of lower is first. Otherwise the root would have the
// agent's mode, and each turn would change its time.
func resemble(upper string, lower []string) error {
	for _, name := range []string{"", "etc"} {
		dst := filepath.Join(upper, name)
		for _, dir := range lower {
			src := filepath.Join(dir, name)
			var st unix.Stat_t
			if err := unix.Lstat(src, &st); err == unix.ENOENT {
				continue
			} else if err != nil {
				return &os.PathError{Op: "stat", Path: src, Err: err}
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				break
			}
			if err := copyAttributes(src, dst, &st); err != nil {
				return &os.PathError{Op: "copy attributes", Path: src, Err: err}
			}
			break
		}
	}
	return nil
}

// copyAttributes makes as few system calls as possible: each clone's first call of a kind takes a
// millisecond under emulation.
func copyAttributes(src, dst string, want *unix.Stat_t) error {
	var have unix.Stat_t
	if err := unix.Lstat(dst, &have); err != nil {
		return err
	}
	var err error
	if have.Uid != want.Uid || have.Gid != want.Gid {
		err = unix.Lchown(dst, int(want.Uid), int(want.Gid))
	}
	if have.Mode != want.Mode {
		err = errors.Join(err, unix.Chmod(dst, want.Mode&0o7777))
	}
	err = errors.Join(err, copyXattrs(src, dst))
	if have.Mtim != want.Mtim {
		err = errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, dst,
			[]unix.Timespec{want.Mtim, want.Mtim}, unix.AT_SYMLINK_NOFOLLOW))
	}
	return err
}

func copyXattrs(src, dst string) error {
	n, err := unix.Llistxattr(src, nil)
	if n <= 0 || err != nil {
		if err == unix.ENOTSUP {
			err = nil
		}
		return err
	}
	names, value := make([]byte, n), make([]byte, 64<<10)
	if n, err = unix.Llistxattr(src, names); err != nil {
		return err
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		n, xerr := unix.Lgetxattr(src, name, value)
		if xerr == nil {
			xerr = unix.Lsetxattr(dst, name, value[:n], 0)
		}
		err = errors.Join(err, xerr)
	}
	return err
}

// leaveRoot makes the kernel's initial root the agent's root again.
func (m *machine) leaveRoot() error {
	return errors.Join(unix.Fchdir(m.base), unix.Chroot("."), unix.Chdir("/"))
}

// mountLayers mounts each layer's image and returns the overlay's lower directories, from the
// highest to the lowest.
func mountLayers(layers []string) (lower, context []string, err error) {
	for i := len(layers) - 1; i >= 0; i-- {
		dir := filepath.Join(layerDir, layers[i])
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return nil, nil, &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		// Access to an image that bypasses the overlay gives no additional rights.
		const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
		if err := unix.Mount(devicePath(layers[i]), dir, "erofs", flags, ""); err != nil {
			return nil, nil, &os.PathError{Op: "mount", Path: layers[i], Err: err}
		}
		lower = append(lower, filepath.Join(dir, "fs"))
		context = append(context, filepath.Join(dir, "context"))
	}
	return lower, context, nil
}

// devicePath returns the path of a slot's block device in the kernel's initial root.
func devicePath(serial string) string { return "/dev/" + serial }

// makeDevices creates a device node for each disk with a serial number, named by that number, in
// the kernel's initial root. Its /dev is empty after the kernel's has moved, and independent of the
// guest's changes to its own /dev.
func makeDevices(disks map[string]uint64) error {
	for serial, number := range disks {
		path := devicePath(serial)
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(number)); err != nil &&
			err != unix.EEXIST {
			return &os.PathError{Op: "mknod", Path: path, Err: err}
		}
	}
	return nil
}

// blockDevices returns the numbers of the disks that have a serial number.
func (m *machine) blockDevices() map[string]uint64 {
	found := make(map[string]uint64)
	disks, _ := os.ReadDir("/sys/block")
	for _, d := range disks {
		if !isDisk(d.Name()) {
			continue
		}
		serial := diskSerial(d.Name(), m.names)
		var st unix.Stat_t
		if !notSerial(serial) && unix.Stat("/dev/"+d.Name(), &st) == nil {
			found[serial] = st.Rdev
		}
	}
	return found
}

// showDisk mounts a folder of the scratch disk at dir in the sandbox's root. The sandbox's overlay has no such folder:
// it can be the upper directory of another one.
func (m *machine) showDisk(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	source := filepath.Join(upperDir[1:], shownDir)
	if err := unix.Mkdirat(m.base, source, 0o755); err != nil && err != unix.EEXIST {
		return &os.PathError{Op: "mkdir", Path: source, Err: err}
	}
	tree, err := unix.OpenTree(m.base, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return &os.PathError{Op: "open", Path: source, Err: err}
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	return nil
}

// mountHome mounts the home disk. Only one of its directories is shown: its root contains files of
// the file system itself.
func (m *machine) mountHome(h *wire.SandboxHomeDisk) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := os.MkdirAll(h.Path, 0o755); err != nil {
		return err
	}
	target, err := unix.Open(h.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: h.Path, Err: err}
	}
	defer unix.Close(target)
	if err := m.leaveRoot(); err != nil {
		return err
	}
	if err := unix.Mount(devicePath(h.Serial), homeDir, "ext4",
		unix.MS_NOATIME|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return &os.PathError{Op: "mount", Path: h.Serial, Err: err}
	}
	if err := m.disks.Add(homeDir); err != nil {
		return err
	}
	dir := filepath.Join(homeDir, "home")
	if err := unix.Mkdir(dir, 0o755); err != nil && err != unix.EEXIST {
		return &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", target,
		"", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount", Path: h.Path, Err: err}
	}
	return errors.Join(unix.Fchdir(root), unix.Chroot("."), m.space.Enter())
}
