package lowerdir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// Prune removes the images for which needed returns false, unless they are in use, and returns
// their number and total size in bytes. An image without a valid sidecar counts as not needed
// because it can be made again. A dry run only counts.
func (c *Cache) Prune(needed func(turnstone.ImageRecipe) bool, dry bool) (images int, freed int64,
	err error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "images"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, unavailable(c.dir, err)
	}
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !keyRule.MatchString(key) {
			continue
		}
		var s sidecar
		b, err := os.ReadFile(c.sidecarPath(key))
		if err == nil && json.Unmarshal(b, &s) == nil && s.Recipe.Newest != "" && needed(s.Recipe) {
			continue
		}
		fi, err := os.Stat(c.imagePath(key))
		if err == nil && (dry && !c.inUse(key) || !dry && c.remove(key)) {
			images++
			freed += onDisk(fi)
		}
	}
	return images, freed, nil
}

// inUse reports whether a sandbox uses the image, or is about to.
func (c *Cache) inUse(key string) bool {
	f, err := os.Open(c.imagePath(key))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
