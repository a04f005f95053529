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
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/spelling"
	"turnstone.dev/turnstone/stamp"
	"turnstone.dev/turnstone/templates"
)

// A Store keeps templates in one folder:
//
//	<hex>/root.erofs     the image of the spec with that digest
//	<hex>/manifest.json  what the image is; written last
//	<hex>/root.tree      what tree it holds, and where in it contents are; made when first asked for
//	specs/<name>.json    the specs that users registered
//	logs/<hex>.log       what the last build of that spec said, also when it failed
//	locks/<hex>.lock     held while an image is built or removed
//	tmp/<hex>            the build that is going on
//
// Its methods are safe for concurrent use, also by several processes.
type Store struct {
	dir     string
	builtin fs.FS
	build   builder
}

// NewStore returns the store in dir, which need not exist yet.
func NewStore(dir string) *Store {
	return &Store{dir: dir, builtin: templates.FS, build: buildImage}
}

// A Template is one that is built.
type Template struct {
	Name       string            `json:"name"`
	Digest     turnstone.Digest  `json:"digest"`      // of the spec: the template's name for ever
	Root       string            `json:"root"`        // path of the read-only root image (EROFS)
	RootDigest turnstone.Digest  `json:"root_digest"` // of the file at Root
	Size       int64             `json:"size"`        // of the file at Root, in bytes
	Packages   map[string]string `json:"packages"`    // what is installed: name → version
	Env        map[string]string `json:"env"`
	Workdir    string            `json:"workdir"`
	Built      time.Time         `json:"built"`
	BuildTime  time.Duration     `json:"build_ns"`
}

// EnvList returns the template's environment as KEY=VALUE, sorted.
func (t *Template) EnvList() []string {
	list := make([]string, 0, len(t.Env))
	for k, v := range t.Env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}

// An Entry is one known template, built or not.
type Entry struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	Digest      turnstone.Digest `json:"digest"`
	BuiltIn     bool             `json:"built_in"` // part of this program; else registered by the user
	Ready       bool             `json:"ready"`    // its image is built
	Size        int64            `json:"size,omitempty"`
	Built       time.Time        `json:"built,omitzero"`
}

// Details are what Show tells of a template.
type Details struct {
	Entry
	Spec     *Spec     `json:"spec"`
	Template *Template `json:"template,omitempty"` // nil when it is not built
	Log      string    `json:"log,omitempty"`      // path of the last build's log, if there is one
}

// Names returns the names of all known templates, sorted.
func (s *Store) Names() ([]string, error) {
	builtin, err := fs.Glob(s.builtin, "*/"+SpecFile)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range builtin {
		names = append(names, strings.TrimSuffix(p, "/"+SpecFile))
	}
	own, err := filepath.Glob(filepath.Join(s.dir, "specs", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, p := range own {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".json"))
	}
	sort.Strings(names)
	return slices.Compact(names), nil
}

// Spec returns the spec called name: a built-in one, else the user's. An unknown
// name is an error of kind NotFound that lists those that are known.
func (s *Store) Spec(name string) (*Spec, error) {
	spec, _, err := s.lookup(name)
	return spec, err
}

