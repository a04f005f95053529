package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/suggest"
	"turnstone.dev/turnstone/internal/template/builtin"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/internal/template/oci"
	"turnstone.dev/turnstone/internal/template/registry"
)

// A Store keeps templates in one folder:
//
//	<hex>/root.erofs     the image of the spec with that digest
//	<hex>/manifest.json  the image's description; written last
//	<hex>/root.tree      the image's tree, and the positions of contents; created on first use
//	specs/<name>.json    the specs that users registered, also under name:tag
//	<hex>/manifest.json  alone: of a template whose files are a tree in the context store
//	logs/<hex>.log       the output of the last build of that spec, also of a failed build
//	locks/<hex>.lock     held while an image is built or removed
//	tmp/<hex>            the build in progress
//
// Its methods are safe for concurrent use, also by several processes.
type Store struct {
	dir       string
	builtin   fs.FS
	build     builder
	layers    LayerBuilder // nil: layered templates cannot be built
	anonymous bool         // registries are used without credentials
	packages  string       // folder of files from package registries
	registry  func(o registry.Options) registry.Options
	sources   Sources
	events    func(turnstone.BuildEvent) // may be nil
}

// Sources are the addresses of packages. The zero value is Debian's archive, PyPI and npm's
// registry.
type Sources struct {
	Debian, DebianSecurity string // addresses of the archive and of its security fixes
	Pip, Npm               string // addresses of the index and of the registry
}

// Mirrors returns the addresses of Debian's packages.
func (s Sources) Mirrors() debian.Mirrors {
	return debian.Mirrors{Main: s.Debian, Security: s.DebianSecurity}
}

// NewStore returns the store in dir, which need not exist yet. It has no builder of layers: a
// layered template that is not built is an error of kind Unavailable at once, before anything below
// it is built.
func NewStore(dir string) *Store {
	return &Store{dir: dir, builtin: builtin.FS, build: buildImage,
		packages: filepath.Join(filepath.Dir(dir), "cache", "packages"),
		registry: func(o registry.Options) registry.Options { return o }}
}

// From returns a store whose builds take packages from sources.
func (s *Store) From(sources Sources) *Store {
	with := *s
	with.sources = sources
	return &with
}

// WithLayers returns a store that also builds layered templates, with b.
func (s *Store) WithLayers(b LayerBuilder) *Store {
	with := *s
	with.layers = b
	return &with
}

// An Entry is a known template, built or not.
type Entry struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	Digest      turnstone.Digest `json:"digest"`
	// part of this program; else registered by the user
	BuiltIn bool      `json:"built_in"`
	Ready   bool      `json:"ready"` // its image is built
	Size    int64     `json:"size,omitempty"`
	Built   time.Time `json:"built,omitzero"`
	Base    string    `json:"base,omitempty"`
	// the reason why it cannot be used, such as a missing base
	Problem string `json:"problem,omitempty"`
}

// Details are the result of Show.
type Details struct {
	Entry
	Spec     *Spec               `json:"spec"`
	Template *turnstone.Template `json:"template,omitempty"` // nil if it is not built
	Log      string              `json:"log,omitempty"`      // path of the last build's log, if any
	Pulled   *oci.Origin         `json:"pulled,omitempty"`   // of a template from a registry
}

// Names returns the names of all known templates, sorted.
func (s *Store) Names() ([]string, error) {
	builtin, err := fs.Glob(s.builtin, "*/"+specFile)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range builtin {
		names = append(names, strings.TrimSuffix(p, "/"+specFile))
	}
	own, err := filepath.Glob(filepath.Join(s.dir, "specs", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, p := range own {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".json"))
	}
	pulled, err := s.pulledNames()
	if err != nil {
		return nil, err
	}
	names = append(names, pulled...)
	sort.Strings(names)
	return slices.Compact(names), nil
}

// Spec returns the spec called name: a built-in spec, otherwise the user's. An unknown name is an
// error of kind KindNotFound that lists the known names.
func (s *Store) Spec(name string) (*Spec, error) {
	spec, _, err := s.lookup(name)
	return spec, err
}

