package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci"
)

// pulledSpec returns the spec of an image that was pulled before.
func (s *Store) pulledSpec(ref oci.Reference) (*Spec, error) {
	_, spec, err := s.pulled(ref)
	if err == nil || turnstone.KindOf(err) == turnstone.KindInvalid {
		return spec, err
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("is neither a template nor a pulled image")
	}
	hint := "turn template pull " + ref.String()
	if near := ref.Near(); near != "" {
		hint += "; the built-in template " + near + " comes near to it"
	}
	return nil, turnstone.NewError("template.find", turnstone.KindNotFound, "image "+ref.String(),
		err).WithHint(hint)
}

// label returns the name of a template for progress messages. A digest is not meaningful to users.
func (s *Spec) label() string {
	if ref, digest, ok := strings.Cut(s.Name, "@sha256:"); ok && s.image {
		return "image " + ref + "@" + digest[:min(12, len(digest))]
	}
	return "template " + s.Name
}

// baseReference returns the reference of the image below a spec.
func baseReference(spec *Spec) (oci.Reference, error) {
	ref, err := oci.ParseReference(strings.TrimPrefix(spec.Base, ociBase))
	if err != nil {
		return ref, turnstone.NewError("template.base", turnstone.KindInvalid,
			"template "+spec.Name,
			err).WithHint("write the base as oci:python:3.12, or with its digest")
	}
	return ref, nil
}

// pullBase asks the registry for the image below spec, if there is one.
func (s *Store) pullBase(ctx context.Context, spec *Spec, progress func(string)) error {
	if !strings.HasPrefix(spec.Base, ociBase) {
		return nil
	}
	ref, err := baseReference(spec)
	if err == nil {
		_, err = s.pull(ctx, ref, refresh, progress)
	}
	return err
}

// resolveOCI adds the values that spec takes from the image below it, as of the spec's build. A
// spec without files becomes the image's spec, with its own environment and working directory;
// other specs are layered on the image.
func (s *Store) resolveOCI(spec *Spec) error {
	if spec.image {
		return nil
	}
	ref, err := baseReference(spec)
	if err != nil {
		return err
	}
	base, err := s.pulledSpec(ref)
	if err != nil {
		return fmt.Errorf("base of template %s: %w", spec.Name, err)
	}
	spec.Command = base.Command.In(spec.Workdir)
	spec.Workdir, spec.User = cmp.Or(spec.Workdir, base.Workdir), cmp.Or(spec.User, base.User)
	if spec.layered() {
		spec.base, spec.BaseDigest = base, base.Digest()
		return nil
	}
	env := maps.Clone(base.Env)
	maps.Copy(env, spec.Env)
	spec.Base, spec.Env, spec.image, spec.origin = base.Base, env, true, base.origin
	return nil
}
