package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone"
)

// The types of a template in a registry. It is an OCI artifact: a manifest with this artifact type,
// a config of TemplateConfigType, and tar streams of TemplateLayerType. The layers are those of an
// image, so a pulled template is unpacked as an image is: the program that pulls writes the root
// image itself, and no file system that somebody else wrote is mounted.
const (
	TemplateType       = "application/vnd.turnstone.template.v1"
	TemplateConfigType = types.MediaType("application/vnd.turnstone.template.config.v1+json")
	TemplateLayerType  = types.MediaType("application/vnd.turnstone.template.layer.v1.tar+zstd")
)

// templateFormat is the version of an Artifact's JSON.
const templateFormat = 1

// An Artifact is the config of a template in a registry. All of it is the claim of its author,
// except that DiffIDs are compared with the layers.
type Artifact struct {
	Format       int    `json:"format"`
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Name         string `json:"name"`
	Description  string `json:"description,omitempty"`
	// Digest and FSHash are those of the template that was pushed. A pulled template has a digest
	// that covers its layers: a spec's digest would let an author choose the files of any spec.
	Digest  turnstone.Digest   `json:"digest"`
	FSHash  turnstone.Digest   `json:"fs_hash"`
	Env     map[string]string  `json:"env,omitempty"`
	Workdir string             `json:"workdir,omitempty"`
	User    string             `json:"user,omitempty"`
	Machine turnstone.Machine  `json:"machine,omitzero"`
	DiffIDs []turnstone.Digest `json:"diff_ids"`
	// Specs are the specs of which the template was built, the lowest first, without the content of
	// files. They are information: nothing is built from them.
	Specs []json.RawMessage `json:"specs,omitempty"`
}

// An Origin is where a template from a registry is from.
type Origin struct {
	Reference string           `json:"reference"` // with the digest
	Registry  string           `json:"registry"`
	Digest    turnstone.Digest `json:"digest"` // of the manifest, as the registry names it
	Artifact  *Artifact        `json:"template"`
}

// Origin returns the origin of a template's image that ref names.
func (img *Image) Origin(ref Reference) *Origin {
	return &Origin{ref.WithDigest(img.Digest).String(), ref.Registry(), img.Digest, img.Artifact}
}

// Bounds of an Artifact's fields.
const (
	maxTemplateName  = 128
	maxTemplateText  = 500
	maxTemplateVars  = 1000
	maxTemplateSpecs = 64
)

// ParseTemplate reads the config of a template that a registry sent.
func ParseTemplate(b []byte) (*Artifact, error) {
	if len(b) > maxManifest {
		return nil, unusable("", "its config has more than %d bytes", maxManifest)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	t := &Artifact{}
	if err := dec.Decode(t); err != nil {
		var format struct {
			Format int `json:"format"`
		}
		if json.Unmarshal(b, &format) == nil && format.Format > templateFormat {
			return nil, newer(format.Format)
		}
		return nil, unusable("", "its config cannot be read: %.200q", err.Error())
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, unusable("", "its config has data behind its end")
	}
	return t, t.check()
}

func newer(format int) error {
	return unusable("update turn", "it has the format %d; this program reads format %d", format,
		templateFormat)
}

func (t *Artifact) check() error {
	control := func(s string) bool {
		return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	}
	switch {
	case t.Format > templateFormat:
		return newer(t.Format)
	case t.Format != templateFormat:
		return unusable("", "it has the unknown format %d", t.Format)
	case t.OS != platformOS || t.Architecture != platformArch:
		return otherPlatform([]string{platform(t.OS, t.Architecture, "")})
	case t.Name == "" || len(t.Name) > maxTemplateName || control(t.Name):
		return unusable("", "its name %.80q is not valid", t.Name)
	case len(t.Description) > maxTemplateText || control(t.Description):
		return unusable("", "its description is not a line of at most %d bytes", maxTemplateText)
	case !validDigest(t.Digest) || !validDigest(t.FSHash):
		return unusable("", "its config has no digests of the template and its files")
	case len(t.DiffIDs) > maxLayers:
		return unusable("", "it has %d layers; the limit is %d", len(t.DiffIDs), maxLayers)
	case len(t.Env) > maxTemplateVars:
		return unusable("", "its environment has more than %d variables", maxTemplateVars)
	case t.Workdir != "" && (!path.IsAbs(t.Workdir) || path.Clean(t.Workdir) != t.Workdir ||
		len(t.Workdir) > 1024 || control(t.Workdir)):
		return unusable("", "its working directory %.80q is not a clean absolute path", t.Workdir)
	case t.Machine.Shape(turnstone.DefaultShape()).Validate() != nil:
		return unusable("", "its machine is out of bounds")
	case len(t.User) > 256 || control(t.User):
		return unusable("", "its user %.80q is not a valid name", t.User)
	}
	for i, spec := range t.Specs {
		if !bytes.HasPrefix(spec, []byte("{")) || i == maxTemplateSpecs {
			return unusable("", "its specs are not a list of at most %d", maxTemplateSpecs)
		}
	}
	for i, d := range t.DiffIDs {
		if !validDigest(d) {
			return unusable("", "its config names layer %d by %.80q, which is not a SHA-256 digest",
				i+1, string(d))
		}
	}
	return nil
}

// checkTemplateManifest checks the types in the manifest of a template.
func checkTemplateManifest(m *v1.Manifest) error {
	if m.ArtifactType != TemplateType || m.Config.MediaType != TemplateConfigType {
		return unusable("", "its manifest names it %.80q, with the config %.80q: it is neither an "+
			"image nor a template", m.ArtifactType, string(m.Config.MediaType))
	}
	for i, l := range m.Layers {
		if l.MediaType != TemplateLayerType {
			return unusable("", "its layer %d is %.80q, which is no layer of a template", i+1,
				string(l.MediaType))
		}
		if len(l.URLs) > 0 {
			return unusable("", "its layer %d is somewhere else than in the registry", i+1)
		}
	}
	return nil
}

// isTemplate reports whether a manifest claims to be a template's.
func isTemplate(m *v1.Manifest) bool {
	return m.ArtifactType == TemplateType || m.Config.MediaType == TemplateConfigType
}

// template reads the config and the layers of a template.
func (s *session) template(ctx context.Context, img *Image, m *v1.Manifest) error {
	if err := checkTemplateManifest(m); err != nil {
		return err
	}
	var err error
	if img.Layers, err = layers(m); err != nil {
		return err
	}
	b, err := s.small(ctx, m.Config)
	if err != nil {
		return err
	}
	t, err := ParseTemplate(b)
	if err != nil {
		return err
	}
	if len(t.DiffIDs) != len(img.Layers) {
		return unusable("", "it has %d layers, and its config lists %d", len(img.Layers),
			len(t.DiffIDs))
	}
	for i, d := range t.DiffIDs {
		img.Layers[i].DiffID = d
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		img.Env = append(img.Env, fmt.Sprintf("%s=%s", k, t.Env[k]))
	}
	img.Artifact, img.User, img.Workdir, img.Reads = t, t.User, t.Workdir, Reads
	return nil
}
