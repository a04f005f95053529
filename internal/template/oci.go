package template

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/internal/template/oci"
)

// refresh is the time for which a tag's last lookup is valid.
const refresh = 24 * time.Hour

// The store's files of registry images, below oci/:
//
//	images/<hex>.json   an image: its layers and its config; <hex> is of its repository and manifest
//	refs/<hex>.json     a reference's image, and the time of its lookup; <hex> is of the reference
//	blobs, partial      downloaded layers
//	anonymous/          the same, downloaded for documents alone: see oci.Options.Anonymous
//	bash-<hex>          a bash that runs without libraries
//
// An ociImage is a file of images/.
type ociImage struct {
	Reference string    `json:"reference"` // the first reference of its pull, with its digest
	Image     oci.Image `json:"image"`
}

// An ociRef is a file of refs/.
type ociRef struct {
	Reference string           `json:"reference"`
	Digest    turnstone.Digest `json:"digest"`   // the registry's digest of the reference
	Manifest  turnstone.Digest `json:"manifest"` // of linux/amd64
	Checked   time.Time        `json:"checked"`
	// Public means that the registry served it without credentials: see Anonymous.
	Public bool `json:"public,omitempty"`
}

// Resolve returns the spec of name, like Spec. If there is no template with this name and name is a
// reference to an image of a registry, such as python:3.12, Resolve asks the registry, unless the
// last answer is less than a day old or the reference has a digest. The result is named by its
// digest, so that later changes of the tag do not affect it. If the registry does not answer,
// Resolve uses its last answer, and reports that to progress.
func (s *Store) Resolve(ctx context.Context, name string, progress func(string)) (*Spec, error) {
	return s.resolveImage(ctx, name, refresh, progress)
}

// Pull is Resolve for images of registries only, and always asks the registry. It builds nothing.
func (s *Store) Pull(ctx context.Context, name string, progress func(string)) (*Spec, error) {
	if _, err := oci.ParseReference(name); err != nil {
		return nil, err
	}
	return s.resolveImage(ctx, name, 0, progress)
}

func (s *Store) resolveImage(ctx context.Context, name string, age time.Duration,
	progress func(string)) (*Spec, error) {
	ref, ok := s.imageReference(name)
	if !ok {
		return s.Spec(name)
	}
	return s.pull(ctx, ref, age, progress)
}

// imageReference reads name as a reference, if it has the form of one.
func (s *Store) imageReference(name string) (oci.Reference, bool) {
	if !oci.LooksLikeReference(name) || s.tagged(name) {
		return oci.Reference{}, false
	}
	ref, err := oci.ParseReference(name)
	return ref, err == nil
}

// Anonymous returns a store that uses registries as a stranger would: without the user's
// credentials, at public addresses only. It asks again for an image that was pulled with
// credentials.
func (s *Store) Anonymous() *Store {
	with := *s
	with.anonymous = true
	return &with
}

// Known reports whether the user has pulled a registry's image by this name, directly or
// indirectly, and not only a stranger.
func (s *Store) Known(name string) bool {
	ref, ok := s.imageReference(name)
	if !ok {
		return s.tagged(name)
	}
	kept, _, err := s.pulled(ref)
	return err == nil && !kept.Public
}

// RegistryOf returns the host of an image's registry, with its port if the name contains one; "" if
// name is not such an image.
func RegistryOf(name string) string {
	ref, err := oci.ParseReference(name)
	if err != nil || !IsImage(name) {
		return ""
	}
	return ref.Registry()
}

// ClosedRegistry returns the reason why the name of an image's registry cannot be on the Internet;
// "" if it may be.
func ClosedRegistry(name string) string {
	ref, err := oci.ParseReference(name)
	if err != nil {
		return ""
	}
	return ref.Closed()
}

// IsImage reports whether a template's name refers to an image of a registry.
func IsImage(name string) bool { return oci.LooksLikeReference(name) }

// CheckName returns an error of kind Invalid if name cannot be the name of a template or of a
// registry's image. It does not check whether either exists.
func CheckName(name string) error {
	if IsImage(name) {
		_, err := oci.ParseReference(name)
		return err
	}
	if !nameRule.MatchString(name) {
		return turnstone.Errorf("template.name", turnstone.KindInvalid,
			fmt.Sprintf("image %.200q", name),
			"is not the name of a template").
			WithHint("list the templates with turn template ls, or write an image of a registry " +
				"as NAME:TAG")
	}
	return nil
}

// SameImage reports whether a request for asked matches the template called stands: the names are
// equal, or asked is a reference whose tag once had that digest.
func SameImage(asked, stands string) bool {
	if asked == stands {
		return true
	}
	if !oci.LooksLikeReference(asked) || !oci.LooksLikeReference(stands) {
		return false
	}
	a, err := oci.ParseReference(asked)
	if err != nil {
		return false
	}
	b, err := oci.ParseReference(stands)
	return err == nil && (a == b || a.Digest() == "" && a.WithDigest(b.Digest()) == b)
}

