// Package template builds and keeps templates: the software that is installed before any turn runs.
// A template is described by a spec and named by the spec's digest; its root is a read-only image
// that every sandbox shares.
package template

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/suggest"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/internal/template/oci"
	"turnstone.dev/turnstone/internal/template/registry"
	"turnstone.dev/turnstone/internal/tomlnest"
)

// Limits of a spec. A larger spec is rejected.
const (
	maxSpec     = 256 << 10 // bytes of a template.toml
	maxFile     = 16 << 20  // bytes of one file that a spec adds
	maxFiles    = 64 << 20  // bytes of all of them
	maxPackages = 2000
	maxEntries  = 1000 // files, variables
	maxCommand  = 64 << 10
)

// specFile is the name of a spec's file in its folder.
const specFile = "template.toml"

// DefaultWorkdir is the working directory of steps if neither spec nor document names one.
const DefaultWorkdir = "/workspace"

// A Spec describes a template. It is complete in itself, except for a base that is another
// template: Parse reads the files that it names.
type Spec struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// "debian:" and a suite, "oci:" and a reference, or the name of a template
	Base     string   `json:"base"`
	Packages []string `json:"packages"` // of Debian; sorted, each once
	Pip      []string `json:"pip,omitempty"`
	Npm      []string `json:"npm,omitempty"`
	// Wheels are files of pip's index whose programs are in /usr/local/bin; sorted
	Wheels   []registry.Wheel       `json:"wheels,omitempty"`
	Commands []string               `json:"commands,omitempty"` // bash, in order
	Env      map[string]string      `json:"env,omitempty"`
	Files    []File                 `json:"files,omitempty"` // sorted by path
	Workdir  string                 `json:"workdir"`         // empty: the base's
	Command  turnstone.ImageCommand `json:"-"`               // of the image below it
	// the user of steps; empty: the base's, or root
	User    string            `json:"user,omitempty"`
	Machine turnstone.Machine `json:"machine,omitzero"`
	// Network lists hosts that the build may reach in addition to the package registries, as in a
	// document's "network:". NoNetwork denies even the registries.
	Network   []string `json:"network,omitempty"`
	NoNetwork bool     `json:"no_network,omitempty"`
	// Lock is the required result, from an earlier build; nil: any result.
	Lock *Lock `json:"lock,omitempty"`

	// BaseDigest is the digest of the base's spec if the base is a template. A Store sets it to the
	// current digest of that name.
	BaseDigest turnstone.Digest `json:"-"`
	base       *Spec
	image      bool        // it consists of an image of a registry only
	origin     *oci.Origin // of a template from a registry
	proxy      string      // the proxy for Debian's packages during a build
	mirrors    debian.Mirrors
	// programs fetches wheels during a build
	programs func(context.Context, []registry.Wheel) ([]registry.Program, error)
}

// A File is a file that a spec puts into the image, owned by root.
type File struct {
	Path    string         `json:"path"` // absolute, clean
	Mode    turnstone.Mode `json:"mode"` // permission bits
	Content []byte         `json:"content"`
}

// specTOML is the written form of a spec. Its keys are the whole language: any other is an error.
type specTOML struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description"`
	Base        string            `toml:"base"`
	Packages    []string          `toml:"packages"`
	Pip         []string          `toml:"pip"`
	Npm         []string          `toml:"npm"`
	Wheels      []registry.Wheel  `toml:"wheels"`
	Commands    []string          `toml:"commands"`
	Env         map[string]string `toml:"env"`
	Files       []fileTOML        `toml:"files"`
	Workdir     string            `toml:"workdir"`
	User        string            `toml:"user"`
	Kernel      string            `toml:"kernel"`
	Machine     machineTOML       `toml:"machine"`
	Network     any               `toml:"network"`
}

type fileTOML struct {
	Path    string  `toml:"path"`
	Content *string `toml:"content"`
	Source  *string `toml:"source"`
	Mode    string  `toml:"mode"`
}

type machineTOML struct {
	CPUs   *int    `toml:"cpus"`
	Memory *string `toml:"memory"`
	Disk   *string `toml:"disk"`
}