func (s *Store) lookup(name string) (spec *Spec, builtin bool, err error) {
	if nameRule.MatchString(name) {
		b, err := fs.ReadFile(s.builtin, name+"/"+SpecFile)
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
	names, err := s.Names()
	if err != nil {
		return nil, false, err
	}
	hint := "the images are " + strings.Join(names, ", ")
	if near, edits := spelling.Nearest(name, names); near != "" && edits <= max(1, len(near)/2) {
		hint = fmt.Sprintf("did you mean %s? %s", near, hint)
	}
	return nil, false, &turnstone.Error{Op: "template.find", Kind: turnstone.NotFound, Subject: fmt.Sprintf("image %q", name),
		Err: errors.New("is not known"), Hint: hint + "; turn template build makes one from a spec"}
}

// registered reads a spec that a user registered.
func (s *Store) registered(name string) (*Spec, error) {
	path := filepath.Join(s.dir, "specs", name+".json")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var spec Spec
	if err := json.Unmarshal(b, &spec); err != nil || spec.Name != name {
		return nil, &turnstone.Error{Op: "template.find", Kind: turnstone.Integrity, Subject: path,
			Err:  fmt.Errorf("is damaged: %w", errors.Join(err, errors.New("want the spec of "+name))),
			Hint: "register the spec again with turn template build, or remove the file"}
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
		if err != nil {
			return nil, err
		}
		entries = append(entries, s.entry(ctx, spec, builtin))
	}
	return entries, nil
}

func (s *Store) entry(ctx context.Context, spec *Spec, builtin bool) Entry {
	e := Entry{Name: spec.Name, Description: spec.Description, Digest: spec.Digest(), BuiltIn: builtin}
	if t, err := s.load(ctx, spec, false); err == nil {
		e.Ready, e.Size, e.Built = true, t.Size, t.Built
	}
	return e
}

// Show tells all about one template, and builds nothing.
func (s *Store) Show(ctx context.Context, name string) (*Details, error) {
	spec, builtin, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	d := &Details{Entry: s.entry(ctx, spec, builtin), Spec: spec}
	if d.Ready {
		if d.Template, err = s.load(ctx, spec, false); err != nil {
			return nil, err
		}
	}
	if log := s.logPath(spec.Digest()); exists(log) {
		d.Log = log
	}
	return d, nil
}

// Remove deletes a template's image and, when a user registered it, its spec.
// Sandboxes that run from the image go on. An image that another name shares stays.
func (s *Store) Remove(ctx context.Context, name string) error {
	spec, builtin, err := s.lookup(name)
	if err != nil {
		return err
	}
	failed := func(err error) error {
		return &turnstone.Error{Op: "template.remove", Kind: turnstone.Unavailable, Subject: name, Err: err}
	}
	if !builtin {
		if err := os.Remove(filepath.Join(s.dir, "specs", name+".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(err)
		}
	}
	digest := spec.Digest()
	entries, err := s.List(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e Entry) bool { return e.Name != name && e.Digest == digest }) {
		return nil
	}
	if builtin && !exists(s.imageDir(digest)) {
		return &turnstone.Error{Op: "template.remove", Kind: turnstone.NotFound, Subject: name,
			Err: errors.New("is built in, and its image is not built: there is nothing to remove")}
	}
	if err := s.makeDirs(); err != nil {
		return err
	}
	lock, err := home.Acquire(ctx, s.lockPath(digest), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	for _, path := range []string{s.imageDir(digest), s.tmpDir(digest), s.logPath(digest)} {
		if err := os.RemoveAll(path); err != nil {
			return failed(err)
		}
	}
	return nil
}

// Verify reads a built template's whole image and compares it with its digest. A
// damaged one is an error of kind Integrity, a missing one NotFound.
func (s *Store) Verify(ctx context.Context, name string) error {
	spec, err := s.Spec(name)
	if err != nil {
		return err
	}
	if _, err = s.load(ctx, spec, true); errors.Is(err, fs.ErrNotExist) {
		return &turnstone.Error{Op: "template.verify", Kind: turnstone.NotFound, Subject: name,
			Err: errors.New("is not built"), Hint: "build it: turn template build " + name}
	}
	return err
}

// manifestVersion changes when images that are kept cannot be used any more.
const manifestVersion = 1

// A manifest is the file that says what an image is.
type manifest struct {
	Format    int               `json:"format"`
	Digest    turnstone.Digest  `json:"digest"`
	Root      stamp.Stamp       `json:"root"`
	Packages  map[string]string `json:"packages"`
	Built     time.Time         `json:"built"`
	BuildTime time.Duration     `json:"build_ns"`
}

// load returns spec's template if it is built and whole: at the price of a stat, or
// of reading all of it with full, or when the file was touched or moved.
func (s *Store) load(ctx context.Context, spec *Spec, full bool) (*Template, error) {
	digest := spec.Digest()
	dir := s.imageDir(digest)
	path := filepath.Join(dir, "manifest.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if m.Format != manifestVersion || m.Digest != digest {
		return nil, fmt.Errorf("%s: is of another template, or another version", path)
	}
	root := filepath.Join(dir, "root.erofs")
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
		// The next call reads the image again if this cannot be written.
		_ = writeJSON(path, m)
	}
	return &Template{Name: spec.Name, Digest: digest, Root: root, RootDigest: now.Digest, Size: now.Size,
		Packages: m.Packages, Env: spec.Env, Workdir: spec.Workdir, Built: m.Built, BuildTime: m.BuildTime}, nil
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return stamp.WriteFile(path, append(b, '\n'), 0o644)
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
			return &turnstone.Error{Op: "template.store", Kind: turnstone.Unavailable, Subject: s.dir, Err: err,
				Hint: "set TURN_HOME to a folder that you may write"}
		}
	}
	return nil
}
