package gvisor

import (
	"fmt"
	"io"
	"os"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone/substrate"
)

// initPath is the agent's path in the container's root.
const initPath = "/init"

// rootDirs returns the folders of the container's root: mount points for mounts before the agent's
// start, and for the agent's own mounts.
func rootDirs() []string {
	dirs := []string{"/dev", "/home", "/layer", "/lower", "/merged", "/proc", "/run", "/scratch",
		"/skel", "/stack", "/sys", "/tmp", "/warm"}
	for i := range substrate.MaxLayers {
		dirs = append(dirs, slotPath(i))
	}
	return dirs
}

// slotPath returns where the image of layer i is mounted. runsc knows the path: see slotPrefix in
// runsc/overlay.
func slotPath(i int) string { return fmt.Sprintf("/layer/%d", i) }

// writeRoot writes the EROFS image of a container's root to f, which is empty. The same agent gives
// the same bytes.
func writeRoot(f *os.File, agent []byte) error {
	w := erofs.Create(f, erofs.WithBuildTime(0, 0))
	for _, dir := range rootDirs() {
		if err := w.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	file, err := w.Create(initPath)
	if err != nil {
		return err
	}
	if _, err = file.Write(agent); err == nil {
		err = file.Close()
	}
	if err == nil {
		err = w.Chmod(initPath, 0o755)
	}
	if err != nil {
		return err
	}
	return w.Close()
}

// writeEmpty writes the image of a slot without a layer: only a root folder.
func writeEmpty(f io.WriteSeeker) error {
	return erofs.Create(f, erofs.WithBuildTime(0, 0)).Close()
}
