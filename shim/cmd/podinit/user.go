package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/account"
	"turnstone.dev/turnstone/shim/guest"
)

// addAccount adds the variables of the process's account to its environment, except those that it has.
// open opens files of the container.
func addAccount(p *guest.Process, open account.Opener) error {
	a, err := account.Lookup(open, strconv.FormatUint(uint64(p.UID), 10))
	if err != nil {
		return err
	}
	if p.UID == 0 && a.Name == "" { // an image without accounts
		a.Home = "/root"
	}
	for _, kv := range a.Env() {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(p.Env, func(has string) bool { return strings.HasPrefix(has, name+"=") }) {
			p.Env = append(p.Env, kv)
		}
	}
	return nil
}

// openInRoot opens a file in the calling process's root.
func openInRoot(path string, flags int) (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) }

// ownStreams gives the process's user its terminal or its pipes: it may open them by name, such as
// /dev/stderr. Without it only the opening fails.
func ownStreams(p *guest.Process) {
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && (p.Terminal || st.Mode&unix.S_IFMT == unix.S_IFIFO) {
			_ = unix.Fchown(fd, int(p.UID), -1)
		}
	}
}

// makeDir makes the process's directory in the calling process's root, if it is missing, with those
// above it. own gives it to the process's user; otherwise only what is made in a directory of that user is
// given. Other processes may change what is there meanwhile.
func makeDir(p *guest.Process, own bool) error {
	umask := unix.Umask(0)
	defer unix.Umask(umask)
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open root", err)
	}
	defer func() { _ = unix.Close(at) }()
	names := strings.FieldsFunc(p.Cwd, func(r rune) bool { return r == '/' })
	for i, name := range names {
		next, err := enterDir(at, name, p, own && i == len(names)-1)
		if err != nil {
			return fmt.Errorf("the directory %s: %w", p.Cwd, err)
		}
		_ = unix.Close(at)
		at = next
	}
	return nil
}

// enterDir opens the directory name in the one that is open as at. It makes a missing one, which belongs to
// the process's user if own is set, or if at does.
func enterDir(at int, name string, p *guest.Process, own bool) (int, error) {
	next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if !errors.Is(err, unix.ENOENT) {
		return next, err
	}
	if err := unix.Mkdirat(at, name, 0o755); err != nil {
		return -1, err
	}
	next, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil { // another process has replaced it
		return -1, err
	}
	var above, made unix.Stat_t
	err = errors.Join(unix.Fstat(at, &above), unix.Fstat(next, &made))
	if err == nil && (own || above.Uid == p.UID) && int(made.Uid) == os.Geteuid() {
		err = unix.Fchown(next, int(p.UID), int(p.GID))
	}
	if err != nil {
		_ = unix.Close(next)
		return -1, err
	}
	return next, nil
}
