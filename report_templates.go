package turnstone

import (
	"fmt"
	"sort"
	"time"
)

// Trimmed counts what was removed from a cache.
type Trimmed struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// A BuildEvent describes the progress of a template's build.
type BuildEvent struct {
	Template string `json:"template"`
	Phase    string `json:"phase"` // such as "downloading"
	// Item is the file that is being fetched; Done and Total are its bytes, and Rate is the bytes
	// per second of all downloads. Total is -1 if unknown.
	Item  string  `json:"item,omitempty"`
	Done  int64   `json:"done,omitempty"`
	Total int64   `json:"total,omitempty"`
	Rate  int64   `json:"rate,omitempty"`
	Took  float64 `json:"seconds,omitempty"` // since the build's start
}

// String returns the event as a line of text.
func (e BuildEvent) String() string {
	if e.Item == "" {
		return "template " + e.Template + ": " + e.Phase
	}
	line := fmt.Sprintf("template %s: %s: %s, %s", e.Template, e.Phase, e.Item,
		Bytes(e.Done).Human())
	if e.Total > 0 {
		line += " of " + Bytes(e.Total).Human()
	}
	if e.Rate > 0 {
		line += fmt.Sprintf(", %s/s", Bytes(e.Rate).Human())
	}
	return line
}

// A KeptBuild is the result of one build. A spec that changed later, and an image that was set
// aside for a newer image, leave results that no name refers to.
type KeptBuild struct {
	// of the spec; for an image that was set aside, the image's
	Digest Digest         `json:"digest"`
	Name   string         `json:"name,omitempty"` // its name at the time of the build
	Base   Digest         `json:"base,omitempty"` // of the build below this layer
	Layer  *TemplateLayer `json:"layer,omitempty"`
	Size   int64          `json:"size"` // bytes in its folder
	Built  time.Time      `json:"built"`
	Dir    string         `json:"-"`
}

// A TemplateLayer is a spec's addition to its base: a tree in the store that includes the base's
// tree. A template with layers has the root image of the template at the bottom; sandboxes get the
// layers as images above it.
type TemplateLayer struct {
	Spec  Digest  `json:"spec"`  // of the spec that was built
	Tree  TreeRef `json:"tree"`  // all files, including the base's
	Bytes int64   `json:"bytes"` // of the file contents that the layer adds
	Files int     `json:"files"` // paths that the layer adds, changes or removes
}

// A Machine is the default shape of a template's sandboxes, which a document or its caller can
// override. Zero values select the defaults.
type Machine struct {
	CPUs   int   `json:"cpus,omitempty"`
	Memory Bytes `json:"memory,omitempty"`
	Disk   Bytes `json:"disk,omitempty"`
}

// Over returns m with base's values for its zero values.
func (m Machine) Over(base Machine) Machine {
	if m.CPUs == 0 {
		m.CPUs = base.CPUs
	}
	if m.Memory == 0 {
		m.Memory = base.Memory
	}
	if m.Disk == 0 {
		m.Disk = base.Disk
	}
	return m
}

// Shape returns shape with m's values in it.
func (m Machine) Shape(shape Shape) Shape {
	m = m.Over(Machine{CPUs: shape.CPUs, Memory: shape.Memory, Disk: shape.Disk})
	shape.CPUs, shape.Memory, shape.Disk = m.CPUs, m.Memory, m.Disk
	return shape
}

// A Template is a built template.
type Template struct {
	Name       string            `json:"name"`
	Digest     Digest            `json:"digest"`      // of the spec: the template's permanent name
	Root       string            `json:"root"`        // path of the read-only root image (EROFS)
	RootDigest Digest            `json:"root_digest"` // of the file at Root
	Size       int64             `json:"size"`        // of the file at Root, in bytes
	Packages   map[string]string `json:"packages"`    // installed Debian packages: name → version
	Pip        map[string]string `json:"pip,omitempty"`
	Npm        map[string]string `json:"npm,omitempty"`
	Env        map[string]string `json:"env"`
	Workdir    string            `json:"workdir"`
	User       string            `json:"user,omitempty"` // the user of steps; empty: root
	Command    ImageCommand      `json:"-"`              // of the registry's image below it
	Machine    Machine           `json:"machine,omitzero"`
	Layers     []TemplateLayer   `json:"layers,omitempty"` // above the image, the lowest first
	Built      time.Time         `json:"built"`
	BuildTime  Millis            `json:"build_ms"`
}

// An ImageCommand is what a container of an image starts, as the image's config has it. Only a process
// that asks for it starts it.
type ImageCommand struct {
	Entrypoint []string
	Cmd        []string // its arguments, or the whole command without Entrypoint
	Workdir    string   // in which it begins; empty: /
	Unknown    bool     // an earlier version has read the config, without the command
}

// None reports whether an image starts nothing.
func (c ImageCommand) None() bool { return len(c.Entrypoint)+len(c.Cmd) == 0 }

// Or returns c, or, if an image starts nothing, base.
func (c ImageCommand) Or(base ImageCommand) ImageCommand {
	if c.None() {
		return base
	}
	return c
}

// In returns c in the directory dir, unless that is empty.
func (c ImageCommand) In(dir string) ImageCommand {
	if dir != "" {
		c.Workdir = dir
	}
	return c
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

// TemplatePruned lists what a prune of templates removed, or would remove.
type TemplatePruned struct {
	DryRun   bool            `json:"dry_run"`
	Builds   []KeptBuild     `json:"builds"`
	Stays    []TemplateStays `json:"stays"` // needed builds without a known template
	Logs     int             `json:"logs"`
	Packages Trimmed         `json:"packages"`    // of the cache of package registries
	Images   int64           `json:"image_bytes"` // of downloaded layers of images
	Freed    int64           `json:"freed_bytes"`
}

// TemplateStays is a build that is needed, and the reason.
type TemplateStays struct {
	KeptBuild
	Why string `json:"why"`
}

// A TemplatePushed is a template that was put into a registry.
type TemplatePushed struct {
	Template       string `json:"template"`
	TemplateDigest Digest `json:"template_digest"` // here
	Reference      string `json:"reference"`
	Pinned         string `json:"pinned"` // the reference with the digest
	Digest         Digest `json:"digest"` // of the manifest in the registry
	Size           int64  `json:"size"`   // of the packed layers
}
