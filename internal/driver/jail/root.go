//go:build linux && amd64

package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/subprocess"
)

// mountpoint is where the new root is mounted before it becomes the root: a folder that every Linux
// has, and that no jail shows.
const mountpoint = "/sys"

// A place collects the calls that furnish the new root.
type place struct {
	code *program
	made map[string]bool // existing paths in the jail
}

// root appends the calls that create the new root, with the program at path in it.
func (j Jail) root(code *program, path string, in inherited) error {
	code.call("mount / private", unix.SYS_MOUNT, code.text("none"), code.text("/"), 0,
		unix.MS_REC|unix.MS_PRIVATE, 0)
	code.call("mount a root", unix.SYS_MOUNT, code.text("jail"), code.text(mountpoint),
		code.text("tmpfs"),
		unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, code.text("size=1m,nr_inodes=512,mode=755"))
	p := place{code, map[string]bool{"/": true}}
	for _, at := range append(append([]string{}, j.Show...), path) {
		if err := p.show(at); err != nil {
			return err
		}
	}
	if in.devices >= 0 {
		at := filepath.Dir(j.Devices[0])
		p.folder(at)
		p.attach(at, in.devices)
	} else {
		for _, at := range j.Devices {
			if err := p.device(at); err != nil {
				return err
			}
		}
	}
	if err := p.places(j.Places, in.places); err != nil {
		return err
	}
	if !j.Sealed {
		p.folder(ownFiles)
		p.bind(ownFiles, ownFiles, 0)
	}
	code.call("chdir", unix.SYS_CHDIR, code.text(mountpoint))
	// The old root is mounted over the new root, and unmounted there: pivot_root(2).
	code.call("pivot_root", unix.SYS_PIVOT_ROOT, code.text("."), code.text("."))
	code.call("umount the host", unix.SYS_UMOUNT2, code.text("."), unix.MNT_DETACH)
	dir := filepath.Join("/", j.Dir)
	code.call("chdir "+dir, unix.SYS_CHDIR, code.text(dir))
	code.call("mount / read-only", unix.SYS_MOUNT, code.text("none"), code.text("/"), 0,
		unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, 0)
	code.call("sethostname", unix.SYS_SETHOSTNAME, code.text("jail"), 4)
	return nil
}

// folder creates the folder at and its parents.
func (p *place) folder(at string) {
	if p.made[at] {
		return
	}
	p.folder(filepath.Dir(at))
	p.made[at] = true
	p.code.call("mkdir "+at, unix.SYS_MKDIR, p.code.text(mountpoint+at), 0o755)
}

// file creates an empty file as a mount point.
func (p *place) file(at string) {
	p.folder(filepath.Dir(at))
	p.made[at] = true
	p.code.call("mknod "+at, unix.SYS_MKNOD, p.code.text(mountpoint+at), unix.S_IFREG|0o444, 0)
}

// bind mounts the path from.
func (p *place) bind(from, at string, more uint64) {
	p.code.call("bind "+at, unix.SYS_MOUNT, p.code.text(from), p.code.text(mountpoint+at), 0,
		unix.MS_BIND|more, 0)
}

// attach mounts the descriptor fd, a detached mount, and closes it.
func (p *place) attach(at string, fd int) {
	p.code.call("mount "+at, unix.SYS_MOVE_MOUNT, uint64(fd), p.code.text(""),
		negative(unix.AT_FDCWD), p.code.text(mountpoint+at), unix.MOVE_MOUNT_F_EMPTY_PATH)
	p.code.call("close "+at, unix.SYS_CLOSE, uint64(fd))
}

// restrict disables devices and set-user-ID programs of the mount at a path, and sets the flags in
// more.
func (p *place) restrict(at string, more uint64) {
	p.code.call("restrict "+at, unix.SYS_MOUNT, p.code.text("none"), p.code.text(mountpoint+at), 0,
		unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|more, 0)
}

// show makes the host's path at visible, read-only.
func (p *place) show(at string) error {
	at = filepath.Clean(at)
	if !filepath.IsAbs(at) || within(at, mountpoint) || within(at, "/proc") {
		return fmt.Errorf("%s cannot be shown in a jail", at)
	}
	for dir := at; dir != "/"; dir = filepath.Dir(dir) {
		if p.made[dir] && p.made[dir+"/."] { // below a folder that is shown as a whole
			return nil
		}
	}
	st, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) || p.made[at] {
		return nil
	}
	switch {
	case err != nil:
		return err
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(at)
		if err != nil {
			return err
		}
		p.folder(filepath.Dir(at))
		p.made[at] = true
		p.code.call("symlink "+at, unix.SYS_SYMLINK, p.code.text(target),
			p.code.text(mountpoint+at))
		return nil
	case st.IsDir():
		p.folder(at)
		p.made[at+"/."] = true
	case st.Mode().IsRegular():
		p.file(at)
	default:
		return fmt.Errorf("%s cannot be shown in a jail: it is a %s", at, st.Mode().Type())
	}
	kept, err := locked(at)
	if err != nil {
		return err
	}
	p.bind(at, at, unix.MS_REC)
	p.restrict(at, unix.MS_RDONLY|kept)
	return nil
}

// negative returns a number as a system call's argument.
func negative(n int) uint64 { return uint64(n) }

// device makes a device node visible, for reading and writing.
func (p *place) device(at string) error {
	st, err := os.Lstat(at)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeCharDevice == 0 {
		return fmt.Errorf("%s is not a character device", at)
	}
	p.file(at)
	p.bind(at, at, 0)
	return nil
}

// locked returns the flags of at's mount that a user namespace cannot clear (mount_namespaces(7)).
func locked(at string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: at, Err: err}
	}
	var flags uint64
	for from, to := range map[int64]uint64{unix.ST_NOEXEC: unix.MS_NOEXEC,
		unix.ST_NOATIME:    unix.MS_NOATIME,
		unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME} {
		if int64(st.Flags)&from != 0 {
			flags |= to
		}
	}
	return flags, nil
}

// within reports whether path is dir or below.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// Seal removes ownFiles from the jail of the process pid, because opening a descriptor by that name
// could give other rights than the descriptor has. The caller seals the jail after the program has
// opened its files, and before anything hostile runs in it.
func Seal(ctx context.Context, pid int) error {
	var spaces []*os.File
	defer func() {
		for _, f := range spaces {
			_ = f.Close()
		}
	}()
	for _, name := range []string{"user", "mnt"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			return fmt.Errorf("the jail's namespaces: %w", err)
		}
		spaces = append(spaces, f)
	}
	code := new(program)
	code.call("enter the user namespace", unix.SYS_SETNS, 3, unix.CLONE_NEWUSER)
	code.call("enter the mount namespace", unix.SYS_SETNS, 4, unix.CLONE_NEWNS)
	code.call("umount "+ownFiles, unix.SYS_UMOUNT2, code.text(ownFiles), unix.MNT_DETACH)
	code.exit()
	first, err := executable(code.elf())
	if err != nil {
		return err
	}
	defer first.Close()
	cmd := exec.Command(fmt.Sprintf("%s/%d", ownFiles, 3+len(spaces)))
	cmd.ExtraFiles = append(spaces, first)
	cmd.Env, cmd.Dir = []string{}, "/"
	var said bytes.Buffer
	cmd.Stderr = &said
	err = subprocess.Run(ctx, cmd, subprocess.Options{})
	if failure := FailureOf(said.String(), err); failure != nil {
		return failure
	}
	return err
}
