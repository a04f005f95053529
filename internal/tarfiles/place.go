package tarfiles

import (
	"path"
	"path/filepath"
	"strings"
)

// Into returns where the file called name belongs in a sandbox whose commands run in cwd: at dest,
// which is relative to cwd, or in cwd with its own name if dest is empty. A slash at the end of dest
// stays.
func Into(cwd, dest, name string) string {
	if dest == "" {
		return path.Join(cwd, filepath.Base(name))
	}
	slash := strings.HasSuffix(dest, "/")
	if dest = Below(cwd, dest); slash && dest != "/" {
		dest += "/"
	}
	return dest
}

// Below returns p, which is relative to the directory cwd of a sandbox, as a clean absolute path.
func Below(cwd, p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(cwd, p)
}

// CutContents cuts the end "/." off the path of a source, which means what is in a folder, and not the
// folder. "." alone means the same, and stays.
func CutContents(source string) (folder string, contents bool) {
	slashes := filepath.ToSlash(source)
	if source == "" || path.Base(slashes) != "." {
		return source, false
	}
	folder = strings.TrimRight(strings.TrimSuffix(strings.TrimRight(slashes, "/"), "."), "/")
	switch {
	case folder != "":
		return folder, true
	case strings.HasPrefix(slashes, "/"):
		return "/", true
	}
	return ".", true
}
