package template

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/template/registry"
)

// manifestVersion changes when existing images can no longer be used.
const manifestVersion = 1

// A manifest is the file that describes an image.
type manifest struct {
	Format int                      `json:"format"`
	Digest turnstone.Digest         `json:"digest"`
	Name   string                   `json:"name,omitempty"`  // its name at that time
	Base   turnstone.Digest         `json:"base,omitempty"`  // of the build below this layer
	Root   filestamp.Stamp          `json:"root,omitzero"`   // of a template with an image
	Layer  *turnstone.TemplateLayer `json:"layer,omitempty"` // of a layered template
	// the build's result, except for parts that are read later
	Lock      *Lock             `json:"lock,omitempty"`
	Packages  map[string]string `json:"packages"`
	Built     time.Time         `json:"built"`
	BuildTime time.Duration     `json:"build_ns"`
}

// load returns spec's template if it is built and intact. The check is a stat, or a read of the
// whole image with full, or if the file was touched or moved. For a layered template it does not
// read the context store.
func (s *Store) load(ctx context.Context, spec *Spec, full bool) (*turnstone.Template, error) {
	m, err := s.manifest(spec.Digest())
	if err != nil {
		return nil, err
	}
	t := &turnstone.Template{Name: spec.Name, Digest: m.Digest, Packages: m.Packages, Env: spec.Env,
		Workdir: spec.Workdir, User: spec.User, Command: spec.Command,
		Machine: spec.Machine, Built: m.Built, BuildTime: turnstone.Millis(m.BuildTime)}
	setVersions(t, m.Lock)
	if len(spec.Wheels) > 0 && t.Pip == nil {
		t.Pip = registry.Versions(spec.Wheels)
	}
	if low := spec.below(); low != nil {
		if m.Layer == nil {
			return nil, fmt.Errorf("%s: is of another kind of template", s.manifestPath(m.Digest))
		}
		base, err := s.load(ctx, low, full)
		if err != nil {
			return nil, err
		}
		putOver(t, base, *m.Layer)
		return t, nil
	}
	root := filepath.Join(s.imageDir(m.Digest), "root.erofs")
	check := m.Root.Check
	if full {
		check = m.Root.Verify
	}
	now, err := check(ctx, root)
	if err != nil {
		return nil, err
	}
	if now != m.Root {
		m.Root = now
		// If this write fails, the next call reads the image again.
		_ = writeJSON(s.manifestPath(m.Digest), m)
	}
	t.Root, t.RootDigest, t.Size = root, now.Digest, now.Size
	return t, nil
}

func (s *Store) manifestPath(d turnstone.Digest) string {
	return filepath.Join(s.imageDir(d), "manifest.json")
}

// manifest reads the manifest of the spec with that digest.
func (s *Store) manifest(digest turnstone.Digest) (*manifest, error) {
	path := s.manifestPath(digest)
	m, err := readManifest(path)
	if err != nil {
		return nil, err
	}
	if m.Format != manifestVersion || m.Digest != digest {
		return nil, fmt.Errorf("%s: is of another template, or another version", path)
	}
	return m, nil
}

func readManifest(path string) (*manifest, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// BuiltLayers returns the layers of all built templates, including those whose spec has changed or
// was removed. Layers with an invalid manifest are built again on demand.
func (s *Store) BuiltLayers() ([]turnstone.TemplateLayer, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []turnstone.TemplateLayer
	for _, e := range entries {
		digest, err := turnstone.ParseDigest("sha256:" + e.Name())
		if err != nil {
			continue
		}
		m, err := s.manifest(digest)
		var failed *fs.PathError
		switch {
		case errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		case err == nil && m.Layer != nil:
			all = append(all, *m.Layer)
		}
	}
	return all, nil
}

// putOver puts the layer t on its base.
func putOver(t, base *turnstone.Template, l turnstone.TemplateLayer) {
	t.Root, t.RootDigest = base.Root, base.RootDigest
	t.Size = base.Size + l.Bytes
	t.Layers = append(slices.Clone(base.Layers), l)
	env := maps.Clone(base.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, t.Env)
	t.Env = env
	t.Workdir, t.User = cmp.Or(t.Workdir, base.Workdir), cmp.Or(t.User, base.User)
	t.Command, t.Machine = t.Command.Or(base.Command), t.Machine.Over(base.Machine)
	for _, v := range []struct {
		to   *map[string]string
		from map[string]string
	}{{&t.Packages, base.Packages}, {&t.Pip, base.Pip}, {&t.Npm, base.Npm}} {
		all := maps.Clone(v.from)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, *v.to)
		*v.to = all
	}
}

// setVersions records the packages that the build got from pip and npm.
func setVersions(t *turnstone.Template, l *Lock) {
	if l == nil {
		return
	}
	t.Pip, t.Npm = map[string]string{}, map[string]string{}
	for _, f := range l.Pip {
		t.Pip[f.Name] = f.Version
	}
	for _, p := range l.Npm {
		t.Npm[p.Name] = p.Version
	}
}
