// Package manifest reads turnstone.toml, a project's defaults for its documents, and finds the one
// of a document. A manifest is as untrusted as a document: it asks and narrows, and grants nothing.
// docs/manifest.md specifies the format.
package manifest

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v3"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/suggest"
	"turnstone.dev/turnstone/internal/tomlnest"
)

// File is the name of a manifest.
const File = "turnstone.toml"

// MaxFile bounds a manifest in bytes; maxList bounds a list in it.
const (
	MaxFile = 256 << 10
	maxList = 1000
)

// Substrates and Guests are the values of the keys substrate and guest.
var (
	Substrates = []string{"auto", "firecracker", "qemu", "gvisor"}
	Guests     = []string{"bookworm-amd64", "noble-amd64", "noble-arm64"}
)

// A Manifest is a parsed manifest.
type Manifest struct {
	Path     string // as given to Parse, for messages and for the paths of Templates
	Defaults document.Defaults
	// Templates are the paths of the project's specs by their names, relative to the manifest's
	// folder and below it.
	Templates map[string]string
}

// file is the form of a manifest.
type file struct {
	Sandbox   sandbox           `toml:"sandbox"`
	Session   session           `toml:"session"`
	Templates map[string]string `toml:"templates"`
}

type sandbox struct {
	Substrate     string `toml:"substrate"`
	Isolation     string `toml:"isolation"`
	Image         string `toml:"image"`
	Guest         string `toml:"guest"`
	Network       any    `toml:"network"`
	CPUs          *int   `toml:"cpus"`
	Memory        string `toml:"memory"`
	Disk          string `toml:"disk"`
	Timeout       string `toml:"timeout"`
	Deterministic *bool  `toml:"deterministic"`
}

type session struct {
	Name     string   `toml:"name"`
	Branch   string   `toml:"branch"`
	Branches []string `toml:"branches"`
}

// Parse reads the text of a manifest, whose path is name. The error is of kind Invalid, and names
// the manifest.
func Parse(name string, text []byte) (*Manifest, error) {
	m, err := parse(name, text)
	if err != nil {
		return nil, turnstone.NewError("manifest.parse", turnstone.KindInvalid, name, err).
			WithHint(turnstone.HintOf(err))
	}
	return m, nil
}

func parse(name string, text []byte) (*Manifest, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("it has more than %s", turnstone.Bytes(MaxFile).Human())
	}
	var f file
	md, err := tomlnest.Decode(string(text), &f)
	if err != nil {
		var fault toml.ParseError
		if errors.As(err, &fault) && fault.Message != "" {
			err = fmt.Errorf("line %d: %s", fault.Position.Line, fault.Message)
		}
		return nil, err
	}
	for _, key := range md.Undecoded() {
		if len(key) > 2 && key[0] == "sandbox" && key[1] == "network" {
			continue // read as a document's rules
		}
		return nil, unknownKey(key)
	}
	m := &Manifest{Path: name, Templates: f.Templates, Defaults: document.Defaults{Place: name,
		Substrate: f.Sandbox.Substrate, Guest: f.Sandbox.Guest, Branches: f.Session.Branches}}
	for key, known := range map[string][]string{"substrate": Substrates, "guest": Guests} {
		value := map[string]string{"substrate": f.Sandbox.Substrate, "guest": f.Sandbox.Guest}[key]
		if !md.IsDefined("sandbox", key) {
			continue
		}
		if err := oneOf("sandbox."+key, value, known); err != nil {
			return nil, err
		}
	}
	if err := checkBranches(f.Session); err != nil {
		return nil, err
	}
	if err := checkTemplates(f.Templates); err != nil {
		return nil, err
	}
	m.Defaults.Front, err = frontOf(&f, md.IsDefined)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// frontOf reads the keys that documents have too, as a document's front matter: with its rules and
// its messages.
func frontOf(f *file, defined func(key ...string) bool) (document.FrontMatter, error) {
	var none document.FrontMatter
	keys := map[string]any{}
	for key, value := range map[string]string{"isolation": f.Sandbox.Isolation,
		"image": f.Sandbox.Image, "memory": f.Sandbox.Memory, "disk": f.Sandbox.Disk,
		"timeout": f.Sandbox.Timeout} {
		if defined("sandbox", key) {
			keys[key] = value
		}
	}
	if defined("session", "name") {
		keys["session"] = f.Session.Name
	}
	if defined("session", "branch") {
		keys["branch"] = f.Session.Branch
	}
	if f.Sandbox.CPUs != nil {
		keys["cpus"] = *f.Sandbox.CPUs
	}
	if f.Sandbox.Deterministic != nil {
		keys["deterministic"] = *f.Sandbox.Deterministic
	}
	if f.Sandbox.Network != nil {
		if err := checkNetwork(f.Sandbox.Network); err != nil {
			return none, err
		}
		keys["network"] = f.Sandbox.Network
	}
	if len(keys) == 0 {
		return none, nil
	}
	text, err := yaml.Marshal(keys)
	if err != nil {
		return none, err
	}
	doc, err := document.Parse(File, slices.Concat([]byte("---\n"), text, []byte("---\n")))
	var faults document.SyntaxErrors
	if errors.As(err, &faults) {
		return none, turnstone.Errorf("manifest.parse", turnstone.KindInvalid, "", "%s",
			faults[0].Msg).WithHint(faults[0].Hint)
	}
	if err != nil {
		return none, err
	}
	return doc.Front, nil
}

