package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/registry"
)

// Digest is the template's permanent name: the SHA-256 of everything that affects the image and its
// sandboxes. The name and the description do not. Two specs with one digest share one image.
func (s *Spec) Digest() turnstone.Digest {
	type file struct {
		Path   string           `json:"path"`
		Mode   uint32           `json:"mode"`
		Digest turnstone.Digest `json:"digest"`
	}
	// Later fields must be omitted from the JSON when they are empty, so that existing specs keep
	// their digests.
	canonical := struct {
		Builder      int               `json:"builder"`
		Architecture string            `json:"architecture"`
		Base         string            `json:"base"`
		Packages     []string          `json:"packages"`
		Env          map[string]string `json:"env"` // encoding/json sorts the keys
		Files        []file            `json:"files"`
		Workdir      string            `json:"workdir"`

		LayerBuilder int               `json:"layer_builder,omitempty"`
		BaseDigest   turnstone.Digest  `json:"base_digest,omitempty"`
		Pip          []string          `json:"pip,omitempty"`
		Npm          []string          `json:"npm,omitempty"`
		Commands     []string          `json:"commands,omitempty"`
		User         string            `json:"user,omitempty"`
		Machine      turnstone.Machine `json:"machine,omitzero"`
		Network      []string          `json:"network,omitempty"`
		NoNetwork    bool              `json:"no_network,omitempty"`
		Lock         turnstone.Digest  `json:"lock,omitempty"`
		Wheels       []registry.Wheel  `json:"wheels,omitempty"`
		OwnWorkdir   bool              `json:"own_workdir,omitempty"` // it belongs to the user: not in earlier builds
	}{Builder: builderVersion, Architecture: "amd64", Base: s.Base,
		Packages: append([]string{}, s.Packages...),
		Env:      map[string]string{}, Files: []file{}, Workdir: s.Workdir,
		BaseDigest: s.BaseDigest, Pip: s.Pip, Npm: s.Npm, Commands: s.Commands, User: s.User,
		Machine: s.Machine,
		Network: s.Network, NoNetwork: s.NoNetwork, Lock: s.Lock.digest(), Wheels: s.Wheels, OwnWorkdir: s.User != "" && s.layered()}
	if s.layered() {
		canonical.LayerBuilder = layerBuilderVersion
	}
	if s.onTemplate() {
		canonical.Base = "template" // independent of its local name
	}
	for k, v := range s.Env {
		canonical.Env[k] = v
	}
	for _, f := range s.Files {
		canonical.Files = append(canonical.Files,
			file{f.Path, uint32(f.Mode), turnstone.DigestBytes(f.Content)})
	}
	h := sha256.New()
	enc := json.NewEncoder(h)
	enc.SetEscapeHTML(false)  // so that JSON encoders of other languages produce the same text
	_ = enc.Encode(canonical) // the types above always encode, and a hash accepts every write
	return turnstone.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}
