package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/substrate"
)

// nobody is the user of root's Firecracker.
const nobody = 65534

// jailSize bounds the jail's file system in memory. It contains the jailer's copy of Firecracker,
// some devices and two sockets.
const jailSize = "size=64m,nr_inodes=256,mode=755"

// afterLine is the shell program that runs another program after a line on descriptor 3.
const afterLine = `read -r line <&3 || exit 1; exec 3<&-; "$@"; exit $?`

// startJailed runs Firecracker by its jailer. The jail is built in a mount namespace of the
// starting thread and its child processes: a file system in memory, with bind mounts of the
// machine's files. The host's namespace contains none of these mounts, and they disappear when
// Firecracker has ended.
//
// The jailer gives up root, which clears the parent-death signal. So a shell stays above the
// jailer, as the first process of a PID namespace: the shell is killed when this process ends, and
// the kernel then kills the rest of the namespace. The shell waits for a line on descriptor 3,
// which this process writes once that signal is set: without the line, the parent died before.
func (s *Substrate) startJailed(ctx context.Context, m *machine, cpus int, files []placed) error {
	m.owner = nobody
	id := instanceID(m.ID())
	jail := filepath.Join(m.cell.dir, "jail")
	if err := os.Mkdir(jail, 0o700); err != nil {
		return err
	}
	if err := os.Chown(filepath.Join(m.cell.dir, outName), nobody, nobody); err != nil {
		return err
	}
	limits, group := cgroupLimits(cpus, "/sys/fs/cgroup")
	waits, start, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = start.WriteString("\n"); _ = start.Close(); _ = waits.Close() }()
	args := []string{"-c", afterLine, "sh", s.jailer, "--id", id, "--exec-file", s.binary,
		"--uid", strconv.Itoa(nobody), "--gid", strconv.Itoa(nobody), "--chroot-base-dir", jail}
	args = append(append(args, limits...), "--")
	cmd := exec.Command("/bin/sh", append(args, arguments()...)...)
	cmd.Dir, cmd.ExtraFiles = "/", []*os.File{waits}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC}
	if len(limits) > 0 {
		m.cgroup = filepath.Join(group, id)
	}
	// <chroot-base-dir>/<name of exec-file>/<id>/root (docs/jailer.md)
	root := filepath.Join(jail, filepath.Base(s.binary), id, "root")
	return m.spawn(cmd, func() (err error) {
		if err := buildJail(ctx, jail, root, m.cell, files); err != nil {
			return fmt.Errorf("the jail: %w", err)
		}
		m.cell.work, err = os.Open(root)
		return err
	})
}

// buildJail mounts a file system in memory at jail, and Firecracker's files below it at root, in a
// mount namespace of this thread's own.
func buildJail(ctx context.Context, jail, root string, c *cell, files []placed) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("jail", jail, "tmpfs", unix.MS_NOSUID, jailSize); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, outName), 0o755); err != nil {
		return err
	}
	if err := mount(filepath.Join(c.dir, outName), filepath.Join(root, outName), "", unix.MS_BIND,
		""); err != nil {
		return err
	}
	for _, f := range files {
		if err := f.intoJail(ctx, root, c.dir); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// intoJail binds a file to its name in a jail.
func (f placed) intoJail(ctx context.Context, root, spare string) error {
	at := filepath.Join(root, f.name)
	if f.path == "" {
		return noHome(root, at)
	}
	path, err := f.owned(ctx, spare)
	if err != nil {
		return err
	}
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		return err
	}
	if err := mount(path, at, "", unix.MS_BIND, ""); err != nil || f.written {
		return err
	}
	return mount("", at, "",
		unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// owned makes sure that nobody may use the file, and returns its path. A file that the machine
// writes is given to nobody. A shared file is not changed, because other processes check its times:
// if only its owner may read the file, the machine gets a copy.
func (f placed) owned(ctx context.Context, spare string) (string, error) {
	if f.written {
		return f.path, os.Chown(f.path, nobody, nobody)
	}
	st, err := os.Stat(f.path)
	if err != nil || st.Mode().Perm()&0o004 != 0 {
		return f.path, err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid == nobody {
		return f.path, nil
	}
	path := filepath.Join(spare, f.name)
	in, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return "", err
	}
	return path, errors.Join(disk.Clone(ctx, out, in), out.Close())
}

// noHome puts a file in the home disk's place that reads as zeros and accepts at most one page of
// writes: a file in a file system of that size.
func noHome(root, at string) error {
	dir := filepath.Join(root, "none")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size=4k,nr_inodes=8,mode=700"); err != nil {
		return err
	}
	path := filepath.Join(dir, "home")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(path, substrate.SlotSize); err != nil {
		return err
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		return err
	}
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		return err
	}
	return mount(path, at, "", unix.MS_BIND, "")
}

func mount(what, at, kind string, flags uintptr, data string) error {
	if err := unix.Mount(what, at, kind, flags, data); err != nil {
		return &os.PathError{Op: "mount", Path: at, Err: err}
	}
	return nil
}

// cgroupParent is the control group that contains each machine's own group.
const cgroupParent = "turnstone"

// cgroupLimits returns the jailer's arguments for a control group, if the host allows groups below
// dir, and the folder of the machine's future group: in the unified hierarchy (cgroups(7)), or in
// version 1's hierarchy of processes. Firecracker has a thread for each CPU and a few more, and
// starts no processes.
func cgroupLimits(cpus int, dir string) (args []string, parent string) {
	version, hierarchy := "2", dir
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		version, hierarchy = "1", filepath.Join(dir, "pids")
		_, err = os.Stat(filepath.Join(hierarchy, "cgroup.procs"))
	} else if !slices.Contains(strings.Fields(string(b)), "pids") {
		err = errors.ErrUnsupported
	}
	if err != nil || unix.Access(hierarchy, unix.W_OK) != nil {
		return nil, ""
	}
	return []string{"--cgroup-version", version, "--parent-cgroup", cgroupParent, "--cgroup",
			fmt.Sprintf("pids.max=%d", cpus+16)},
		filepath.Join(hierarchy, cgroupParent)
}
