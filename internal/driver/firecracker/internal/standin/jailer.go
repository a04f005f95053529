package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jail does the same as Firecracker's jailer, in the same order (docs/jailer.md and src/jailer in
// its repository): it copies Firecracker into the jail, makes the jail its root in a new mount
// namespace, creates the devices, gives up its rights, and becomes Firecracker.
func jail(args []string) error {
	// A mount namespace belongs to a thread: on another thread, "/" would be the host's.
	runtime.LockOSThread()
	opt := map[string]string{"--cgroup-version": "1"}
	var extra []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "--version":
			fmt.Printf("Jailer v%s\n\n", version)
			return nil
		case "--":
			extra = args[i+1:]
			i = len(args)
		case "--id", "--exec-file", "--uid", "--gid", "--chroot-base-dir", "--cgroup-version",
			"--cgroup", "--parent-cgroup", "--resource-limit":
			if i+1 == len(args) {
				return says("The argument '%s' requires a value, but none was supplied.", args[i])
			}
			opt[args[i]] = args[i+1]
			i++
		default:
			return says("Found argument '%s' which wasn't expected, or isn't valid in the context.",
				args[i])
		}
	}
	for _, name := range []string{"--id", "--exec-file", "--uid", "--gid"} {
		if opt[name] == "" {
			return says("Argument '%s' required, but not found.", name)
		}
	}
	if !validID(opt["--id"]) {
		return fmt.Errorf("invalid instance ID: %q", opt["--id"])
	}
	uid, err1 := strconv.Atoi(opt["--uid"])
	gid, err2 := strconv.Atoi(opt["--gid"])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	note(map[string]any{"jailer": args, "pid": os.Getpid()})
	name := filepath.Base(opt["--exec-file"])
	root := filepath.Join(cmp.Or(opt["--chroot-base-dir"], "/srv/jailer"), name,
		opt["--id"], "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := copyProgram(opt["--exec-file"], filepath.Join(root, name), uid, gid); err != nil {
		return err
	}
	inside, err := os.Stat(root)
	if err != nil {
		return err
	}
	if err := enter(root); err != nil {
		return err
	}
	if now, err := os.Stat("/"); err != nil || !os.SameFile(inside, now) {
		return fmt.Errorf("the jail was not entered: %v", err)
	}
	for _, dir := range []string{"/", "/dev", "/dev/net", "/run"} {
		if err := inTurn(
			func() error { return os.MkdirAll(dir, 0o700) },
			func() error { return os.Chmod(dir, 0o700) },
			func() error { return os.Chown(dir, uid, gid) },
		); err != nil {
			return err
		}
	}
	if err := inTurn(
		func() error {
			return unix.Mknod("/dev/kvm", unix.S_IFCHR|0o600,
				int(unix.Mkdev(10, 232)))
		},
		func() error { return os.Chown("/dev/kvm", uid, gid) },
		func() error {
			return os.WriteFile("/"+name+".pid", []byte(strconv.Itoa(os.Getpid())),
				0o600)
		},
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(gid) },
		func() error { return syscall.Setuid(uid) },
	); err != nil {
		return fmt.Errorf("in the jail: %w", err)
	}
	argv := append([]string{"/" + name, "--id", opt["--id"], "--start-time-us", "1",
		"--start-time-cpu-us", "1", "--parent-cpu-time-us", "1"}, extra...)
	return syscall.Exec("/"+name, argv, environment())
}

// environment keeps the test's settings; the real jailer clears the whole environment.
func environment() []string {
	var kept []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "STANDIN") {
			kept = append(kept, e)
		}
	}
	return kept
}

func copyProgram(from, to string, uid, gid int) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chown(uid, gid), out.Close())
}

// enter does the same as the jailer's chroot.rs.
func enter(root string) error {
	return inTurn(
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "") },
		func() error { return unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Chdir(root) },
		func() error { return unix.Mkdir("old_root", 0o600) },
		func() error { return unix.PivotRoot(".", "old_root") },
		func() error { return unix.Chdir("/") },
		func() error { return unix.Unmount("old_root", unix.MNT_DETACH) },
		func() error { return unix.Rmdir("old_root") },
	)
}

// inTurn runs steps in sequence, and stops after a failure.
func inTurn(steps ...func() error) error {
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}
