package template

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// Kept returns the results of all builds, sorted by digest.
func (s *Store) Kept() ([]turnstone.KeptBuild, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []turnstone.KeptBuild
	for _, e := range entries {
		digest, err := turnstone.ParseDigest("sha256:" + e.Name())
		if err != nil {
			continue
		}
		k := turnstone.KeptBuild{Digest: digest, Dir: filepath.Join(s.dir, e.Name())}
		if m, err := readManifest(filepath.Join(k.Dir, "manifest.json")); err == nil {
			k.Name, k.Base, k.Layer, k.Built = m.Name, m.Base, m.Layer, m.Built
		}
		_ = filepath.WalkDir(k.Dir, func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // a removed file uses no space
			}
			if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
				k.Size += fi.Size()
			}
			return nil
		})
		all = append(all, k)
	}
	return all, nil
}

// Image returns the path of the root image with that digest, from any build, if it is intact. A
// missing image is an error of kind KindNotFound.
func (s *Store) Image(ctx context.Context, root turnstone.Digest) (string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range entries {
		if _, err := turnstone.ParseDigest("sha256:" + e.Name()); err != nil {
			continue
		}
		m, err := readManifest(filepath.Join(s.dir, e.Name(), "manifest.json"))
		if err != nil || m.Root.Digest != root {
			continue
		}
		path := filepath.Join(s.dir, e.Name(), "root.erofs")
		if _, err := m.Root.Check(ctx, path); err == nil {
			return path, nil
		}
	}
	return "", turnstone.Errorf("template.image", turnstone.KindNotFound, "image "+root.Short(),
		"does not belong to a template here")
}

// Needed returns the digests of all known templates and of all templates below them, as they are
// now. It does not include the former images of a tag.
func (s *Store) Needed() (map[turnstone.Digest]bool, error) {
	return s.needed(func(name string, spec *Spec) bool { return spec.image && s.superseded(name) })
}

// Dependents returns the names of the known templates that are built, or registered by a user, and
// are based on the template called name; sorted.
func (s *Store) Dependents(ctx context.Context, name string) ([]string, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	var on []string
	for _, other := range names {
		spec, builtin, err := s.lookup(other)
		if err != nil || other == name {
			continue
		}
		for at := spec.base; at != nil; at = at.base {
			if !SameImage(name, at.Name) {
				continue
			}
			if _, err := s.load(ctx, spec, false); err == nil || !builtin {
				on = append(on, other)
			}
			break
		}
	}
	return on, nil
}

// Drop removes the result of one build, with its log. Sandboxes that run from it continue.
func (s *Store) Drop(ctx context.Context, digest turnstone.Digest) error {
	if err := s.makeDirs(); err != nil {
		return err
	}
	lock, err := statedir.Acquire(ctx, s.lockPath(digest), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	for _, path := range []string{s.imageDir(digest), s.tmpDir(digest), s.logPath(digest)} {
		if err := os.RemoveAll(path); err != nil {
			return turnstone.NewError("template.remove", turnstone.KindUnavailable, path, err)
		}
	}
	return nil
}

// PruneLogs removes the logs of builds without a result and without a known template, and the
// remains of killed builds. It returns the number of logs.
func (s *Store) PruneLogs(older time.Duration, dry bool) (int, error) {
	needed, err := s.Needed()
	if err != nil {
		return 0, err
	}
	logs, err := filepath.Glob(filepath.Join(s.dir, "logs", "*.log"))
	if err != nil {
		return 0, err
	}
	n := 0
	for _, log := range logs {
		hex := strings.TrimSuffix(filepath.Base(log), ".log")
		fi, err := os.Stat(log)
		if err != nil || needed[turnstone.Digest("sha256:"+hex)] ||
			exists(filepath.Join(s.dir, hex)) || time.Since(fi.ModTime()) < older {
			continue
		}
		n++
		if !dry {
			if err := os.Remove(log); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return n, err
			}
		}
	}
	if !dry && exists(filepath.Join(s.dir, "tmp")) {
		return n, s.sweep("")
	}
	return n, nil
}

// PackageCache is the folder of files from package registries.
func (s *Store) PackageCache() string { return s.packages }

// Closure returns tops and everything below them, of the builds in kept.
func Closure(kept []turnstone.KeptBuild, tops map[turnstone.Digest]bool) map[turnstone.Digest]bool {
	all := map[turnstone.Digest]bool{}
	for d := range tops {
		for d != "" && !all[d] {
			all[d] = true
			i := slices.IndexFunc(kept, func(k turnstone.KeptBuild) bool { return k.Digest == d })
			if i < 0 {
				break
			}
			d = kept[i].Base
		}
	}
	return all
}
