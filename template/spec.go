// Package template builds and keeps templates: what is installed before any turn
// runs. A template is described by a spec and named by the spec's digest; its root
// is a read-only image that every sandbox shares.
package template

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	"turnstone.dev/turnstone/spelling"
)

// Limits of a spec. What goes beyond is refused.
const (
	MaxSpec     = 256 << 10 // bytes of a template.toml
	MaxFile     = 16 << 20  // bytes of one file that a spec adds
	MaxFiles    = 64 << 20  // bytes of all of them
	maxPackages = 2000
	maxEntries  = 1000 // files, variables
)

// SpecFile is the name of a spec's file in its folder.
const SpecFile = "template.toml"

// DefaultWorkdir is where steps run when neither spec nor document says otherwise.
const DefaultWorkdir = "/workspace"

// A Spec describes a template. It is complete in itself: files that it names are
// read by Parse.
type Spec struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Base        string            `json:"base"`     // "debian:" and a suite
	Packages    []string          `json:"packages"` // sorted, each once
	Env         map[string]string `json:"env,omitempty"`
	Files       []File            `json:"files,omitempty"` // sorted by path
	Workdir     string            `json:"workdir"`
}

// A File is one that a spec puts into the image, owned by root.
type File struct {
	Path    string `json:"path"` // absolute, clean
	Mode    uint32 `json:"mode"` // permission bits
	Content []byte `json:"content"`
}

// specTOML is a spec as it is written. Its keys are the whole language: any other
// is an error.
type specTOML struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description"`
	Base        string            `toml:"base"`
	Packages    []string          `toml:"packages"`
	Env         map[string]string `toml:"env"`
	Files       []fileTOML        `toml:"files"`
	Workdir     string            `toml:"workdir"`
}

type fileTOML struct {
	Path    string  `toml:"path"`
	Content *string `toml:"content"`
	Source  *string `toml:"source"`
	Mode    string  `toml:"mode"`
}

