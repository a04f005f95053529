package template

import (
	"errors"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// maxBases bounds the number of templates that are based on one another.
const maxBases = 16

// resolve adds the values that spec takes from its base if that is another template: the base's
// digest, and the values that spec leaves open. No template needs to be built.
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
		return fail(turnstone.KindInvalid, "one of them needs another base",
			"the bases form a cycle: %s", strings.Join(append(above, spec.Base), " on "))
	}
	if len(above) > maxBases {
		return fail(turnstone.KindInvalid, "put some of them into one spec",
			"more than %d templates are based on one another", maxBases)
	}
	base, _, err := s.find(spec.Base, above)
	if err != nil {
		var typed *turnstone.Error
		if errors.As(err, &typed) && typed.Op == "template.find" &&
			typed.Kind == turnstone.KindNotFound {
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

// below returns the spec below a layered spec; nil for others.
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

// digests yields the digests of s and of all specs below it.
func (s *Spec) digests() []turnstone.Digest {
	var all []turnstone.Digest
	for at := s; at != nil; at = at.below() {
		all = append(all, at.Digest())
	}
	return all
}
