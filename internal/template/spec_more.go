package template

import (
	"fmt"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/suggest"
	"turnstone.dev/turnstone/internal/template/registry"
)

var (
	// pipRule is a requirement by name (PEP 508), without markers and addresses.
	pipRule = lazyregexp.New(
		`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?(?:(?:===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+(?:,(?:===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+)*)?$`)
	// npmRule is a package of the registry, with a version, a range or a tag.
	npmRule = lazyregexp.New(
		`^(?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(?:@[A-Za-z0-9^~<>=][A-Za-z0-9.^~<>=*+_-]*)?$`)
	// userRule is a user in the form of Process.start: a name or number, and an optional group.
	userRule = lazyregexp.New(
		`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
)

// readMore reads the keys of layered templates.
func (s *Spec) readMore(t *specTOML) (err error) {
	s.Pip, err = requirements("pip", "a package of pip, such as requests or pandas==2.2.3",
		t.Pip, pipRule)
	if err != nil {
		return err
	}
	s.Npm, err = requirements("npm", "a package of npm, such as typescript or @scope/name@1.2.3",
		t.Npm, npmRule)
	if err != nil {
		return err
	}
	if s.Wheels, err = registry.CheckWheels(t.Wheels); err != nil {
		return wrong("wheels", "wheels: %w", err)
	}
	if len(s.Wheels) > 0 && !strings.HasPrefix(s.Base, debianBase) {
		return wrong("wheels", "wheels: want the base %q; on other bases use pip", bases()[0])
	}
	if len(t.Commands) > maxEntries {
		return wrong("commands", "commands: more than %d", maxEntries)
	}
	for i, c := range t.Commands {
		if strings.TrimSpace(c) == "" || strings.ContainsRune(c, 0) || len(c) > maxCommand {
			return wrong("commands",
				"commands: number %d is empty, contains a zero byte, or has more than %d bytes",
				i+1, maxCommand)
		}
	}
	s.Commands = slices.Clone(t.Commands)
	if s.User != "" && !userRule.MatchString(s.User) {
		return wrong("user", "user %q: want a name or a number, optionally with :GROUP", s.User)
	}
	if t.Kernel != "" && !slices.Contains(kernels(), t.Kernel) {
		near, _ := suggest.Nearest(t.Kernel, kernels())
		return wrong("kernel", "kernel %q is not known; the nearest known kernel: %q",
			t.Kernel, near)
	}
	if err := readMachine(&s.Machine, t.Machine); err != nil {
		return err
	}
	return s.readNetwork(t.Network)
}

// requirements checks a list and sorts it.
func requirements(key, want string, list []string, rule *lazyregexp.Regexp) ([]string, error) {
	if len(list) > maxPackages {
		return nil, wrong(key, "%s: more than %d", key, maxPackages)
	}
	var out []string
	for _, r := range list {
		r = strings.ReplaceAll(r, " ", "")
		if !rule.MatchString(r) || len(r) > 300 {
			return nil, wrong(key, "%s: %q is not %s", key, r, want)
		}
		out = append(out, r)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func readMachine(m *turnstone.Machine, t machineTOML) error {
	shape := turnstone.DefaultShape()
	if t.CPUs != nil {
		m.CPUs, shape.CPUs = *t.CPUs, *t.CPUs
	}
	for _, f := range []struct {
		key  string
		text *string
		to   []*turnstone.Bytes
	}{{"memory", t.Memory, []*turnstone.Bytes{&m.Memory, &shape.Memory}},
		{"disk", t.Disk, []*turnstone.Bytes{&m.Disk, &shape.Disk}}} {
		if f.text == nil {
			continue
		}
		n, err := turnstone.ParseBytes(*f.text)
		if err != nil {
			return wrong("machine."+f.key, "machine.%s: %w", f.key, err)
		}
		for _, to := range f.to {
			*to = n
		}
	}
	if err := shape.Validate(); err != nil {
		return wrong("machine", "machine: %w", err)
	}
	return nil
}

// readNetwork reads "off", or a list of allowed hosts.
func (s *Spec) readNetwork(v any) error {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		if v != "off" {
			return wrong("network", `network %q: want "off", or a list of hosts`, v)
		}
		s.NoNetwork = true
		return nil
	case []any:
		if len(v) > maxEntries {
			return wrong("network", "network: more than %d hosts", maxEntries)
		}
		for _, e := range v {
			text, ok := e.(string)
			if !ok {
				return wrong("network", "network: %v is not a host", e)
			}
			if _, err := network.ParseRule(text); err != nil {
				return wrong("network", "network: %w", err)
			}
			s.Network = append(s.Network, text)
		}
		slices.Sort(s.Network)
		s.Network = slices.Compact(s.Network)
		return nil
	default:
		return wrong("network", `network: want "off", or a list of hosts, not %s`,
			fmt.Sprintf("%T", v))
	}
}

// layered reports whether the spec is built in a sandbox of the template below it.
func (s *Spec) layered() bool {
	return s.onTemplate() || len(s.Pip)+len(s.Npm)+len(s.Commands) > 0 ||
		strings.HasPrefix(s.Base, ociBase) && len(s.Packages)+len(s.Files) > 0
}

// lower returns the spec below a layered spec whose base is not a named template: the base, with
// the packages that need no sandbox.
func (s *Spec) lower() *Spec {
	low := &Spec{Name: s.Name + "-base", Base: s.Base, Workdir: DefaultWorkdir}
	if strings.HasPrefix(s.Base, debianBase) {
		low.Packages, low.Wheels = s.Packages, s.Wheels
	}
	return low
}
