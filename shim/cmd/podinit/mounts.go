package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

// makeRoot makes the root of the container id the calling process's root, with the container's mounts in it. The
// process is the first in its mount namespace.
func makeRoot(id string, c *guest.Container) error {
	// a kernel without propagation has nothing to make private
	_ = unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")
	root := guest.File(id, "", guest.FileRoot)
	if c.Image != "" {
		if err := overlay(c.Image, guest.WritesDir(id), root); err != nil {
			return err
		}
	} else if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return os.NewSyscallError("mount root", err)
	}
	for _, m := range c.Mounts {
		if err := mount(root, m); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	if err := devices(root); err != nil {
		return err
	}
	for key, value := range c.Sysctl {
		name := filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
		if err := writeParameter(name, value); err != nil {
			return fmt.Errorf("sysctl %s: the sandbox's kernel does not have it: %w", key, err)
		}
	}
	for _, p := range c.ReadOnly {
		if target, err := place(root, p, -1); err == nil {
			_ = unix.Mount(target, target, "", unix.MS_BIND|unix.MS_REC, "")
			_ = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}
	}
	for _, p := range c.Masked {
		mask(root, p)
	}
	return enterRoot(root)
}

// overlay mounts the image at root. Writes go to the folder writes of the sandbox's disk.
func overlay(image, writes, root string) error {
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return &os.PathError{Op: "stat", Path: image, Err: err}
	}
	upper, work := filepath.Join(writes, "upper"), filepath.Join(writes, "work")
	for _, dir := range []string{upper, work, root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// the root of an overlay has the attributes of its upper directory
	err := errors.Join(unix.Chown(upper, int(st.Uid), int(st.Gid)), unix.Chmod(upper, st.Mode&0o7777),
		unix.UtimesNano(upper, []unix.Timespec{st.Mtim, st.Mtim}))
	if err != nil {
		return fmt.Errorf("the root's attributes: %w", err)
	}
	return os.NewSyscallError("mount root", unix.Mount("overlay", root, "overlay", unix.MS_NOATIME,
		"lowerdir="+image+",upperdir="+upper+",workdir="+work))
}

// writeParameter sets a parameter of the kernel. One that has the value already may be read-only.
func writeParameter(name, value string) error {
	if now, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// enterRoot makes root the process's root. Where the kernel cannot exchange the roots, because the
// sandbox's processes run in a changed root, the old root is moved away.
func enterRoot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if unix.PivotRoot(".", ".") == nil {
		if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
			return os.NewSyscallError("umount old root", err)
		}
		return unix.Chdir("/")
	}
	_ = unix.Mount(".", "/", "", unix.MS_MOVE, "")
	if err := unix.Chroot("."); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	return unix.Chdir("/")
}

func mount(root string, m guest.Mount) error {
	kind := 0
	if m.File {
		kind = 1
	}
	target, err := place(root, m.Target, kind)
	if err != nil {
		return err
	}
	data := strings.Join(m.Data, ",")
	if m.Type != "bind" {
		err := unix.Mount(m.Type, target, m.Type, m.Flags, data)
		if err != nil && m.Type == "mqueue" { // a kernel without message queues
			return nil
		}
		return os.NewSyscallError("mount", err)
	}
	source := m.Source
	if m.Sub != "" {
		dir, err := openBelow(m.Source, m.Sub)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		source = "/proc/self/fd/" + strconv.Itoa(dir)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if m.Flags == 0 {
		return nil
	}
	return os.NewSyscallError("remount", unix.Mount("", target, "",
		unix.MS_REMOUNT|unix.MS_BIND|m.Flags, ""))
}

// openBelow opens the folder sub below dir, which is made if it is missing, with the mode and owner of
// dir. Other containers write to dir meanwhile, so no link in it is followed.
func openBelow(dir, sub string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Open(dir, flags, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		_ = unix.Close(at)
		return -1, os.NewSyscallError("fstat", err)
	}
	for name := range strings.SplitSeq(sub, "/") {
		if name == "" || name == "." || name == ".." {
			_ = unix.Close(at)
			return -1, fmt.Errorf("%q is no path below a volume", sub)
		}
		made := unix.Mkdirat(at, name, 0o700) == nil
		next, err := unix.Openat(at, name, flags, 0)
		_ = unix.Close(at)
		if err != nil {
			return -1, &os.PathError{Op: "open subPath", Path: sub, Err: err}
		}
		if at = next; made { // the mode after the owner, which clears bits
			_ = unix.Fchown(at, int(st.Uid), int(st.Gid))
			_ = unix.Fchmod(at, st.Mode&0o7777)
		}
	}
	return at, nil
}

// place returns the path of a place in root, which is made if it is missing: as a folder (kind 0)
// or as a file (kind 1); kind -1 makes nothing. Symbolic links are followed inside of root.
func place(root, name string, kind int) (string, error) {
	at, err := within(root, name, kind >= 0)
	if err != nil {
		return "", err
	}
	_, err = os.Lstat(at)
	switch {
	case err == nil:
		return at, nil
	case kind < 0 || !errors.Is(err, os.ErrNotExist):
		return "", err
	case kind == 0:
		return at, os.MkdirAll(at, 0o755)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY, 0o644)
	if err == nil {
		err = f.Close()
	}
	return at, err
}

// maxLinks is the number of symbolic links that a path may have.
const maxLinks = 40

// within resolves name in root as a process with that root would, and makes missing folders on the
// way. Nobody else changes the root meanwhile: the container has not started.
func within(root, name string, makeDirs bool) (string, error) {
	todo, at, links := strings.Split(name, "/"), "/", 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, part)
		st, err := os.Lstat(filepath.Join(root, next))
		if err == nil && st.Mode()&os.ModeSymlink != 0 {
			if links++; links > maxLinks {
				return "", unix.ELOOP
			}
			to, err := os.Readlink(filepath.Join(root, next))
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(to, "/") {
				at = "/"
			}
			todo = append(strings.Split(to, "/"), todo...)
			continue
		}
		if errors.Is(err, os.ErrNotExist) && makeDirs && len(todo) > 0 {
			err = os.Mkdir(filepath.Join(root, next), 0o755)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		at = next
	}
	return filepath.Join(root, at), nil
}

// mask hides what is at name.
func mask(root, name string) {
	target, err := place(root, name, -1)
	if err != nil {
		return
	}
	if unix.Mount("/dev/null", target, "", unix.MS_BIND, "") != nil {
		_ = unix.Mount("tmpfs", target, "tmpfs", unix.MS_RDONLY, "")
	}
}

// devices puts the devices that every container has into its /dev, if it is a file system of its
// own.
func devices(root string) error {
	dev, err := within(root, "/dev", false) // the image's /dev may be a link
	if err != nil {
		return err
	}
	var d, r unix.Stat_t
	if unix.Lstat(dev, &d) != nil || unix.Lstat(root, &r) != nil || d.Dev == r.Dev {
		return nil
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		at := filepath.Join(dev, name)
		f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o666)
		if err != nil {
			continue
		}
		_ = f.Close()
		if err := unix.Mount("/dev/"+name, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil &&
			!errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
