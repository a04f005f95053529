package merge

import (
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// The paths of conflicts other than files.
const (
	EnvPrefix = "env:" // followed by the variable's name
	CwdPath   = "cwd"
)

// Env merges environments, lists of NAME=VALUE, variable by variable. The result is sorted and
// omits variables in undecided conflicts. The conflicts are sorted by path; decided conflicts have
// a Resolution.
func Env(base, ours, theirs []string, opts Options) (merged []string, conflicts []Conflict) {
	b, o, t := variables(base), variables(ours), variables(theirs)
	names := map[string]bool{}
	for _, m := range []map[string]string{b, o, t} {
		for name := range m {
			names[name] = true
		}
	}
	for name := range names {
		v, c := value(EnvPrefix+name, turnstone.ConflictEnv, lookup(b, name),
			lookup(o, name), lookup(t, name), opts)
		if c != nil {
			conflicts = append(conflicts, *c)
		}
		if v != nil {
			merged = append(merged, name+"="+*v)
		}
	}
	slices.Sort(merged)
	slices.SortFunc(conflicts, func(x, y Conflict) int { return strings.Compare(x.Path, y.Path) })
	return merged, conflicts
}

// Cwd merges working directories.
func Cwd(base, ours, theirs string, opts Options) (merged string, conflict *Conflict) {
	v, c := value(CwdPath, turnstone.ConflictCwd, &base, &ours, &theirs, opts)
	if v == nil {
		return "", c
	}
	return *v, c
}

// value merges a value; nil means absent. The result is undecided if the conflict has no
// Resolution.
func value(path string, kind turnstone.ConflictKind, base, ours, theirs *string,
	opts Options) (*string, *Conflict) {
	switch {
	case equal(ours, theirs), equal(theirs, base):
		return ours, nil
	case equal(ours, base):
		return theirs, nil
	}
	c := &Conflict{Path: path, Kind: kind, Base: valueEntry(base), Ours: valueEntry(ours),
		Theirs: valueEntry(theirs)}
	switch opts.side(path) {
	case turnstone.SideOurs:
		c.Resolution = turnstone.TookOurs
		return ours, c
	case turnstone.SideTheirs:
		c.Resolution = turnstone.TookTheirs
		return theirs, c
	}
	return nil, c
}

// side returns the deciding side for a conflict at path that does not support markers.
func (o Options) side(path string) turnstone.Side {
	if s := o.Paths[path]; s != turnstone.SideNone {
		return s
	}
	return o.Default
}

func equal(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func valueEntry(v *string) *tree.Entry {
	if v == nil {
		return nil
	}
	return &tree.Entry{Attr: tree.Attr{Target: *v}}
}

func variables(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, e := range env {
		name, v, _ := strings.Cut(e, "=")
		m[name] = v // the last entry counts, as with execve
	}
	return m
}

func lookup(m map[string]string, name string) *string {
	v, ok := m[name]
	if !ok {
		return nil
	}
	return &v
}
