package debian

import (
	"strings"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// packageRule is that of Debian Policy 5.6.1, except for names that apt reads as "remove".
var packageRule = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]*[a-z0-9+]$`)

// ValidPackage reports whether name can be the name of a package.
func ValidPackage(name string) bool { return len(name) <= 100 && packageRule.MatchString(name) }

// Installed reads dpkg's database (deb822, such as /var/lib/dpkg/status) and returns the versions
// of the installed packages.
func Installed(status string) map[string]string {
	out := map[string]string{}
	var name, version string
	ok := false
	flush := func() {
		if ok && name != "" && version != "" {
			out[name] = version
		}
		name, version, ok = "", "", false
	}
	for line := range strings.Lines(status) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			flush()
			continue
		}
		key, value, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		value = strings.TrimSpace(value)
		switch key {
		case "Package":
			name = value
		case "Version":
			version = value
		case "Status":
			ok = strings.HasSuffix(value, " installed")
		}
	}
	flush()
	return out
}

// InstalledList parses the output of dpkg-query: name, version and status.
func InstalledList(out []byte) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && strings.HasPrefix(f[2], "ii") && ValidPackage(f[0]) &&
			len(all) < 100_000 {
			all[f[0]] = f[1]
		}
	}
	return all
}

// Pinned adds the locked versions to the packages' names.
func Pinned(names []string, versions map[string]string) []string {
	var out []string
	for _, n := range names {
		if v := versions[n]; v != "" {
			n += "=" + v
		}
		out = append(out, n)
	}
	return out
}
