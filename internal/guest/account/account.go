// Package account finds users in the accounts of a root file system, /etc/passwd and /etc/group, which
// are untrusted.
package account

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// maxAccounts bounds the bytes read of /etc/passwd and /etc/group.
const maxAccounts = 1 << 20

// An Account is a user that a process runs as.
type Account struct {
	UID, GID uint32
	Groups   []uint32
	Name     string // "" for a number without a name
	Home     string
	Shell    string
}

// Env returns the account's environment, as login(1) sets it.
func (a *Account) Env() []string {
	env := []string{"HOME=" + a.Home, "SHELL=" + a.Shell}
	if a.Name != "" {
		env = append(env, "USER="+a.Name, "LOGNAME="+a.Name)
	}
	return env
}

// Credential returns the credential for fork and exec; nil if nothing changes, because a caller
// other than root may not even set its own.
func (a *Account) Credential() *syscall.Credential {
	if os.Geteuid() != 0 && int(a.UID) == os.Geteuid() && int(a.GID) == os.Getegid() {
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
}

// Same reports whether both are the same user; nil is the caller's own.
func (a *Account) Same(b *Account) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.GID == b.GID && slices.Equal(a.Groups, b.Groups)
}

// An Opener opens an absolute name in the root of processes, close-on-exec.
type Opener func(path string, flags int) (fd int, err error)

// Lookup finds NAME, NUMBER, or either with :GROUP, in the accounts of open's root. With a
// group, the process has only this group; otherwise also the groups that list its user. A number
// without an account is its own group.
func Lookup(open Opener, text string) (*Account, error) {
	user, group, hasGroup := strings.Cut(text, ":")
	a, err := findUser(open, user)
	if err != nil {
		return nil, err
	}
	if hasGroup {
		a.GID, err = findGroup(open, group)
		return a, err
	}
	if a.Name != "" {
		eachLine(open, "/etc/group", 4, func(f []string) bool {
			for member := range strings.SplitSeq(f[3], ",") {
				if gid, err := parseID(f[2]); err == nil && member == a.Name && gid != a.GID &&
					len(a.Groups) < 64 {
					a.Groups = append(a.Groups, gid)
				}
			}
			return true
		})
	}
	return a, nil
}

func findUser(open Opener, user string) (*Account, error) {
	var found *Account
	number, numberErr := parseID(user)
	eachLine(open, "/etc/passwd", 7, func(f []string) bool {
		uid, uidErr := parseID(f[2])
		gid, gidErr := parseID(f[3])
		if uidErr != nil || gidErr != nil || f[0] == "" {
			return true
		}
		if f[0] == user || numberErr == nil && uid == number {
			found = &Account{UID: uid, GID: gid, Name: f[0], Home: f[5], Shell: f[6]}
		}
		return found == nil
	})
	switch {
	case found == nil && numberErr != nil:
		return nil, turnstone.Errorf("Process.start", turnstone.KindNotFound,
			"user "+brief.Subject(user),
			"no such user").
			WithHint("see the users in the sandbox's /etc/passwd, or write a number")
	case found == nil:
		found = &Account{UID: number, GID: number}
	}
	if found.Home == "" {
		found.Home = "/"
	}
	if found.Shell == "" {
		found.Shell = "/bin/sh"
	}
	return found, nil
}

func findGroup(open Opener, group string) (uint32, error) {
	gid, err := parseID(group)
	if err == nil {
		return gid, nil
	}
	found := false
	eachLine(open, "/etc/group", 4, func(f []string) bool {
		if f[0] == group && group != "" {
			gid, err = parseID(f[2])
			found = err == nil
		}
		return !found
	})
	if !found {
		return 0, turnstone.Errorf("Process.start", turnstone.KindNotFound,
			"group "+brief.Subject(group),
			"no such group").
			WithHint("see the groups in the sandbox's /etc/group, or write a number")
	}
	return gid, nil
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange // (uid_t)-1 means unchanged
	}
	return uint32(n), err
}

// eachLine calls f with the fields of each line that has at least want of them, until f returns
// false (passwd(5), group(5)). The file is untrusted.
func eachLine(open Opener, path string, want int, f func(fields []string) bool) {
	fd, err := open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return
	}
	b, _ := io.ReadAll(io.LimitReader(file, maxAccounts))
	for line := range strings.SplitSeq(string(b), "\n") {
		if fields := strings.Split(line, ":"); len(fields) >= want && !f(fields) {
			return
		}
	}
}