func (s *Store) lookup(name string) (spec *Spec, builtin bool, err error) {
	return s.find(name, nil)
}

// find is lookup for callers that come from the templates above.
func (s *Store) find(name string, above []string) (spec *Spec, builtin bool, err error) {
	spec, builtin, err = s.written(name)
	if err != nil {
		return spec, builtin, err
	}
	return spec, builtin, s.resolve(spec, above...)
}

// written returns the spec called name as written, without values of its base.
func (s *Store) written(name string) (spec *Spec, builtin bool, err error) {
	if nameRule.MatchString(name) || s.tagged(name) {
		b, err := fs.ReadFile(s.builtin, name+"/"+specFile)
		if err == nil {
			dir, err := fs.Sub(s.builtin, name)
			if err != nil {
				return nil, true, err
			}
			spec, err := Parse(name, b, dir)
			return spec, true, err
		}
		spec, err := s.registered(name)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return spec, false, err
		}
	}
	if ref, ok := s.imageReference(name); ok {
		spec, err := s.pulledSpec(ref)
		return spec, false, err
	}
	if strings.ContainsAny(name, ":@") {
		_, err := oci.ParseReference(name)
		return nil, false, err
	}
	names, err := s.Names()
	if err != nil {
		return nil, false, err
	}
	hint := "use one of " + strings.Join(names, ", ")
	if near, edits := suggest.Nearest(name, names); near != "" && edits <= max(1, len(near)/2) {
		hint = fmt.Sprintf("did you mean %s? %s", near, hint)
	}
	return nil, false, turnstone.Errorf("template.find", turnstone.KindNotFound,
		fmt.Sprintf("template %q", name),
		"unknown").WithHint(hint + ", or build one from a spec with turn template build")
}

// registered reads a spec that a user registered.
func (s *Store) registered(name string) (*Spec, error) {
	path := s.specPath(name)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var spec Spec
	if err := json.Unmarshal(b, &spec); err != nil || spec.Name != name {
		return nil, turnstone.Errorf("template.find", turnstone.KindIntegrity, path,
			"is damaged: %w", errors.Join(err, errors.New("want the spec of "+name))).
			WithHint("register the spec again with turn template build, or remove the file")
	}
	return &spec, nil
}

