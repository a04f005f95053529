package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone"
)

// The platform of sandboxes.
const (
	platformOS   = "linux"
	platformArch = "amd64"
)

// maxIndexes bounds the nesting of indexes.
const maxIndexes = 3

// Resolve asks the registry for ref on linux/amd64, and returns the image without its layers'
// content. Errors are *turnstone.Error: Invalid for content that cannot be a sandbox's root
// (another architecture, not an image), NotFound, Integrity for data that does not match its
// digest, Timeout, and Unavailable if the registry does not answer.
func (c *Client) Resolve(ctx context.Context, ref Reference) (*Image, error) {
	s, err := c.connect(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer s.close()
	img, err := s.resolve(ctx)
	return img, ref.failed(err)
}

func (s *session) resolve(ctx context.Context) (*Image, error) {
	desc, err := s.get(ctx, s.ref.asked())
	if err != nil {
		return nil, err
	}
	img := &Image{Reference: s.ref, Digest: turnstone.Digest(desc.Digest.String())}
	if !validDigest(img.Digest) {
		return nil, unusable("", "the registry names it by %s, and not by a digest of SHA-256",
			desc.Digest.Algorithm)
	}
	for depth := 0; desc.MediaType.IsIndex(); depth++ {
		if depth == maxIndexes {
			return nil, unusable("", "its indexes are nested more than %d deep", maxIndexes)
		}
		next, err := choose(desc.Manifest)
		if err != nil {
			return nil, err
		}
		if desc, err = s.get(ctx, s.digest(next)); err != nil {
			return nil, err
		}
	}
	img.Manifest = turnstone.Digest(desc.Digest.String())
	return img, s.describe(ctx, img, desc)
}

// get fetches a manifest or an index. The library bounds it, and compares it with its digest if the
// request named one.
func (s *session) get(ctx context.Context, ref name.Reference) (*remote.Descriptor, error) {
	var desc *remote.Descriptor
	err := s.c.retry(ctx, func(ctx context.Context) (_ bool, err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, 2*s.c.opts.Stall, errStalled)
		defer cancel()
		desc, err = remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(s.trans))
		if err != nil && strings.Contains(err.Error(), "does not match requested digest") {
			err = mismatch("the manifest %s came with another digest", ref.Identifier())
		}
		return false, stalled(ctx, err)
	})
	switch {
	case err != nil:
		return nil, err
	case len(desc.Manifest) > maxManifest:
		return nil, unusable("", "its manifest has more than %d bytes", maxManifest)
	}
	return desc, oneKind(desc)
}

