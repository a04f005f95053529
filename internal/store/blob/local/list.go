package local

import (
	"context"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/store/blob"
)

// List implements blob.Store. Concurrently added or removed blobs may be missing.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		dir := ""
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			dir = prefix[:i]
			// An invalid prefix has no blobs.
			if blob.CheckName("blob.list", dir) != nil {
				return
			}
		}
		s.walk(ctx, dir, prefix, yield)
	}
}

// walk yields the blobs below dir that begin with prefix; false means stop.
func (s *Store) walk(ctx context.Context, dir, prefix string,
	yield func(blob.Info, error) bool) bool {
	const op = "blob.list"
	fail := func(err error) bool {
		yield(blob.Info{}, blob.Error(op, dir, err))
		return false
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	entries, err := s.readDir(dir)
	if err != nil {
		if missing(err) {
			return true
		}
		return fail(err)
	}
	for _, e := range entries {
		name := join(dir, e.Name())
		if blob.CheckName(op, name) != nil {
			continue // .tmp, and other files that are not blobs
		}
		if e.IsDir() {
			if sub := name + "/"; strings.HasPrefix(sub, prefix) || strings.HasPrefix(prefix, sub) {
				if !s.walk(ctx, name, prefix, yield) {
					return false
				}
			}
			continue
		}
		if !e.Type().IsRegular() || !strings.HasPrefix(name, prefix) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			if missing(err) {
				continue // removed meanwhile
			}
			return fail(err)
		}
		if !yield(blob.Info{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil) {
			return false
		}
	}
	return true
}

// readDir returns dir's entries in the order of the blob names that they are or contain: a folder
// sorts with its trailing slash.
func (s *Store) readDir(dir string) ([]os.DirEntry, error) {
	if dir == "" {
		dir = "."
	}
	d, err := s.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	key := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(key(a), key(b)) })
	return entries, nil
}
