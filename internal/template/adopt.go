package template

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"turnstone.dev/turnstone"
)

// Registered returns the registered specs of the template called name: its own spec and those of
// the templates below it, the lowest first. Built-in templates and images of registries have none.
func (s *Store) Registered(name string) ([]*Spec, error) {
	var specs []*Spec
	for seen := map[string]bool{}; nameRule.MatchString(name) && !seen[name]; {
		seen[name] = true
		if _, err := fs.Stat(s.builtin, name); err == nil {
			break
		}
		spec, err := s.registered(name)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		specs = append([]*Spec{spec}, specs...)
		name = spec.Base
	}
	return specs, nil
}

// Adopt builds a spec from another machine, and registers it under its name. The spec may be
// hostile: it is checked like a spec that Parse reads. A name that stands for another spec here is
// an error of kind Invalid.
func (s *Store) Adopt(ctx context.Context, spec *Spec, progress func(string)) (*turnstone.Template,
	error) {
	checked, err := spec.reread()
	if err != nil {
		return nil, turnstone.NewError("template.adopt", turnstone.KindInvalid,
			fmt.Sprintf("template %.100q", spec.Name), err).WithHint("export the session again")
	}
	if err := s.mayRegister(checked, false,
		"remove the existing template first, or do without the files"); err != nil {
		return nil, err
	}
	return s.buildSpec(ctx, checked, lockFits, progress)
}

// same reports whether two specs are equal.
func same(a, b *Spec) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// reread checks a spec as if it were read from a file.
func (s *Spec) reread() (*Spec, error) {
	t := specTOML{Name: s.Name, Description: s.Description, Base: s.Base, Packages: s.Packages,
		Pip: s.Pip, Npm: s.Npm, Commands: s.Commands, Env: s.Env, Workdir: s.Workdir, User: s.User,
		Wheels: s.Wheels}
	for _, f := range s.Files {
		content := string(f.Content)
		t.Files = append(t.Files, fileTOML{Path: f.Path, Content: &content,
			Mode: strconv.FormatUint(uint64(f.Mode), 8)})
	}
	if s.Machine.CPUs != 0 {
		t.Machine.CPUs = &s.Machine.CPUs
	}
	for _, m := range []struct {
		n  turnstone.Bytes
		to **string
	}{{s.Machine.Memory, &t.Machine.Memory}, {s.Machine.Disk, &t.Machine.Disk}} {
		if m.n != 0 {
			text := strconv.FormatInt(int64(m.n), 10)
			*m.to = &text
		}
	}
	switch {
	case s.NoNetwork:
		t.Network = "off"
	case len(s.Network) > 0:
		var hosts []any
		for _, h := range s.Network {
			hosts = append(hosts, h)
		}
		t.Network = hosts
	}
	checked, err := t.spec(s.Name, nil)
	if err != nil {
		return nil, err
	}
	if s.Lock != nil {
		b, err := s.Lock.Encode()
		if err != nil {
			return nil, err
		}
		if checked.Lock, err = parseLock(b); err != nil {
			return nil, err
		}
	}
	if !same(s, checked) {
		return nil, errors.New("is not a valid spec")
	}
	return checked, nil
}
