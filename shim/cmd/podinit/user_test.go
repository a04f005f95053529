package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

// TestAddAccount checks that a process has the variables of its account, unless it has its own.
func TestAddAccount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(file, []byte("root:x:0:0::/r:/bin/ash\ndev:x:12:34::/home/dev:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		accounts string
		uid      uint32
		env      []string
		want     string // sorted
	}{
		{file, 0, nil, "HOME=/r LOGNAME=root SHELL=/bin/ash USER=root"},
		{file, 12, nil, "HOME=/home/dev LOGNAME=dev SHELL=/bin/sh USER=dev"},
		{file, 12, []string{"HOME=/set", "USER="}, "HOME=/set LOGNAME=dev SHELL=/bin/sh USER="},
		{file, 34, []string{"HOMES=1"}, "HOME=/ HOMES=1 SHELL=/bin/sh"},
		{"/nothing", 0, nil, "HOME=/root SHELL=/bin/sh"},
		{"/nothing", 12, nil, "HOME=/ SHELL=/bin/sh"},
	} {
		p := guest.Process{UID: x.uid, Env: x.env}
		if err := addAccount(&p, func(path string, flags int) (int, error) {
			if path != "/etc/passwd" {
				return -1, unix.ENOENT
			}
			return openInRoot(x.accounts, flags)
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(p.Env)
		if got := strings.Join(p.Env, " "); got != x.want {
			t.Errorf("%d with %q: %s, want %s", x.uid, x.env, got, x.want)
		}
	}
}

// TestMakeDir checks whose a missing directory is, and that no link that another process plants there
// gives anything away.
func TestMakeDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	const uid, gid = 1234, 33
	dir := t.TempDir()
	for name, owner := range map[string]int{"roots": 0, "users": uid} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, name), owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"users/out": "../roots", "users/gone": "../roots/no", "users/file": "/dev/null"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		name string
		own  bool
		want string // the owners of what is made; empty: an error
	}{
		{"roots/a/b/c", true, "roots/a=0:0 roots/a/b=0:0 roots/a/b/c=1234:33"},
		{"roots/d/e", false, "roots/d=0:0 roots/d/e=0:0"},
		{"users/f/g", false, "users/f=1234:33 users/f/g=1234:33"},
		{"users/out/h", false, "roots/h=0:0"},
		{"users/out/../i//./j/", false, "i=0:0 i/j=0:0"},
		{"roots", true, "roots=0:0"},
		{"users/gone", true, ""},
		{"users/file/x", false, ""},
	} {
		err := makeDir(&guest.Process{Cwd: dir + "/" + x.name, UID: uid, GID: gid}, x.own)
		if (err == nil) != (x.want != "") {
			t.Errorf("%s: %v", x.name, err)
		}
		for want := range strings.FieldsSeq(x.want) {
			name, _, _ := strings.Cut(want, "=")
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
				t.Errorf("%s: %v", x.name, err)
			} else if got := fmt.Sprintf("%s=%d:%d", name, st.Uid, st.Gid); got != want {
				t.Errorf("%s: %s, want %s", x.name, got, want)
			}
			if st.Mode&0o777 != 0o755 {
				t.Errorf("%s: mode %o", name, st.Mode)
			}
		}
	}
}