// checkNetwork rejects what a document may say of its network and a manifest may not, and values
// that no document can have.
func checkNetwork(network any) error {
	switch n := network.(type) {
	case string, bool:
		if n == "replay" {
			return errors.New("sandbox.network: a recording belongs to one turn: a document or " +
				"--network names it")
		}
		return nil
	case map[string]any:
		for key, value := range n {
			list, is := value.([]any)
			switch _, said := value.(bool); {
			case key == "replay":
				return errors.New("sandbox.network.replay: a recording belongs to one turn: a " +
					"document or --network names it")
			case !is && !said:
				return fmt.Errorf("sandbox.network.%.40q is neither a list of rules nor true or "+
					"false", key)
			case key == "allow" && is && len(list) == 0:
				return errors.New(`sandbox.network.allow is empty: write network = "off"`)
			case len(list) > maxList:
				return fmt.Errorf("sandbox.network.%s has more than %d rules", key, maxList)
			}
			for _, rule := range list {
				if _, is := rule.(string); !is {
					return fmt.Errorf("sandbox.network.%.40q has a rule that is not a string", key)
				}
			}
		}
		return nil
	}
	return errors.New(`sandbox.network is neither "on", "off", "record" nor a table of rules`)
}

func oneOf(key, value string, known []string) error {
	if slices.Contains(known, value) {
		return nil
	}
	near, _ := suggest.Nearest(value, known)
	return turnstone.Errorf("manifest.parse", turnstone.KindInvalid, "",
		"%s: %.40q is not a known value; the nearest one is %q", key, value, near).
		WithHint("use one of " + strings.Join(known, ", "))
}

func checkBranches(s session) error {
	if s.Branch != "" && s.Name == "" {
		return errors.New("session.branch: a branch belongs to a session, and session.name is missing")
	}
	if len(s.Branches) > maxList {
		return fmt.Errorf("session.branches has more than %d patterns", maxList)
	}
	for _, pattern := range s.Branches {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" || len(pattern) > 100 ||
			strings.ContainsFunc(pattern, isControl) {
			return fmt.Errorf("session.branches: %.100q is not a pattern of names", pattern)
		}
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// templateName is the form of the names that turn template build registers.
var templateName = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func checkTemplates(templates map[string]string) error {
	if len(templates) > maxList {
		return fmt.Errorf("templates has more than %d entries", maxList)
	}
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		if !templateName.MatchString(name) {
			return fmt.Errorf("templates: %.80q is not a name of a template: use a-z, 0-9, _, . "+
				"and -", name)
		}
		if p := templates[name]; !filepath.IsLocal(filepath.FromSlash(p)) ||
			strings.ContainsFunc(p, isControl) {
			return fmt.Errorf("templates.%s: %.100q is not a path below the manifest's folder", name,
				p)
		}
	}
	return nil
}

// unknownKey returns the error about a key that no manifest has, with the nearest known one.
func unknownKey(key toml.Key) error {
	known, section := keysOf(reflect.TypeFor[file]()), ""
	if i := slices.Index(known, key[0]); i >= 0 && len(key) > 1 {
		if t := reflect.TypeFor[file]().Field(i).Type; t.Kind() == reflect.Struct {
			section, known = key[0]+".", keysOf(t)
		}
	}
	word := strings.TrimPrefix(key.String(), section)
	near, _ := suggest.Nearest(word, known)
	return turnstone.Errorf("manifest.parse", turnstone.KindInvalid, "",
		"unknown key %.80q; the nearest known one is %q", key.String(), section+near).
		WithHint("use one of " + section + strings.Join(known, ", "+section))
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, t.Field(i).Tag.Get("toml"))
	}
	return keys
}

// TemplateOf returns the path of the project's spec of that name, relative to the working directory
// as Path is; empty: the manifest names none. A nil manifest names none.
func (m *Manifest) TemplateOf(name string) string {
	if m == nil || m.Templates[name] == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(m.Path), filepath.FromSlash(m.Templates[name]))
}