var (
	nameRule    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	packageRule = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*[a-z0-9+]$`) // Debian Policy 5.6.1, less what apt reads as "remove"
	envRule     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// bases are the systems that a spec can start from.
func bases() []string { return []string{"debian:bookworm"} }

// Parse reads a spec from b. name is what the template is called; when it is empty
// the spec has to say it. dir is what files are read from that the spec names as
// source, relative to it; nil means that there are none. Errors are
// *turnstone.Error of kind Invalid.
func Parse(name string, b []byte, dir fs.FS) (*Spec, error) {
	subject := SpecFile
	if name != "" {
		subject = name + "/" + SpecFile
	}
	spec, err := parse(name, b, dir)
	if err == nil {
		return spec, nil
	}
	out := &turnstone.Error{Op: "template.parse", Kind: turnstone.Invalid, Subject: subject, Err: err,
		Hint: "docs/templates.md explains every key of a spec"}
	var pos toml.ParseError
	if errors.As(err, &pos) {
		out.Subject = fmt.Sprintf("%s:%d", subject, pos.Position.Line)
		out.Err = errors.New(pos.Message)
		if pos.Message == "" { // the library keeps some messages to itself
			out.Err = err
		}
	}
	return nil, out
}

func parse(name string, b []byte, dir fs.FS) (*Spec, error) {
	if len(b) > MaxSpec {
		return nil, fmt.Errorf("is larger than %d bytes", MaxSpec)
	}
	var t specTOML
	md, err := toml.NewDecoder(bytes.NewReader(b)).Decode(&t)
	if err != nil {
		return nil, err
	}
	if err := knownKeys(md); err != nil {
		return nil, err
	}
	if name == "" {
		name = t.Name
	}
	s := &Spec{Name: name, Description: t.Description, Base: t.Base, Env: t.Env, Workdir: t.Workdir}
	switch {
	case name == "":
		return nil, errors.New(`"name" is missing`)
	case !nameRule.MatchString(name):
		return nil, fmt.Errorf("name %q: want lower-case letters, digits, '.', '_' and '-', at most 63", name)
	case t.Name != "" && t.Name != name:
		return nil, fmt.Errorf("name is %q, but the template is called %q", t.Name, name)
	case strings.ContainsFunc(s.Description, func(r rune) bool { return r < ' ' }) || len(s.Description) > 500:
		return nil, errors.New("description: want one line of at most 500 bytes")
	case s.Base == "":
		return nil, fmt.Errorf(`"base" is missing; there is %s`, strings.Join(bases(), ", "))
	case !slices.Contains(bases(), s.Base):
		return nil, fmt.Errorf("base %q is not known; there is %s", s.Base, strings.Join(bases(), ", "))
	}
	if s.Workdir == "" {
		s.Workdir = DefaultWorkdir
	}
	if !cleanAbsolute(s.Workdir) {
		return nil, fmt.Errorf("workdir %q: want an absolute path", s.Workdir)
	}
	if s.Packages, err = packages(t.Packages); err != nil {
		return nil, err
	}
	if err := checkEnv(s.Env); err != nil {
		return nil, err
	}
	s.Files, err = readFiles(t.Files, dir)
	return s, err
}

// knownKeys reports the first key that specTOML does not have.
func knownKeys(md toml.MetaData) error {
	if undecoded := md.Undecoded(); len(undecoded) > 0 {
		key, known := undecoded[0], []string{"name", "description", "base", "packages", "env", "files", "workdir"}
		if len(key) > 1 && key[0] == "files" {
			known = []string{"path", "content", "source", "mode"}
		}
		near, _ := spelling.Nearest(key[len(key)-1], known)
		return fmt.Errorf("unknown key %q; the nearest that there is: %q", key.String(), near)
	}
	return nil
}

func packages(list []string) ([]string, error) {
	if len(list) > maxPackages {
		return nil, fmt.Errorf("packages: more than %d", maxPackages)
	}
	for _, p := range list {
		if !packageRule.MatchString(p) || len(p) > 100 {
			return nil, fmt.Errorf("packages: %q is no name of a Debian package", p)
		}
	}
	out := slices.Clone(list)
	sort.Strings(out)
	return slices.Compact(out), nil
}

func checkEnv(env map[string]string) error {
	if len(env) > maxEntries {
		return fmt.Errorf("env: more than %d variables", maxEntries)
	}
	for k, v := range env {
		if !envRule.MatchString(k) {
			return fmt.Errorf("env: %q is no name of a variable", k)
		}
		if strings.ContainsAny(v, "\x00\n") || len(v) > 32<<10 {
			return fmt.Errorf("env: the value of %s holds a line end or a zero byte, or is too long", k)
		}
	}
	return nil
}

func readFiles(list []fileTOML, dir fs.FS) ([]File, error) {
	if len(list) > maxEntries {
		return nil, fmt.Errorf("files: more than %d", maxEntries)
	}
	var out []File
	total := 0
	for _, f := range list {
		one, err := readFile(f, dir)
		if err != nil {
			return nil, fmt.Errorf("files: %q: %w", f.Path, err)
		}
		if total += len(one.Content); total > MaxFiles {
			return nil, fmt.Errorf("files: more than %d bytes in all", MaxFiles)
		}
		out = append(out, one)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	for i := 1; i < len(out); i++ {
		if out[i].Path == out[i-1].Path {
			return nil, fmt.Errorf("files: %q is there twice", out[i].Path)
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
			return out, fmt.Errorf("mode %q: want an octal number in quotes, as \"0755\"", f.Mode)
		}
		out.Mode = uint32(mode)
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
	if len(out.Content) > MaxFile {
		return out, fmt.Errorf("is larger than %d bytes", MaxFile)
	}
	return out, nil
}

func readBounded(dir fs.FS, name string) ([]byte, error) {
	fi, err := fs.Stat(dir, name)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > MaxFile {
		return nil, fmt.Errorf("source %q is no regular file of at most %d bytes", name, MaxFile)
	}
	return fs.ReadFile(dir, name)
}

func cleanAbsolute(p string) bool {
	return len(p) <= 1024 && strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.ContainsAny(p, "\x00\n")
}

// Digest is the template's name for ever: the SHA-256 over everything that makes a
// difference to the image and to what its sandboxes get. Neither the name nor the
// description does. Two specs with one digest share one image.
func (s *Spec) Digest() turnstone.Digest {
	type file struct {
		Path   string           `json:"path"`
		Mode   uint32           `json:"mode"`
		Digest turnstone.Digest `json:"digest"`
	}
	// Fields that come later must be left out of the JSON when they are empty, so
	// that the specs of today keep their digests.
	canonical := struct {
		Builder      int               `json:"builder"`
		Architecture string            `json:"architecture"`
		Base         string            `json:"base"`
		Packages     []string          `json:"packages"`
		Env          map[string]string `json:"env"` // encoding/json sorts the keys
		Files        []file            `json:"files"`
		Workdir      string            `json:"workdir"`
	}{builderVersion, "amd64", s.Base, append([]string{}, s.Packages...), map[string]string{}, []file{}, s.Workdir}
	for k, v := range s.Env {
		canonical.Env[k] = v
	}
	for _, f := range s.Files {
		canonical.Files = append(canonical.Files, file{f.Path, f.Mode, turnstone.DigestBytes(f.Content)})
	}
	h := sha256.New()
	enc := json.NewEncoder(h)
	enc.SetEscapeHTML(false)  // so that other languages' JSON gives the same text
	_ = enc.Encode(canonical) // the types above always encode, and a hash takes every write
	return turnstone.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}
