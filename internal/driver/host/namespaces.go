package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A setting is a file of /proc/sys that can keep ordinary users from making user
// namespaces, with the values by which it does and does not.
type setting struct{ file, off, on string }

// settings are Debian's, Ubuntu's, and the kernel's own.
func settings() []setting {
	return []setting{
		{"kernel/unprivileged_userns_clone", "0", "1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "0"},
		{"user/max_user_namespaces", "0", "15000"},
	}
}

func (s setting) name() string { return strings.ReplaceAll(s.file, "/", ".") }

// forbidding returns the settings that keep users from it now.
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

// NamespaceSettings names the settings that keep users from making namespaces now. An
// answer that depends on namespaces holds as long as it stays the same.
func NamespaceSettings() string {
	var names []string
	for _, s := range forbidding() {
		names = append(names, s.name())
	}
	return strings.Join(names, ",")
}

// NoUserNamespaces is the first of these with its value, as "user.max_user_namespaces is 0";
// empty: none forbids it.
func NoUserNamespaces() string {
	for _, s := range forbidding() {
		return s.name() + " is " + s.off
	}
	return ""
}

// WhyNoJail is err, of a start in namespaces, with the usual reason before it: a host that lets
// ordinary users make none.
func WhyNoJail(err error) string {
	if setting := NoUserNamespaces(); setting != "" && os.Geteuid() != 0 {
		return fmt.Sprintf("users may make no user namespaces here (%s): %s", setting, err)
	}
	return err.Error()
}

// AllowUserNamespaces is the command that changes that setting; empty: none forbids it.
func AllowUserNamespaces() string {
	for _, s := range forbidding() {
		return "sudo sysctl -w " + s.name() + "=" + s.on
	}
	return ""
}
