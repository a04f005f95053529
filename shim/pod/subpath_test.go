package pod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBelow checks which mounts are subPaths of a volume.
func TestBelow(t *testing.T) {
	const mounts = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 254:1 / /var/lib rw - ext4 /dev/vdb rw
31 30 254:1 /kubelet/pods/u/volumes/kubernetes.io~empty-dir/disk/logs/a\040b /subpaths/disk rw - ext4 /dev/vdb rw
32 30 0:50 / /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/memory rw - tmpfs tmpfs rw
33 30 0:50 /logs /subpaths/memory rw - tmpfs tmpfs rw
34 30 254:1 /kubelet/pods/other/volumes/kubernetes.io~empty-dir/disk /subpaths/other rw - ext4 /dev/vdb rw
35 30 254:0 /kubelet/pods/u/volumes/kubernetes.io~empty-dir/disk/logs /subpaths/device rw - ext4 /dev/vda rw
36 30 254:1 /kubelet/pods/u/volumes/kubernetes.io~empty-dir/disk /subpaths/all rw - ext4 /dev/vdb rw
37 30 254:1 /kubelet/pods/u/volumes/kubernetes.io~empty-dir/disk/logs /subpaths/hidden rw - ext4 /dev/vdb rw
38 30 254:1 /kubelet/secrets /subpaths/hidden rw - ext4 /dev/vdb rw
39 30 254:1 /kubelet/pods/u/volumes/kubernetes.io~empty-dir/disk2 /subpaths/disk2 rw - ext4 /dev/vdb rw
`
	const volumes = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/"
	for _, x := range []struct {
		source, folder, want string
		ok                   bool
	}{
		{"/subpaths/disk", "disk", "logs/a b", true},
		{"/subpaths/memory", "memory", "logs", true},
		{"/subpaths/all", "disk", "", true},
		{"/subpaths/disk", "memory", "", false},
		{"/subpaths/other", "disk", "", false},
		{"/subpaths/device", "disk", "", false},
		{"/subpaths/hidden", "disk", "", false},
		{"/subpaths/disk2", "disk", "", false},
		{"/subpaths/none", "disk", "", false},
	} {
		sub, ok := below(strings.NewReader(mounts), x.source, volumes+x.folder)
		if ok != x.ok || ok && sub != x.want {
			t.Errorf("%s below %s: %q, %v", x.source, x.folder, sub, ok)
		}
	}
	if _, ok := below(strings.NewReader("no mounts\n"), "/subpaths/disk", volumes+"disk"); ok {
		t.Error("without mounts")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, ok := Below(filepath.Join(dir, "sub"), dir); ok {
		t.Error("a folder that is not mounted")
	}
}
