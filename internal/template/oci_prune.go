package template

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci"
)

// superseded reports whether name is a former image of a tag.
func (s *Store) superseded(name string) bool {
	ref, ok := s.imageReference(name)
	if !ok || ref.Digest() == "" || !ref.Tagged() {
		return false
	}
	var rec ociRef
	err := readKept(s.refPath(ref.WithDigest("").String()), &rec)
	return err == nil && rec.Digest != ref.Digest()
}

// PruneImages removes downloaded layers of images that were not used for longer than older, and
// forgets superseded images that are not built. It returns the number of bytes removed. With dry it
// removes nothing.
func (s *Store) PruneImages(older time.Duration, dry bool) (freed int64, err error) {
	failed := func(err error) (int64, error) {
		return freed, turnstone.NewError("template.prune", turnstone.KindUnavailable, s.ociPath(),
			err)
	}
	used, err := s.forgetSuperseded(dry)
	if err != nil {
		return failed(err)
	}
	images, err := filepath.Glob(s.ociPath("images", "*.json"))
	if err != nil {
		return failed(err)
	}
	for _, path := range images {
		fi, err := os.Stat(path)
		if err != nil || used[path] || time.Since(fi.ModTime()) < older {
			continue
		}
		freed += fi.Size()
		if dry {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(err)
		}
	}
	n, err := s.ociClient(nil).Prune(oci.MaxKept, time.Now().Add(-older), dry)
	freed += n
	if err != nil {
		return failed(err)
	}
	return freed, nil
}

// forgetSuperseded removes references that are superseded and not built, and returns the files of
// the other references' images.
func (s *Store) forgetSuperseded(dry bool) (used map[string]bool, err error) {
	entries, err := os.ReadDir(s.ociPath("refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	used = map[string]bool{}
	for _, e := range entries {
		path := s.ociPath("refs", e.Name())
		var rec ociRef
		if readKept(path, &rec) != nil {
			continue // recorded again on demand
		}
		ref, err := oci.ParseReference(rec.Reference)
		if err != nil {
			continue
		}
		spec, err := s.pulledSpec(ref)
		if err != nil || !s.superseded(rec.Reference) || exists(s.imageDir(spec.Digest())) {
			used[s.imagePath(ref.Repository(), rec.Manifest)] = true
			continue
		}
		if dry {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return used, nil
}
