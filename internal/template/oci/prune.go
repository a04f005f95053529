package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// evict removes downloads for other images, the least recently used first, down to Options.MaxKept
// and to a quarter of the disk's free space.
func (c *Client) evict() {
	most := max(c.opts.MaxKept, 0)
	var st unix.Statfs_t
	if err := unix.Statfs(c.opts.Dir, &st); err == nil {
		most = min(most, int64(st.Bavail)*st.Bsize/4)
	}
	_, _ = c.Prune(most, time.Time{}, false)
}

// Prune removes cached downloads, the least recently used first: those that were not used since the
// time before, and then as many as exceed most bytes. It returns the number of bytes removed. It
// does not disturb pulls in progress. With dry it removes nothing. Downloads of anonymous clients
// count too, whether or not c is anonymous.
func (c *Client) Prune(most int64, before time.Time, dry bool) (freed int64, err error) {
	for _, sub := range []string{"blobs", "partial"} {
		all, e := c.downloads(sub)
		err = errors.Join(err, e)
		slices.SortFunc(all, func(a, b download) int { return b.ModTime().Compare(a.ModTime()) })
		left := most
		for _, d := range all {
			if d.Size() <= left && !d.ModTime().Before(before) {
				left -= d.Size()
				continue
			}
			if dry {
				freed += d.Size()
				continue
			}
			n, e := d.drop(sub)
			freed += n
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		err = turnstone.NewError("oci.prune", turnstone.KindUnavailable, c.opts.Dir, err)
	}
	return freed, err
}

// A download is a file in the folder sub of dir.
type download struct {
	dir string
	os.FileInfo
}

// downloads returns all downloads in the folder sub, of anonymous and other clients.
func (c *Client) downloads(sub string) (all []download, err error) {
	for _, dir := range []string{c.opts.Dir, filepath.Join(c.opts.Dir, anonymousDir)} {
		entries, e := os.ReadDir(filepath.Join(dir, sub))
		if e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		for _, entry := range entries {
			if info, e := entry.Info(); e == nil {
				all = append(all, download{dir, info})
			}
		}
	}
	return all, err
}

// drop removes a download, unless it is in progress.
func (d download) drop(sub string) (int64, error) {
	if sub == "partial" {
		path := filepath.Join(d.dir, "locks", d.Name()+".lock")
		lock, err := statedir.TryAcquire(path)
		if err != nil || lock == nil {
			return 0, err
		}
		defer lock.Release()
		defer os.Remove(path)
	}
	if err := removeIfThere(filepath.Join(d.dir, sub, d.Name())); err != nil {
		return 0, fmt.Errorf("download %s: %w", d.Name(), err)
	}
	return d.Size(), nil
}
