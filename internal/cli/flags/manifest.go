package flags

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/template/builtin"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/manifest"
)

// ForManifest is the flag of commands that use a project's manifest.
type ForManifest struct {
	Manifest string `help:"Use this manifest; none: use none." placeholder:"FILE|none"`
}

// Project returns the manifest for what is in the folder dir: the one that the flag names, or the
// nearest; nil: there is none. warn gets a line about one that is not used.
func (f *ForManifest) Project(dir string, warn io.Writer) (*Project, error) {
	switch f.Manifest {
	case "none":
		return nil, nil
	case "":
	default:
		m, err := manifest.Load(f.Manifest)
		return (*Project)(m), err
	}
	home, _ := os.UserHomeDir()
	m, notice, err := manifest.Find(dir, home)
	if notice != "" {
		terminal.Println(warn, "turn: "+notice)
	}
	return (*Project)(m), err
}

// WriteManifest is manifest.Write.
func WriteManifest(dir string) (string, error) { return manifest.Write(dir) }

// A Project is a manifest; nil: there is none.
type Project manifest.Manifest

// Values returns the defaults for documents.
func (p *Project) Values() document.Defaults {
	if p == nil {
		return document.Defaults{}
	}
	return p.Defaults
}

// Spec returns the path of the project's own spec of that name, or the name if the project has
// none. The names of built-in templates are not the project's.
func (p *Project) Spec(name string) string {
	if _, err := fs.Stat(builtin.FS, name+"/template.toml"); err == nil ||
		strings.ContainsAny(name, `./\`) { // a path
		return name
	}
	path := (*manifest.Manifest)(p).TemplateOf(name)
	switch {
	case path == "":
		return name
	case !filepath.IsAbs(path) && !strings.HasPrefix(path, ".."):
		return "." + string(filepath.Separator) + path // not a name or an image
	}
	return path
}

// ToBuild adds to an error about an unknown image that the project has its spec.
func (p *Project) ToBuild(image string, err error) error {
	if turnstone.KindOf(err) != turnstone.KindNotFound || p.Spec(image) == image {
		return err
	}
	return turnstone.NewError("run", turnstone.KindNotFound, "template "+image, err).
		WithHint("build the project's own spec: turn template build " + image)
}
