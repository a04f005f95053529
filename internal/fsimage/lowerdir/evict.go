package lowerdir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tempPrefix is the prefix of files that are being written.
const tempPrefix = ".new-"

const (
	planAge = 30 * 24 * time.Hour // how long an unused plan is kept
	tempAge = 24 * time.Hour
)

// An old image is a candidate for removal.
type oldImage struct {
	key   string
	used  time.Time
	bytes int64
}

// leastBudget is the minimum budget for images on a small disk.
const leastBudget = 8 << 30

// budget returns the limit for the disk usage of all images in bytes; now is their current usage. A
// single state can have many GiB, so the budget is a quarter of the disk, but the images leave as
// much space free as they use.
func (c *Cache) budget(now int64) int64 {
	if c.opts.Budget > 0 {
		return int64(c.opts.Budget)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.dir, &st); err != nil {
		return leastBudget
	}
	free := int64(st.Bavail) * st.Bsize
	return max(min(leastBudget, free), min(int64(st.Blocks/4)*st.Bsize, (now+free)/2))
}

// evict removes the least recently used images until the rest is within the budget. Images in use
// stay regardless of their size. An image that cannot be removed is left to the next call.
func (c *Cache) evict() {
	entries, err := os.ReadDir(filepath.Join(c.dir, "images"))
	if err != nil {
		return
	}
	var images []oldImage
	total := int64(0)
	for _, e := range entries {
		fi, err := e.Info()
		switch {
		case err != nil:
		case strings.HasPrefix(e.Name(), tempPrefix):
			c.sweep(e.Name(), fi)
		case keyRule.MatchString(e.Name()):
			used := fi.ModTime()
			if side, err := os.Stat(c.sidecarPath(e.Name())); err == nil {
				used = side.ModTime()
			}
			images = append(images, oldImage{e.Name(), used, onDisk(fi)})
			total += onDisk(fi)
		}
	}
	slices.SortFunc(images, func(a, b oldImage) int { return a.used.Compare(b.used) })
	budget := c.budget(total)
	for _, img := range images {
		if total <= budget {
			break
		}
		if c.remove(img.key) {
			total -= img.bytes
		}
	}
	c.forget()
}

// remove removes an image unless it is in use.
func (c *Cache) remove(key string) bool {
	f, err := os.Open(c.imagePath(key))
	if err != nil {
		return false
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !sameFile(f, f.Name()) {
		return false
	}
	_ = os.Remove(c.sidecarPath(key))
	_ = os.Remove(c.lockPath(key))
	return os.Remove(f.Name()) == nil
}

// sweep removes the remains of processes that were killed while writing.
func (c *Cache) sweep(name string, fi os.FileInfo) {
	path := filepath.Join(c.dir, "images", name)
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	locked := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	if locked && time.Since(fi.ModTime()) > time.Minute || time.Since(fi.ModTime()) > tempAge {
		_ = os.Remove(path)
	}
}

// forget removes plans that were unused for a long time.
func (c *Cache) forget() {
	dir := filepath.Join(c.dir, "plans")
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > planAge {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
