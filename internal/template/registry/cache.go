package registry

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"errors"

	"turnstone.dev/turnstone"
)

// DefaultLimit is the default size limit of the cache, in bytes.
const DefaultLimit = 4 << 30

// defaultMost is the default limit for the downloads of one build, in bytes.
const defaultMost = 32 << 30

// note names a file without a known digest by its digest, so that it is verified when it is used
// again, and returns its path.
func (s *Server) note(at, key string) string {
	f, err := os.Open(at)
	if err != nil {
		return at
	}
	defer f.Close()
	h := want("").hash()
	if _, err := f.WriteTo(h); err != nil {
		return at
	}
	to := filepath.Join(s.opts.Cache, key+"-"+want("").of(h).key())
	if os.Rename(at, to) != nil {
		return at
	}
	return to
}

// noted returns a file that note has named, if it is intact.
func (s *Server) noted(key string) (path string, d want, ok bool) {
	found, err := filepath.Glob(filepath.Join(s.opts.Cache, key+"-sha256-*"))
	if err != nil || len(found) == 0 {
		return "", "", false
	}
	d = want("sha256:" + found[0][strings.LastIndexByte(found[0], '-')+1:])
	if !whole(found[0], d) {
		_ = os.Remove(found[0])
		return "", "", false
	}
	now := time.Now()
	_ = os.Chtimes(found[0], now, now)
	return found[0], d, true
}

// Trim removes from the cache in dir the files that were not used for longer than older, unless
// that is 0, and then the least recently used files, until the cache uses at most limit bytes.
// Downloads in progress stay. dry only counts.
func Trim(dir string, limit int64, older time.Duration, dry bool) (t turnstone.Trimmed, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, storeError(dir, err)
	}
	var files []fs.FileInfo
	total := int64(0)
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() {
			files = append(files, fi)
			total += fi.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, fi := range files {
		old := older > 0 && time.Since(fi.ModTime()) > older
		if !old && total <= limit || busy(filepath.Join(dir, fi.Name())) {
			continue
		}
		if !dry {
			if err := os.Remove(filepath.Join(dir, fi.Name())); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				return t, storeError(dir, err)
			}
		}
		total -= fi.Size()
		t.Files++
		t.Bytes += fi.Size()
	}
	return t, nil
}

// busy reports whether a download into part is in progress.
func busy(path string) bool {
	if !strings.HasSuffix(path, ".part") {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return true
	}
	return false
}
