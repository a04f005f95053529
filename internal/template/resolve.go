package template

import (
	"errors"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// maxBases bounds how many templates can lie on one another.
const maxBases = 16

// resolve fills in what spec takes from its base, when that is another template:
// the base's digest, and what spec leaves open. It needs no template to be built.
func (s *Store) resolve(spec *Spec, above ...string) error {
	if strings.HasPrefix(spec.Base, ociBase) {
		return s.resolveOCI(spec)
	}
	if !spec.onTemplate() {
		return nil
	}
	above = append(above, spec.Name)
	fail := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf("template.base", kind, "template "+spec.Name, format, args...).
			WithHint(hint)
	}
	if slices.Contains(above, spec.Base) {
		return fail(turnstone.KindInvalid, "one of them needs another base", "the bases go round: %s", strings.Join(append(above, spec.Base), " on "))
	}
	if len(above) > maxBases {
		return fail(turnstone.KindInvalid, "put some of them into one spec", "more than %d templates lie on one another", maxBases)
	}
	base, _, err := s.find(spec.Base, above)
	if err != nil {
		var typed *turnstone.Error
		if errors.As(err, &typed) && typed.Op == "template.find" && typed.Kind == turnstone.KindNotFound {
			return fail(turnstone.KindNotFound, typed.Hint, "base %q is not known", spec.Base)
		}
		return err
	}
	spec.base, spec.BaseDigest = base, base.Digest()
	if spec.Workdir == "" {
		spec.Workdir = base.Workdir
	}
	if spec.User == "" {
		spec.User = base.User
	}
	spec.Machine = spec.Machine.Over(base.Machine)
	return nil
}

// below returns the spec that a layered one is built on; nil for others.
func (s *Spec) below() *Spec {
	switch {
	case !s.layered():
		return nil
	case s.onTemplate(), s.base != nil:
		return s.base
	default:
		return s.lower()
	}
}

// digests yields the digests of s and of all that is below it.
func (s *Spec) digests() []turnstone.Digest {
	var all []turnstone.Digest
	for at := s; at != nil; at = at.below() {
		all = append(all, at.Digest())
	}
	return all
}
