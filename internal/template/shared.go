package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/template/oci"
)

// tagRule is the name of a template with a local tag.
var tagRule = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,62}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)

// tagged reports whether name is a local tag. It then stands for a registered spec, although it has
// the form of a reference to an image.
func (s *Store) tagged(name string) bool {
	return tagRule.MatchString(name) && exists(s.specPath(name))
}

func (s *Store) specPath(name string) string {
	return filepath.Join(s.dir, "specs", name+".json")
}

// Tag gives the template called name, as it is now, the second name name:tag. With replace it moves
// an existing tag.
func (s *Store) Tag(ctx context.Context, name, tag string, replace bool) (*Entry, error) {
	as, _, _ := strings.Cut(name, ":")
	as += ":" + tag
	if !tagRule.MatchString(as) {
		return nil, turnstone.Errorf("template.tag", turnstone.KindInvalid,
			fmt.Sprintf("tag %.200q", as), "want letters, digits, '.', '_' and '-', at most 63").
			WithHint("write turn template tag NAME TAG; only a template has tags here, and not an " +
				"image of a registry")
	}
	if ref, image := s.imageReference(as); image && s.isPulled(ref) {
		return nil, turnstone.Errorf("template.tag", turnstone.KindInvalid, "tag "+as,
			"is the name of a pulled image").WithHint("choose another tag")
	}
	spec, _, err := s.written(name)
	if err != nil {
		return nil, err
	}
	to := *spec
	to.Name = as
	if err := s.mayRegister(&to, replace, "move the tag with --force"); err != nil {
		return nil, err
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	if err := writeJSON(s.specPath(as), to); err != nil {
		return nil, turnstone.NewError("template.tag", turnstone.KindUnavailable, as, err)
	}
	if spec, _, err = s.lookup(as); err != nil {
		return nil, err
	}
	e := s.entry(ctx, spec, false)
	return &e, nil
}

// Lower returns the spec of the template below s; nil if there is none.
func (s *Spec) Lower() *Spec { return s.base }

// Registry returns the client of registries, which uses the user's credentials.
func (s *Store) Registry(progress func(string)) *oci.Client { return s.ociClient(progress) }

// mayRegister rejects a spec whose name stands for another spec, unless the caller replaces it.
func (s *Store) mayRegister(spec *Spec, replace bool, hint string) error {
	fail := func(why, hint string) error {
		return turnstone.Errorf("template.register", turnstone.KindInvalid, "template "+spec.Name,
			"%s", why).WithHint(hint)
	}
	if _, err := fs.Stat(s.builtin, spec.Name); err == nil {
		return fail("is the name of a built-in template", "give it another name, such as with --name of turn template pull")
	}
	have, err := s.registered(spec.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist), replace:
		return nil
	case err != nil:
		return err
	case !same(have, spec):
		return fail("another template has this name here", hint)
	}
	return nil
}

// PullOptions configure PullTemplate.
type PullOptions struct {
	Name     string // of the template here; empty: its own
	Replace  bool   // a different template of that name
	Progress func(string)
}

// PullTemplate pulls what ref names. A template is registered under its name, with the artifact as
// its base, so that its digest covers its layers, whatever the artifact says of its spec. An image
// is a template under its reference.
func (s *Store) PullTemplate(ctx context.Context, name string, opts PullOptions) (
	*turnstone.Template, error) {
	spec, err := s.Pull(ctx, name, opts.Progress)
	if err != nil {
		return nil, err
	}
	switch {
	case spec.origin == nil && opts.Name != "":
		return nil, turnstone.Errorf("template.pull", turnstone.KindInvalid, "image "+name,
			"is an image, and not a template: it has no other name").
			WithHint("write a spec with base = \"oci:" + name + "\"")
	case spec.origin == nil:
		return s.ensure(ctx, spec, opts.Progress)
	}
	from := spec.origin.Artifact
	reg := &Spec{Name: cmp.Or(opts.Name, from.Name), Description: from.Description,
		Base: ociBase + spec.Name, Machine: from.Machine}
	if reg, err = reg.reread(); err != nil {
		return nil, turnstone.NewError("template.pull", turnstone.KindInvalid,
			fmt.Sprintf("template %.100q", from.Name), err).WithHint("name it with --name")
	}
	if err := s.mayRegister(reg, opts.Replace,
		"give it another name with --name, or replace the existing template with --force"); err != nil {
		return nil, err
	}
	return s.buildSpec(ctx, reg, lockFits, opts.Progress)
}
