package debian

import "strings"

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
