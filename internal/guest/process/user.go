package process

import (
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// maxAccounts bounds the bytes read of /etc/passwd and /etc/group.
const maxAccounts = 1 << 20

// An account is a user that a process runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	name     string // "" for a number without a name
	home     string
	shell    string
}

// env returns the account's environment, as login(1) sets it.
func (a *account) env() []string {
	env := []string{"HOME=" + a.home, "SHELL=" + a.shell}
	if a.name != "" {
		env = append(env, "USER="+a.name, "LOGNAME="+a.name)
	}
	return env
}

// credential returns the credential for fork and exec; nil if nothing changes, because an agent
// other than root may not even set its own.
func (a *account) credential() *syscall.Credential {
	if os.Geteuid() != 0 && int(a.uid) == os.Geteuid() && int(a.gid) == os.Getegid() {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
}

// An opener opens an absolute name in the root of processes, close-on-exec.
type opener func(path string, flags int) (fd int, err error)

// Account returns the numbers of a user and its group, as Spec's User names it.
func (t *Table) Account(user string) (uid, gid uint32, err error) {
	a, err := lookupUser(t.openFile, user)
	if err != nil {
		return 0, 0, err
	}
	return a.uid, a.gid, nil
}

// lookupUser finds NAME, NUMBER, or either with :GROUP, in the accounts of open's root. With a
// group, the process has only this group; otherwise also the groups that list its user. A number
// without an account is its own group.
func lookupUser(open opener, text string) (*account, error) {
	user, group, hasGroup := strings.Cut(text, ":")
	a, err := findUser(open, user)
	if err != nil {
		return nil, err
	}
	if hasGroup {
		a.gid, err = findGroup(open, group)
		return a, err
	}
	if a.name != "" {
		eachLine(open, "/etc/group", 4, func(f []string) bool {
			for member := range strings.SplitSeq(f[3], ",") {
				if gid, err := parseID(f[2]); err == nil && member == a.name && gid != a.gid &&
					len(a.groups) < 64 {
					a.groups = append(a.groups, gid)
				}
			}
			return true
		})
	}
	return a, nil
}

func findUser(open opener, user string) (*account, error) {
	var found *account
	number, numberErr := parseID(user)
	eachLine(open, "/etc/passwd", 7, func(f []string) bool {
		uid, uidErr := parseID(f[2])
		gid, gidErr := parseID(f[3])
		if uidErr != nil || gidErr != nil || f[0] == "" {
			return true
		}
		if f[0] == user || numberErr == nil && uid == number {
			found = &account{uid: uid, gid: gid, name: f[0], home: f[5], shell: f[6]}
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
		found = &account{uid: number, gid: number}
	}
	if found.home == "" {
		found.home = "/"
	}
	if found.shell == "" {
		found.shell = "/bin/sh"
	}
	return found, nil
}

func findGroup(open opener, group string) (uint32, error) {
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
func eachLine(open opener, path string, want int, f func(fields []string) bool) {
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
