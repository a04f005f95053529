package template

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
)

// lockFits rejects a lock for another spec.
func lockFits(spec *Spec) error {
	if spec.Lock == nil || spec.Lock.Spec == spec.unlocked().Digest() {
		return nil
	}
	return turnstone.Errorf("template.lock", turnstone.KindIntegrity, lockFile,
		"is for another spec: the spec, or a template below it, has changed since").
		WithHint("write it again with turn template build --lock, or remove it")
}

// writeLock builds spec without its lock, writes the result as a lock beside it, and sets spec's
// lock to it. The build counts for the locked spec too.
func (s *Store) writeLock(ctx context.Context, path string, spec *Spec,
	progress func(string)) error {
	free := spec.unlocked()
	t, err := s.ensure(ctx, free, progress)
	if err != nil {
		return err
	}
	failed := func(err error) error {
		return turnstone.NewError("template.lock", turnstone.KindUnavailable, lockFile, err)
	}
	m, err := s.manifest(t.Digest)
	if err != nil {
		return failed(err)
	}
	lock := m.Lock
	if lock == nil {
		ref, err := s.Tree(ctx, t, tree.NewHasher())
		if err != nil {
			return err
		}
		lock = &Lock{Version: lockVersion, Spec: t.Digest, FSHash: ref.Hash, Apt: m.Packages}
	}
	b, err := lock.Encode()
	if err != nil {
		return failed(err)
	}
	if lock, err = parseLock(b); err != nil { // in the form that the next build reads
		return err
	}
	dir := path
	if fi, err := os.Stat(path); err == nil && !fi.IsDir() {
		dir = filepath.Dir(path)
	}
	if err := filestamp.WriteFile(filepath.Join(dir, lockFile), b, 0o644); err != nil {
		return failed(err)
	}
	spec.Lock = lock
	return s.adopt(ctx, t, m, spec)
}

// adopt makes the result of a build without a lock count for spec, which is the same spec with the
// lock of that build.
func (s *Store) adopt(ctx context.Context, t *turnstone.Template, m *manifest, spec *Spec) error {
	digest := spec.Digest()
	lock, err := statedir.Acquire(ctx, s.lockPath(digest), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	if _, err := s.ready(ctx, spec); err == nil {
		return nil
	}
	if err := s.sweep(digest); err != nil {
		return s.failure(spec, err)
	}
	w, err := s.begin(spec)
	if err != nil {
		return s.failure(spec, err)
	}
	defer func() { w.end(err) }()
	fmt.Fprintf(w.log, "is what was built as %s\n", t.Digest)
	now := *m
	if m.Layer != nil {
		layer := *m.Layer
		layer.Spec, now.Layer = digest, &layer
		err = w.publish(&now) // the other template protects its files from garbage collection
	} else {
		to := filepath.Join(w.tmp, "root.erofs")
		if err = os.Link(t.Root, to); err == nil {
			if now.Root, err = filestamp.Of(ctx, to); err == nil {
				err = w.publish(&now)
			}
		}
	}
	if err != nil {
		return s.failure(spec, err)
	}
	return nil
}