// List returns all known templates, sorted by name.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(names))
	for _, name := range names {
		spec, builtin, err := s.lookup(name)
		if err != nil && spec == nil {
			return nil, err
		}
		e := Entry{Name: name, Description: spec.Description, BuiltIn: builtin, Base: spec.Base}
		if err != nil {
			e.Problem = err.Error()
		} else {
			e = s.entry(ctx, spec, builtin)
			e.Name = name // an image may be known by its tag
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// needed returns the digests of all known templates except those that without selects, and of all
// templates below them.
func (s *Store) needed(without func(name string,
	spec *Spec) bool) (map[turnstone.Digest]bool, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	needed := map[turnstone.Digest]bool{}
	for _, name := range names {
		spec, _, err := s.lookup(name)
		if err != nil && spec == nil {
			return nil, err
		}
		if err != nil || without(name, spec) {
			continue // without its base there is no image either
		}
		for _, d := range spec.digests() {
			needed[d] = true
		}
	}
	return needed, nil
}

func (s *Store) entry(ctx context.Context, spec *Spec, builtin bool) Entry {
	e := Entry{Name: spec.Name, Description: spec.Description, Digest: spec.Digest(),
		BuiltIn: builtin, Base: spec.Base}
	if t, err := s.load(ctx, spec, false); err == nil {
		e.Ready, e.Size, e.Built = true, t.Size, t.Built
	}
	return e
}

// Show returns all details of one template, and builds nothing.
func (s *Store) Show(ctx context.Context, name string) (*Details, error) {
	spec, builtin, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	d := &Details{Entry: s.entry(ctx, spec, builtin), Spec: spec, Pulled: spec.origin}
	if d.Ready {
		if d.Template, err = s.load(ctx, spec, false); err != nil {
			return nil, err
		}
	}
	if log := s.logPath(spec.Digest()); exists(log) {
		d.Log = log
	}
	if spec.Packages == nil { // for example in a spec with only pip: the JSON has a list even so
		shown := *spec
		shown.Packages = []string{}
		d.Spec = &shown
	}
	return d, nil
}

// Remove deletes a template's image and, if a user registered it, its spec. Sandboxes that run from
// the image continue. An image that another name shares stays.
func (s *Store) Remove(ctx context.Context, name string) error {
	spec, builtin, err := s.lookup(name)
	if spec == nil {
		return err
	}
	failed := func(err error) error {
		return turnstone.NewError("template.remove", turnstone.KindUnavailable, name, err)
	}
	if _, ok := s.imageReference(name); ok {
		if err := s.forgetPulled(name); err != nil {
			return failed(err)
		}
	} else if !builtin {
		if err := os.Remove(s.specPath(name)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return failed(err)
		}
	}
	if err != nil {
		return nil // its base is missing: the image cannot be found through it
	}
	digest := spec.Digest()
	if builtin && !exists(s.imageDir(digest)) {
		return turnstone.Errorf("template.remove", turnstone.KindNotFound, name,
			"is built in, and its image is not built: there is nothing to remove")
	}
	shared, needed, err := s.sharing(name)
	if err != nil {
		return err
	}
	gone := []turnstone.Digest{digest, spec.unlocked().Digest()}
	for low := spec.below(); low != nil && !spec.onTemplate(); low = low.below() {
		if !needed[low.Digest()] { // otherwise another template is, or would be, based on it
			gone = append(gone, low.Digest())
		}
	}
	for _, d := range gone {
		if shared[d] {
			continue
		}
		if err := s.Drop(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// sharing returns the digests of the known templates except the one called without, and of all
// templates below them.
func (s *Store) sharing(without string) (own, all map[turnstone.Digest]bool, err error) {
	if all, err = s.needed(func(name string, _ *Spec) bool { return name == without }); err != nil {
		return nil, nil, err
	}
	names, err := s.Names()
	if err != nil {
		return nil, nil, err
	}
	own = map[turnstone.Digest]bool{}
	for _, name := range names {
		if spec, _, err := s.lookup(name); err == nil && name != without {
			own[spec.Digest()] = true
		}
	}
	return own, all, nil
}

// Verify reads a built template's whole image and compares it with its digest. A damaged image is
// an error of kind Integrity, a missing image KindNotFound.
func (s *Store) Verify(ctx context.Context, name string) error {
	spec, err := s.Spec(name)
	if err != nil {
		return err
	}
	if _, err = s.load(ctx, spec, true); errors.Is(err, fs.ErrNotExist) {
		return turnstone.Errorf("template.verify", turnstone.KindNotFound, name, "is not built").
			WithHint("build it: turn template build " + name)
	}
	return err
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return filestamp.WriteFile(path, append(b, '\n'), 0o644)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (s *Store) imageDir(d turnstone.Digest) string { return filepath.Join(s.dir, d.Hex()) }
func (s *Store) tmpDir(d turnstone.Digest) string   { return filepath.Join(s.dir, "tmp", d.Hex()) }
func (s *Store) logPath(d turnstone.Digest) string {
	return filepath.Join(s.dir, "logs", d.Hex()+".log")
}
func (s *Store) lockPath(d turnstone.Digest) string {
	return filepath.Join(s.dir, "locks", d.Hex()+".lock")
}

func (s *Store) makeDirs() error {
	for _, sub := range []string{"specs", "logs", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(s.dir, sub), 0o700); err != nil {
			return turnstone.NewError("template.store", turnstone.KindUnavailable, s.dir, err).
				WithHint("set TURN_HOME to a folder that you may write")
		}
	}
	return nil
}