// oneKind rejects a document that another registry, or the same one with another Content-Type, could
// name an index instead of a manifest or the other way around: its digest would stand for two images
// (OCI distribution specification, GHSA-mc8v-mgrf-8f4m).
func oneKind(desc *remote.Descriptor) error {
	var doc struct {
		MediaType types.MediaType `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
		Config    json.RawMessage `json:"config"`
		Layers    json.RawMessage `json:"layers"`
	}
	if json.Unmarshal(desc.Manifest, &doc) != nil {
		return nil // who reads it as something reports it
	}
	if doc.Manifests != nil && (doc.Config != nil || doc.Layers != nil) {
		return unusable("", "it is an index and a manifest at the same time")
	}
	if doc.MediaType != "" && desc.MediaType != "" && doc.MediaType != desc.MediaType &&
		(doc.MediaType.IsIndex() || desc.MediaType.IsIndex()) {
		return unusable("", "the registry names it %.80q, and it names itself %.80q",
			string(desc.MediaType), string(doc.MediaType))
	}
	return nil
}

// choose returns the platform's manifest from an index.
func choose(index []byte) (turnstone.Digest, error) {
	list, err := v1.ParseIndexManifest(bytes.NewReader(index))
	if err != nil {
		return "", unusable("", "its index cannot be read: %v", err)
	}
	var there []string
	var found *v1.Descriptor
	for i, m := range list.Manifests {
		p := m.Platform
		switch {
		case p == nil && m.MediaType.IsIndex() && found == nil:
			found = &list.Manifests[i]
		case p == nil || p.OS == "unknown": // data about images, such as attestations
		case p.OS == platformOS && p.Architecture == platformArch:
			// A variant may need a newer processor than the host's.
			if found == nil || found.Platform == nil || found.Platform.Variant != "" &&
				p.Variant == "" {
				found = &list.Manifests[i]
			}
		default:
			there = append(there, platform(p.OS, p.Architecture, p.Variant))
		}
	}
	if found == nil {
		return "", otherPlatform(there)
	}
	d := turnstone.Digest(found.Digest.String())
	if !validDigest(d) {
		return "", unusable("", "its index names %.80q, which is not a SHA-256 digest", string(d))
	}
	return d, nil
}

func platform(os, arch, variant string) string {
	s := fmt.Sprintf("%.40s/%.40s", os, arch)
	if variant != "" {
		s += fmt.Sprintf("/%.40s", variant)
	}
	return s
}

func otherPlatform(there []string) error {
	slices.Sort(there)
	there = slices.Compact(there)
	if len(there) > 20 {
		there = append(there[:20], "…")
	}
	what := "nothing"
	if len(there) > 0 {
		what = strings.Join(there, ", ")
	}
	return unusable("sandboxes are linux/amd64; take another image, or another tag of this one",
		"it is for %s, and not for %s/%s", what, platformOS, platformArch)
}

// describe reads the image's manifest and config.
func (s *session) describe(ctx context.Context, img *Image, desc *remote.Descriptor) error {
	switch desc.MediaType {
	case types.DockerManifestSchema1, types.DockerManifestSchema1Signed:
		return unusable("push it again with a current tool",
			"it is of the image format that ended in 2019 (schema 1)")
	case types.OCIManifestSchema1, types.DockerManifestSchema2, "":
	default:
		return unusable("", "the registry has %.80q under this name, which is not an image",
			string(desc.MediaType))
	}
	m, err := v1.ParseManifest(bytes.NewReader(desc.Manifest))
	if err != nil {
		return unusable("", "its manifest cannot be read: %v", err)
	}
	if isTemplate(m) {
		return s.template(ctx, img, m)
	}
	switch m.Config.MediaType {
	case types.DockerConfigJSON, types.OCIConfigJSON:
	default:
		return unusable("", "it is not an image: its config is %.80q", string(m.Config.MediaType))
	}
	if img.Layers, err = layers(m); err != nil {
		return err
	}
	b, err := s.small(ctx, m.Config)
	if err != nil {
		return err
	}
	return img.config(b)
}

// layers returns the layers in a manifest.
func layers(m *v1.Manifest) ([]Layer, error) {
	if len(m.Layers) > maxLayers {
		return nil, unusable("", "it has %d layers; the limit is %d", len(m.Layers), maxLayers)
	}
	var out []Layer
	var total int64
	for i, l := range m.Layers {
		d := turnstone.Digest(l.Digest.String())
		switch {
		case !validDigest(d):
			return nil, unusable("",
				"its layer %d is named by %.80q, which is not a SHA-256 digest", i+1, string(d))
		case strings.Contains(string(l.MediaType), "encrypted"):
			return nil, unusable("", "its layer %d is encrypted", i+1)
		case l.Size < 0 || l.Size > maxPacked-total:
			return nil, unusable("", "its layers have more than %s",
				turnstone.Bytes(maxPacked).Human())
		}
		total += l.Size
		out = append(out, Layer{Digest: d, Size: l.Size})
	}
	return out, nil
}

// small reads a blob with a small size limit, and compares it with its digest.
func (s *session) small(ctx context.Context, of v1.Descriptor) ([]byte, error) {
	d := turnstone.Digest(of.Digest.String())
	if !validDigest(d) || of.Size <= 0 || of.Size > maxManifest {
		return nil, unusable("", "its config is named by %.80q, with %d bytes", string(d), of.Size)
	}
	for {
		f, kept, err := s.blob(ctx, d, of.Size, new(atomic.Int64))
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxManifest))
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		if turnstone.DigestBytes(b) == d {
			return b, nil
		}
		if err := s.c.forget(d); err != nil || !kept {
			return nil, errors.Join(mismatch("the config %s is damaged on this machine's disk",
				d.Short()), err)
		}
	}
}

// config reads an image's config.
func (img *Image) config(b []byte) error {
	cf, err := v1.ParseConfigFile(bytes.NewReader(b))
	if err != nil {
		return unusable("", "its config cannot be read: %v", err)
	}
	// Tools that append to an empty image omit these fields, against the specification; Docker
	// accepts such images too.
	if cf.OS != "" && cf.OS != platformOS || cf.Architecture != "" &&
		cf.Architecture != platformArch {
		return otherPlatform([]string{platform(cf.OS, cf.Architecture, cf.Variant)})
	}
	if len(cf.RootFS.DiffIDs) != len(img.Layers) {
		return unusable("", "it has %d layers, and its config lists %d", len(img.Layers),
			len(cf.RootFS.DiffIDs))
	}
	for i, d := range cf.RootFS.DiffIDs {
		img.Layers[i].DiffID = turnstone.Digest(d.String())
		if !validDigest(img.Layers[i].DiffID) {
			return unusable("", "its config names layer %d by %.80q, which is not a SHA-256 digest",
				i+1, d.String())
		}
	}
	img.Env, img.User, img.Reads = cf.Config.Env, cf.Config.User, Reads
	img.Entrypoint, img.Cmd = cf.Config.Entrypoint, cf.Config.Cmd
	if dir := cf.Config.WorkingDir; dir != "" && path.Clean("/"+dir) != "/" {
		img.Workdir = path.Clean("/" + dir)
	}
	switch {
	case len(img.User) > 256 || strings.ContainsAny(img.User, "\x00\n"):
		return unusable("", "its user %.80q is not a valid name", img.User)
	case len(img.Workdir) > 1024 || strings.ContainsAny(img.Workdir, "\x00\n"):
		return unusable("", "its working directory %.80q is not a path", img.Workdir)
	case !startable(img.Entrypoint, img.Cmd):
		return unusable("", "its command has more than %d arguments or %d bytes, or one with a zero byte",
			maxArgs, maxArgBytes)
	}
	return nil
}

// startable reports whether a program can have these arguments.
func startable(parts ...[]string) bool {
	args, total := 0, 0
	for _, part := range parts {
		for _, a := range part {
			if args, total = args+1, total+len(a); strings.ContainsRune(a, 0) {
				return false
			}
		}
	}
	return args <= maxArgs && total <= maxArgBytes
}

func validDigest(d turnstone.Digest) bool {
	_, err := turnstone.ParseDigest(string(d))
	return err == nil
}

// forget removes an invalid blob.
func (c *Client) forget(d turnstone.Digest) error { return removeIfThere(c.path("blobs", d.Hex())) }
