//go:build unix

package statedir

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"turnstone.dev/turnstone"
)

// maxLinks bounds the symbolic links on the path of a state directory, as the kernel does.
const maxLinks = 40

// checkPrivate rejects a state directory that another user could write or replace, because programs
// in it are run and trusted. It checks all directories on the path, and those that symbolic links
// lead to.
func checkPrivate(dir string) error {
	c := &privacy{uid: os.Geteuid(), group: privateGroup()}
	if err := c.walk(filepath.Clean(dir), new(int)); err != nil {
		return turnstone.NewError("home.open", turnstone.KindInvalid, "state directory "+dir,
			err).
			WithHint("make it private (chmod go-w), or set TURN_HOME to a private directory")
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner := ownerOf(st); owner != c.uid {
		return turnstone.Errorf("home.open", turnstone.KindInvalid, "state directory "+dir,
			"it belongs to %s", nameOf(owner)).
			WithHint("run turn as that user, or set TURN_HOME to a directory of your own")
	}
	return nil
}

// A privacy defines which owners and groups are trusted.
type privacy struct {
	uid   int
	group int // the user's private group; -1: none
}

// walk checks path, which is absolute, and every directory on the way to it.
func (c *privacy) walk(path string, links *int) error {
	if path == "/" {
		return c.directory(path, true)
	}
	parent := filepath.Dir(path)
	if err := c.walk(parent, links); err != nil {
		return err
	}
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !c.own(ownerOf(st)) {
		return fmt.Errorf("%s belongs to %s", path, nameOf(ownerOf(st)))
	}
	if st.Mode()&os.ModeSymlink == 0 {
		return c.directory(path, false)
	}
	if *links++; *links > maxLinks {
		return fmt.Errorf("%s: %w", path, syscall.ELOOP)
	}
	target, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(target) {
		real, err := filepath.EvalSymlinks(parent) // "..": relative to the link's real location
		if err != nil {
			return err
		}
		target = filepath.Join(real, target)
	}
	return c.walk(filepath.Clean(target), links)
}

// directory rejects a directory whose entries other users can replace. In a directory with the
// sticky bit (/tmp) they can replace only their own entries, which are rejected separately.
func (c *privacy) directory(path string, top bool) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if top && !c.own(ownerOf(st)) {
		return fmt.Errorf("%s belongs to %s", path, nameOf(ownerOf(st)))
	}
	sys, _ := st.Sys().(*syscall.Stat_t)
	mode := st.Mode()
	if sys != nil && int(sys.Gid) == c.group {
		mode &^= 0o020
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	}
	if mode.Perm()&0o022 != 0 && mode&os.ModeSticky == 0 {
		return fmt.Errorf("other users can write %s (mode %04o)", path, st.Mode().Perm())
	}
	return nil
}

// own reports whether files of this user are trusted: the user's own files, root's files, and in a
// user namespace the files of unmapped users, such as the host's root.
func (c *privacy) own(uid int) bool {
	return uid == c.uid || uid == 0 || uid == overflowUID && inUserNamespace()
}

// overflowUID stands for all users that a user namespace does not map (user_namespaces(7)).
const overflowUID = 65534

func inUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") != "0 0 4294967295"
}

func ownerOf(st os.FileInfo) int {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(sys.Uid)
	}
	return -1
}

func nameOf(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

// privateGroup returns the user's group if nobody else is in it, as on Debian: a umask of 002 there
// gives the group write access to all files. -1: none.
func privateGroup() int {
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return -1
	}
	b, err := os.ReadFile("/etc/group")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 4 && f[0] == u.Username && f[2] == u.Gid &&
			(f[3] == "" || f[3] == u.Username) {
			if gid, err := strconv.Atoi(f[2]); err == nil {
				return gid
			}
		}
	}
	return -1
}
