package oci

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
)

// evict removes what was downloaded for other images, what was used last first to stay,
// down to Options.MaxKept, and no more than a quarter of what the disk has free.
func (c *Client) evict() {
	most := max(c.opts.MaxKept, 0)
	var st unix.Statfs_t
	if err := unix.Statfs(c.opts.Dir, &st); err == nil {
		most = min(most, int64(st.Bavail)*st.Bsize/4)
	}
	_, _ = c.Prune(most, time.Time{}, false)
}

// Prune removes downloads that are kept, those that were not used for the longest first:
// what was not used since the time before, and of the rest what goes beyond most bytes.
// It returns how many bytes that were. Pulls that are going on are not disturbed. With dry
// it only tells.
func (c *Client) Prune(most int64, before time.Time, dry bool) (freed int64, err error) {
	for _, sub := range []string{"blobs", "partial"} {
		entries, e := os.ReadDir(c.path(sub))
		if e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		var infos []os.FileInfo
		for _, entry := range entries {
			if info, e := entry.Info(); e == nil {
				infos = append(infos, info)
			}
		}
		slices.SortFunc(infos, func(a, b os.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
		left := most
		for _, info := range infos {
			if info.Size() <= left && !info.ModTime().Before(before) {
				left -= info.Size()
				continue
			}
			if dry {
				freed += info.Size()
				continue
			}
			n, e := c.drop(sub, info)
			freed += n
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		err = &turnstone.Error{Op: "oci.prune", Kind: turnstone.Unavailable, Subject: c.opts.Dir, Err: err}
	}
	return freed, err
}

// drop removes one download, unless it is going on.
func (c *Client) drop(sub string, info os.FileInfo) (int64, error) {
	if sub == "partial" {
		path := c.path("locks", info.Name()+".lock")
		lock, err := home.TryAcquire(path)
		if err != nil || lock == nil {
			return 0, err
		}
		defer lock.Release()
		defer os.Remove(path)
	}
	if err := removeIfThere(c.path(sub, info.Name())); err != nil {
		return 0, fmt.Errorf("download %s: %w", info.Name(), err)
	}
	return info.Size(), nil
}