// pull returns the spec of an image. It asks the registry if the image is unknown, or if the last
// answer is older than age.
func (s *Store) pull(ctx context.Context, ref oci.Reference, age time.Duration,
	progress func(string)) (*Spec, error) {
	if progress == nil {
		progress = func(string) {}
	}
	kept, spec, err := s.pulled(ref)
	if err == nil && s.anonymous && !kept.Public {
		err = fmt.Errorf("%s: was pulled with credentials", ref)
	}
	if err == nil && !spec.Command.Unknown && (ref.Digest() != "" || time.Since(kept.Checked) < age) {
		return spec, nil
	}
	progress("asking registry " + ref.Registry() + " for " + ref.String())
	img, pullErr := s.ociClient(progress).Resolve(ctx, ref)
	if s.anonymous && turnstone.KindOf(pullErr) == turnstone.KindNotFound {
		pullErr = turnstone.NewError("template.pull", turnstone.KindNotFound, "", pullErr).
			WithHint("to use your credentials, which a document does not get, name the image with " +
				"--image " + ref.String())
	}
	if pullErr != nil {
		if err != nil || ctx.Err() != nil || age == 0 {
			return nil, pullErr
		}
		progress(fmt.Sprintf("%v: using %s as of %s", pullErr, ref,
			kept.Checked.Local().Format("2006-01-02 15:04")))
		return spec, nil
	}
	if err := s.keepImage(ref, img); err != nil {
		return nil, turnstone.NewError("template.pull", turnstone.KindUnavailable,
			"image "+ref.String(), err).WithHint("make sure that " + s.dir + " can be written")
	}
	return s.imageSpec(ref, img)
}

func (s *Store) ociClient(progress func(string)) *oci.Client {
	return oci.New(oci.Options{Dir: s.ociPath(), Progress: progress, Anonymous: s.anonymous})
}

func (s *Store) ociPath(elem ...string) string {
	return filepath.Join(append([]string{s.dir, "oci"}, elem...)...)
}

func (s *Store) refPath(reference string) string {
	return s.ociPath("refs", turnstone.DigestBytes([]byte(reference)).Hex()+".json")
}

func (s *Store) imagePath(repository string, manifest turnstone.Digest) string {
	return s.ociPath("images",
		turnstone.DigestBytes([]byte(repository+"@"+string(manifest))).Hex()+".json")
}

// keepImage records a reference's image, under the reference itself and under the reference with
// the digest.
func (s *Store) keepImage(ref oci.Reference, img *oci.Image) error {
	for _, sub := range []string{"images", "refs"} {
		if err := os.MkdirAll(s.ociPath(sub), 0o700); err != nil {
			return err
		}
	}
	pinned := ref.WithDigest(img.Digest)
	err := writeJSON(s.imagePath(ref.Repository(), img.Manifest), ociImage{pinned.String(), *img})
	if err != nil {
		return err
	}
	for _, name := range slices.Compact([]string{pinned.String(), ref.String()}) {
		rec := ociRef{name, img.Digest, img.Manifest, time.Now().UTC().Truncate(time.Second),
			s.anonymous || s.wasPublic(name, img.Digest)}
		if err := writeJSON(s.refPath(name), rec); err != nil {
			return err
		}
	}
	return nil
}

// wasPublic reports whether the registry served name's image without credentials before.
func (s *Store) wasPublic(name string, digest turnstone.Digest) bool {
	var rec ociRef
	return readKept(s.refPath(name), &rec) == nil && rec.Public && rec.Digest == digest
}

// readKept reads a small file of oci/. A damaged file counts as missing: the registry has the data.
func readKept(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// pulled returns the recorded image of a reference without a request.
func (s *Store) pulled(ref oci.Reference) (*ociRef, *Spec, error) {
	var rec ociRef
	if err := readKept(s.refPath(ref.String()), &rec); err != nil {
		return nil, nil, err
	}
	if rec.Reference != ref.String() || !validDigest(rec.Digest) || !validDigest(rec.Manifest) {
		return nil, nil, fmt.Errorf("%s: is of another reference", s.refPath(ref.String()))
	}
	img, err := s.keptImage(ref, rec.Manifest)
	if err != nil {
		return nil, nil, err
	}
	img.Digest = rec.Digest
	spec, err := s.imageSpec(ref, img)
	return &rec, spec, err
}

func (s *Store) keptImage(ref oci.Reference, manifest turnstone.Digest) (*oci.Image, error) {
	var rec ociImage
	if err := readKept(s.imagePath(ref.Repository(), manifest), &rec); err != nil {
		return nil, err
	}
	if rec.Image.Manifest != manifest {
		return nil, fmt.Errorf("%s: is of another image", s.imagePath(ref.Repository(), manifest))
	}
	rec.Image.Reference = ref
	return &rec.Image, nil
}

// Bounds of an image's environment: somewhat more than programs can be started with.
const (
	maxImageVars = 1000
	maxImageEnv  = 256 << 10 // bytes
)

// imageSpec returns the spec of an image: its name has the registry's digest, and its base has the
// manifest for this platform.
func (s *Store) imageSpec(ref oci.Reference, img *oci.Image) (*Spec, error) {
	spec := &Spec{Name: ref.WithDigest(img.Digest).String(),
		Description: "image of the registry " + ref.Registry(),
		Base:        ociBase + ref.Repository() + "@" + string(img.Manifest), Packages: []string{},
		Env:     map[string]string{},
		Workdir: cmp.Or(img.Workdir, DefaultWorkdir), User: img.User, image: true, Command: img.Command()}
	if t := img.Artifact; t != nil {
		spec.Description = "template " + t.Name + " of the registry " + ref.Registry()
		spec.origin = img.Origin(ref)
	}
	total := 0
	for _, kv := range img.Env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || !envRule.MatchString(name) || strings.IndexByte(value, 0) >= 0 {
			continue // no shell could have this variable
		}
		spec.Env[name] = value
		total += len(kv)
	}
	if len(spec.Env) > maxImageVars || total > maxImageEnv {
		return nil, turnstone.Errorf("template.pull", turnstone.KindInvalid, "image "+ref.String(),
			"its environment has more than %d variables, or %d bytes", maxImageVars, maxImageEnv)
	}
	return spec, nil
}

