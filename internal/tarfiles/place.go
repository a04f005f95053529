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