var (
	nameRule = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	envRule  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Bases that are not templates. A reference follows ociBase, a suite debianBase.
const (
	debianBase = "debian:"
	ociBase    = "oci:"
)

// bases are the systems that a spec can start from.
func bases() []string { return []string{"debian:bookworm"} }

// kernels are the guest kernels that a spec can ask for; the first is the default.
func kernels() []string { return []string{"debian"} }

// Parse reads a spec from b. name is the template's name; if it is empty, the spec must contain a
// name. dir contains the files that the spec names as source, relative to it; nil means that there
// are none. Errors are *turnstone.Error of kind Invalid.
func Parse(name string, b []byte, dir fs.FS) (*Spec, error) {
	subject := specFile
	if name != "" {
		subject = name + "/" + specFile
	}
	spec, err := parse(name, b, dir)
	if err == nil {
		return spec, nil
	}
	out := turnstone.NewError("template.parse", turnstone.KindInvalid, subject, err).
		WithHint("see docs/templates.md for every key of a spec")
	var pos toml.ParseError
	var at *keyError
	switch {
	case errors.As(err, &at):
		if line := lineOf(b, at.key); line > 0 {
			out.Subject = fmt.Sprintf("%s:%d", subject, line)
		}
	case errors.As(err, &pos):
		out.Subject = fmt.Sprintf("%s:%d", subject, pos.Position.Line)
		out.Err = errors.New(pos.Message)
		if pos.Message == "" { // the library does not set some messages
			out.Err = err
		}
	}
	return nil, out
}

// A keyError reports an invalid key, or a key with an invalid value.
type keyError struct {
	key string
	err error
}

func (e *keyError) Error() string { return e.err.Error() }
func (e *keyError) Unwrap() error { return e.err }

// wrong returns a keyError for key.
func wrong(key, format string, args ...any) error {
	return &keyError{key, fmt.Errorf(format, args...)}
}

// typeRule matches the decoder's message for a value of the wrong type.
var typeRule = lazyregexp.New(
	`\(last key "([^"]+)"\): (?:incompatible types: .* destination has type (\w+)|type mismatch ` +
		`for .*: expected (table))`)

// wrongType returns the expected type of a key's value, in terms of TOML and not of Go.
func wrongType(err error) error {
	m := typeRule.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	want := map[string]string{"slice": "a list", "map": "a table", "struct": "a table",
		"string": "a string", "integer": "a whole number"}[m[2]]
	if want == "" {
		want = "a " + m[2] + m[3]
	}
	return wrong(m[1], "%s: want %s", m[1], want)
}

// lineOf returns the number of the line where key is set; 0 if unknown. The decoder reports lines
// only for its own errors.
func lineOf(b []byte, key string) int {
	last := key[strings.LastIndexByte(key, '.')+1:]
	set := regexp.MustCompile(`(?:^|[\s.{,\["'])` + regexp.QuoteMeta(last) + `["']?\s*(?:=|\]|\.)`)
	n := 0
	for line := range bytes.Lines(b) {
		n++
		if text := bytes.TrimSpace(line); !bytes.HasPrefix(text, []byte("#")) && set.Match(text) {
			return n
		}
	}
	return 0
}

func parse(name string, b []byte, dir fs.FS) (*Spec, error) {
	if len(b) > maxSpec {
		return nil, fmt.Errorf("is larger than %d bytes", maxSpec)
	}
	t := specTOML{}
	md, err := tomlnest.Decode(string(b), &t)
	if err != nil {
		return nil, wrongType(err)
	}
	if err := knownKeys(md); err != nil {
		return nil, err
	}
	if md.IsDefined("env") && md.Type("env") != "Hash" { // the decoder silently ignores it
		return nil, wrong("env", "env: want a table")
	}
	return t.spec(name, dir)
}

// spec checks the values of t.
func (t *specTOML) spec(name string, dir fs.FS) (_ *Spec, err error) {
	if name == "" {
		name = t.Name
	}
	s := &Spec{Name: name, Description: t.Description, Base: t.Base, Env: t.Env, Workdir: t.Workdir,
		User: t.User}
	switch {
	case name == "":
		return nil, errors.New(`"name" is missing`)
	case !nameRule.MatchString(name):
		return nil, wrong("name",
			"name %q: want lower-case letters, digits, '.', '_' and '-', at most 63", name)
	case t.Name != "" && t.Name != name:
		return nil, wrong("name", "name is %q, but the template is called %q", t.Name, name)
	case strings.ContainsFunc(s.Description, func(r rune) bool { return r < ' ' }) ||
		len(s.Description) > 500:
		return nil, wrong("description", "description: want one line of at most 500 bytes")
	}
	if err := checkBase(s); err != nil {
		return nil, err
	}
	if s.Workdir == "" && strings.HasPrefix(s.Base, debianBase) {
		s.Workdir = DefaultWorkdir
	}
	if s.Workdir != "" && !cleanAbsolute(s.Workdir) {
		return nil, wrong("workdir", "workdir %q: want an absolute path", s.Workdir)
	}
	if s.Packages, err = packages(t.Packages); err != nil {
		return nil, err
	}
	if err := checkEnv(s.Env); err != nil {
		return nil, err
	}
	if err := s.readMore(t); err != nil {
		return nil, err
	}
	s.Files, err = readFiles(t.Files, dir)
	return s, err
}

// checkBase checks the base as far as possible without the other templates.
func checkBase(s *Spec) error {
	all := append(bases(), "oci:REFERENCE", "the name of a template")
	switch known := strings.Join(all, ", "); {
	case s.Base == "":
		return fmt.Errorf(`"base" is missing; there is %s`, known)
	case slices.Contains(bases(), s.Base):
		return nil
	case strings.HasPrefix(s.Base, ociBase):
		if ref := s.Base[len(ociBase):]; ref == "" || len(ref) > 1000 ||
			strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return wrong("base",
				"base %q: want oci: and the reference of an image, such as oci:python:3.12", s.Base)
		}
		return nil
	case !nameRule.MatchString(s.Base):
		return wrong("base", "base %q is not known; there is %s", s.Base, known)
	case s.Base == s.Name:
		return wrong("base", "base %q is the template itself", s.Base)
	}
	return nil
}