// buildOCI is the builder for specs of imageSpec.
func (s *Store) buildOCI(ctx context.Context, spec *Spec, out *os.File, tempDir string,
	log io.Writer, progress func(string)) (*built, error) {
	base, err := oci.ParseReference(strings.TrimPrefix(spec.Base, ociBase))
	if err != nil {
		return nil, err
	}
	client := s.ociClient(func(what string) {
		fmt.Fprintln(log, what)
		progress(what)
	})
	img, err := s.keptImage(base, base.Digest())
	if err != nil {
		// The record is lost or damaged: the digest is sufficient.
		if img, err = client.Resolve(ctx, base); err != nil {
			return nil, err
		}
	}
	for i, l := range img.Layers {
		fmt.Fprintf(log, "layer %d of %d: %s, %d bytes\n", i+1, len(img.Layers), l.Digest, l.Size)
	}
	res, err := client.Unpack(ctx, oci.Request{Image: img, Out: out, TempDir: tempDir,
		Workdir: spec.Workdir, Log: log,
		Bash: func(ctx context.Context) ([]byte, error) {
			return s.staticBash(ctx, log, progress)
		}})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "%d files with %d bytes\n", res.Files, res.Bytes)
	return &built{packages: debian.Installed(string(res.Status))}, nil
}

// pulledNames returns the names of known images: a tag's name, or the name with the digest if no
// tag refers to the image now.
func (s *Store) pulledNames() ([]string, error) {
	entries, err := os.ReadDir(s.ociPath("refs"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	pinned, tagged := map[string]bool{}, []string{}
	hidden := map[string]bool{}
	for _, e := range entries {
		var rec ociRef
		if readKept(s.ociPath("refs", e.Name()), &rec) != nil {
			continue
		}
		ref, err := oci.ParseReference(rec.Reference)
		switch {
		case err != nil || s.refPath(rec.Reference) != s.ociPath("refs", e.Name()) ||
			!s.isPulled(ref):
		case ref.Digest() != "":
			pinned[rec.Reference] = true
		default:
			tagged = append(tagged, rec.Reference)
			hidden[ref.WithDigest(rec.Digest).String()] = true
		}
	}
	for name := range pinned {
		if !hidden[name] {
			tagged = append(tagged, name)
		}
	}
	slices.Sort(tagged)
	return tagged, nil
}

func (s *Store) isPulled(ref oci.Reference) bool {
	_, _, err := s.pulled(ref)
	return err == nil
}

// forgetPulled removes the record of an image under one of its names. The other names stay valid.
func (s *Store) forgetPulled(name string) error {
	ref, err := oci.ParseReference(name)
	if err != nil {
		return err
	}
	rec, _, err := s.pulled(ref)
	if err != nil {
		rec = &ociRef{Digest: ref.Digest()}
	}
	for _, gone := range slices.Compact([]string{ref.String(),
		ref.WithDigest(rec.Digest).String()}) {
		if err := os.Remove(s.refPath(gone)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// bashPackage is Debian's bash without libraries, and its path in the package.
const (
	bashPackage = "bash-static"
	bashFile    = "bin/bash-static"
	maxBash     = 16 << 20 // bytes
)

// keptBash returns the cached bash, if there is an intact one.
func (s *Store) keptBash() []byte {
	found, err := filepath.Glob(s.ociPath("bash-*"))
	if err != nil {
		return nil
	}
	for _, path := range found {
		if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxBash {
			continue
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.HasPrefix(b, []byte("\x7fELF")) &&
			"bash-"+turnstone.DigestBytes(b).Hex() == filepath.Base(path) {
			return b
		}
	}
	return nil
}

func (s *Store) keepBash(b []byte) error {
	return filestamp.WriteFile(s.ociPath("bash-"+turnstone.DigestBytes(b).Hex()), b, 0o600)
}
