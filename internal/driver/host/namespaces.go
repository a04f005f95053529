package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A setting is a file of /proc/sys that can forbid user namespaces to ordinary users, with its
// values for forbidding and allowing.
type setting struct{ file, off, on string }

// settings returns Debian's, Ubuntu's, and the kernel's own.
func settings() []setting {
	return []setting{
		{"kernel/unprivileged_userns_clone", "0", "1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "0"},
		{"user/max_user_namespaces", "0", "15000"},
	}
}

func (s setting) name() string { return strings.ReplaceAll(s.file, "/", ".") }

// forbidding returns the settings that currently forbid user namespaces.
func forbidding() []setting {
	var all []setting
	for _, s := range settings() {
		b, err := os.ReadFile(filepath.Join("/proc/sys", s.file))
		if err == nil && strings.TrimSpace(string(b)) == s.off {
			all = append(all, s)
		}
	}
	return all
}

// NamespaceSettings returns what decides whether this process gets namespaces: the settings that
// currently forbid them, and the process's own rights, which differ between the host and a container
// on it. A result that depends on namespaces is valid as long as this text stays the same.
func NamespaceSettings() string {
	var names []string
	for _, s := range forbidding() {
		names = append(names, s.name())
	}
	return strings.Join(append(names, rights()...), ",")
}

// rights returns the lines of /proc/self/status that bound what a child may do, and the map of the
// user namespace (proc(5), user_namespaces(7)).
func rights() (all []string) {
	status, _ := os.ReadFile("/proc/self/status") // none: the text has no rights
	for line := range strings.Lines(string(status)) {
		for _, name := range []string{"CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"} {
			if strings.HasPrefix(line, name) {
				all = append(all, strings.Join(strings.Fields(line), ""))
			}
		}
	}
	users, _ := os.ReadFile("/proc/self/uid_map")
	return append(all, "users:"+strings.Join(strings.Fields(string(users)), " "))
}

// NoUserNamespaces returns the first of these settings with its value, such as
// "user.max_user_namespaces is 0"; empty: no setting forbids user namespaces.
func NoUserNamespaces() string {
	for _, s := range forbidding() {
		return s.name() + " is " + s.off
	}
	return ""
}

// WhyNoJail returns err, the failure of a start in namespaces, with the usual reason prepended: a
// host that forbids user namespaces to ordinary users.
func WhyNoJail(err error) string {
	if setting := NoUserNamespaces(); setting != "" && os.Geteuid() != 0 {
		return fmt.Sprintf("users may not create user namespaces here (%s): %s", setting, err)
	}
	return err.Error()
}

// AllowUserNamespaces returns the command that changes that setting; empty: no setting forbids user
// namespaces.
func AllowUserNamespaces() string {
	for _, s := range forbidding() {
		return "sudo sysctl -w " + s.name() + "=" + s.on
	}
	return ""
}
