package pod

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Below reports whether a folder of the host at source is mounted from below another folder, and
// its path there. So the kubelet mounts a subPath of a volume, whose own folder it does not tell.
func Below(source, folder string) (sub string, ok bool) {
	if st, err := os.Stat(source); err != nil || !st.IsDir() {
		return "", false
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", false
	}
	defer f.Close()
	return below(f, source, folder)
}

// below is Below by the mounts that r has (proc_pid_mountinfo(5)).
func below(r io.Reader, source, folder string) (sub string, ok bool) {
	all, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return "", false
	}
	at, of := new(mountinfo.Info), new(mountinfo.Info)
	for _, m := range all { // a later mount hides earlier ones
		if m.Mountpoint == source {
			at = m
		}
		if _, ok := relative(m.Mountpoint, folder); ok && len(m.Mountpoint) >= len(of.Mountpoint) {
			of = m
		}
	}
	if at.Mountpoint == "" || of.Mountpoint == "" || at.Major != of.Major || at.Minor != of.Minor {
		return "", false
	}
	rest, _ := relative(of.Mountpoint, folder)
	return relative(filepath.Join(of.Root, rest), at.Root)
}

// relative returns the path of name below dir, which may be the same.
func relative(dir, name string) (string, bool) {
	if dir == name {
		return "", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}