// onTemplate reports whether the base is another template.
func (s *Spec) onTemplate() bool {
	return !strings.HasPrefix(s.Base, debianBase) && !strings.HasPrefix(s.Base, ociBase)
}

// knownKeys reports the first key that specTOML does not have.
func knownKeys(md toml.MetaData) error {
	if undecoded := md.Undecoded(); len(undecoded) > 0 {
		key := undecoded[0]
		known := []string{"name", "description", "base", "packages", "pip", "npm", "commands",
			"env", "files", "workdir", "user", "kernel", "machine", "network", "wheels"}
		switch {
		case len(key) > 1 && key[0] == "files":
			known = []string{"path", "content", "source", "mode"}
		case len(key) > 1 && key[0] == "machine":
			known = []string{"cpus", "memory", "disk"}
		case len(key) > 1 && key[0] == "wheels":
			known = []string{"file", "sha256"}
		}
		near, _ := suggest.Nearest(key[len(key)-1], known)
		return wrong(key.String(), "unknown key %q; the nearest known key: %q", key.String(), near)
	}
	return nil
}

func packages(list []string) ([]string, error) {
	if len(list) > maxPackages {
		return nil, wrong("packages", "packages: more than %d", maxPackages)
	}
	for _, p := range list {
		if !debian.ValidPackage(p) {
			return nil, wrong("packages", "packages: %q is not the name of a Debian package", p)
		}
	}
	out := slices.Clone(list)
	sort.Strings(out)
	return slices.Compact(out), nil
}

func checkEnv(env map[string]string) error {
	if len(env) > maxEntries {
		return wrong("env", "env: more than %d variables", maxEntries)
	}
	for k, v := range env {
		if !envRule.MatchString(k) {
			return wrong("env", "env: %q is not the name of a variable", k)
		}
		if strings.ContainsAny(v, "\x00\n") || len(v) > 32<<10 {
			return wrong("env", "env: the value of %s contains a line end or a zero byte, or is "+
				"too long", k)
		}
	}
	return nil
}

func readFiles(list []fileTOML, dir fs.FS) ([]File, error) {
	if len(list) > maxEntries {
		return nil, wrong("files", "files: more than %d", maxEntries)
	}
	var out []File
	total := 0
	for _, f := range list {
		one, err := readFile(f, dir)
		if err != nil {
			return nil, wrong("files", "files: %q: %w", f.Path, err)
		}
		if total += len(one.Content); total > maxFiles {
			return nil, wrong("files", "files: more than %d bytes in total", maxFiles)
		}
		out = append(out, one)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	for i := 1; i < len(out); i++ {
		if out[i].Path == out[i-1].Path {
			return nil, wrong("files", "files: %q is a duplicate", out[i].Path)
		}
	}
	return out, nil
}

func readFile(f fileTOML, dir fs.FS) (File, error) {
	out := File{Path: f.Path, Mode: 0o644}
	if !cleanAbsolute(f.Path) || f.Path == "/" {
		return out, errors.New("want an absolute path")
	}
	if first := strings.SplitN(f.Path, "/", 3)[1]; slices.Contains(emptied(), first) {
		return out, fmt.Errorf("/%s is empty when a sandbox starts", first)
	}
	if f.Mode != "" {
		mode, err := strconv.ParseUint(f.Mode, 8, 32)
		if err != nil || mode > 0o7777 {
			return out, fmt.Errorf("mode %q: want an octal number in quotes, such as \"0755\"",
				f.Mode)
		}
		out.Mode = turnstone.Mode(mode)
	}
	switch {
	case (f.Content == nil) == (f.Source == nil):
		return out, errors.New(`want either "content" or "source"`)
	case f.Content != nil:
		out.Content = []byte(*f.Content)
	case dir == nil || !fs.ValidPath(*f.Source):
		return out, fmt.Errorf("source %q: want a path below the spec's folder", *f.Source)
	default:
		content, err := readBounded(dir, *f.Source)
		if err != nil {
			return out, err
		}
		out.Content = content
	}
	if len(out.Content) > maxFile {
		return out, fmt.Errorf("is larger than %d bytes", maxFile)
	}
	return out, nil
}

func readBounded(dir fs.FS, name string) ([]byte, error) {
	fi, err := fs.Stat(dir, name)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxFile {
		return nil, fmt.Errorf("source %q is not a regular file of at most %d bytes", name, maxFile)
	}
	return fs.ReadFile(dir, name)
}

func cleanAbsolute(p string) bool {
	return len(p) <= 1024 && strings.HasPrefix(p, "/") && path.Clean(p) == p &&
		!strings.ContainsAny(p, "\x00\n")
}
