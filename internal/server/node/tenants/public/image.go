package public

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"turnstone.dev/turnstone/internal/filestamp"
)

// image, index and manifest are the names of the files of a template.Store.
const (
	image    = "root.erofs"
	index    = "root.tree"
	manifest = "manifest.json"
)

// Images links the images of one store's templates into others. Its methods are safe for concurrent use:
// a link beside another would leave stamps that are those of neither. The zero value is ready.
type Images struct{ mu sync.Mutex }

// Link makes the folder to, with the image of a template whose folder is from, unless to exists. A
// template without an image of its own is a layer, whose files are in a store: nothing is made.
//
// Another link changes the image's inode, so that each store which has it would read all of it again. The
// stamps in the manifests of from and of the folders that also returns follow, where they were those of the
// file until the link. An error of that is none of Link: such a store reads the image.
func (i *Images) Link(from, to string, also func() []string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, err := os.Stat(filepath.Join(from, image)); err != nil {
		return nil
	}
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	above := filepath.Dir(to)
	if err := os.MkdirAll(filepath.Join(above, "tmp"), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Join(above, "tmp"), "shared-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Link(filepath.Join(from, index), filepath.Join(tmp, index)); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// a copy: each store writes its own stamps there
	b, err := os.ReadFile(filepath.Join(from, manifest))
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, manifest), b, 0o644)
	}
	if err != nil {
		return err
	}
	moved, err := filestamp.Link(filepath.Join(from, image), filepath.Join(tmp, image))
	if err != nil {
		return err
	}
	for _, dir := range append([]string{tmp, from}, also()...) {
		_ = follow(filepath.Join(dir, manifest), moved)
	}
	if err := os.Rename(tmp, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// follow replaces the stamp in the manifest at path if moved does. The rest stays as it is.
func follow(path string, moved filestamp.Linked) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	var root filestamp.Stamp
	if err := json.Unmarshal(all["root"], &root); err != nil {
		return err
	}
	now := moved.Stamp(root)
	if now == root {
		return nil
	}
	if all["root"], err = json.Marshal(now); err != nil {
		return err
	}
	if b, err = json.MarshalIndent(all, "", "  "); err != nil {
		return err
	}
	return filestamp.Replace(path, append(b, '\n'), 0o644)
}
