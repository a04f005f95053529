package tarfiles

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Where a hostile stream may create symbolic links.
//
// A link is kept if its target is relative, all its ".."s come first, and their number does not
// exceed the number of folders between the link and its top-level name. The kernel applies such
// ".."s to the real folder of the link. Every following name leads deeper, or to another link with
// the same property. So no chain of such links leads out of the top-level name, for any order of
// the links, whatever they replace, and wherever the folder is moved as a whole.
//
// A single case breaks this: a link that was in the folder before the copy and leads out of the
// folder. If such a link exists, links are deferred until everything else is written, and links
// whose resolution passes through such a link are skipped.

const (
	whyOut     = "a symbolic link that leads out of the copy"
	whyAlone   = "a symbolic link that replaces the copy itself"
	whyThrough = "a symbolic link that leads out of the copy through an older link"
	whyMany    = "a symbolic link beyond the limit for a folder that has links which lead out of it"

	maxHeld = 64 << 20 // bytes of names and targets of deferred links
	maxHops = 255      // links on a path: more than any kernel follows
)

// A topLevel is the state of a top-level name.
type topLevel struct {
	existed bool // existed before the copy
	scanned bool
	foreign bool // contains links that lead out of it
	held    []heldLink
}

type heldLink struct{ name, target string }

// leaves reports whether a link at name with this target may lead out of its top-level name.
func leaves(name, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return true
	}
	depth := strings.Count(name, "/") - 1 // folders above the link, up to the top-level folder
	named := false
	for p := range strings.SplitSeq(target, "/") {
		switch p {
		case "", ".":
		case "..":
			if depth--; depth < 0 || named {
				return true
			}
		default:
			named = true
		}
	}
	return depth < 0
}

// top returns the state of name's top-level name.
func (u *unpacker) top(name string) (*topLevel, error) {
	top, _, _ := strings.Cut(name, "/")
	if t := u.tops[top]; t != nil {
		return t, nil
	}
	st, err := u.root.Lstat(top)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t := &topLevel{existed: err == nil && st.IsDir()}
	u.tops[top] = t
	return t, nil
}

// link writes, defers or skips a symbolic link.
func (u *unpacker) link(name, target string) error {
	if u.lim.Trusted || name == "." {
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(target, name)
	}
	if leaves(name, target) {
		why := whyOut
		if !strings.Contains(name, "/") {
			why = whyAlone
		}
		u.lim.Skipped(name, why)
		return nil
	}
	t, err := u.top(name)
	if err != nil {
		return err
	}
	if t.existed && !t.scanned {
		top, _, _ := strings.Cut(name, "/")
		t.scanned = true
		_ = u.links(top, func(at, target string) error {
			if t.foreign = t.foreign || leaves(at, target); t.foreign {
				return fs.SkipAll
			}
			return nil
		})
	}
	if t.foreign {
		if u.held += len(name) + len(target); u.held > maxHeld {
			u.lim.Skipped(name, whyMany)
			return nil
		}
	}
	if err := u.clear(name); err != nil {
		return err
	}
	if t.foreign {
		t.held = append(t.held, heldLink{name, target})
		return nil
	}
	return u.root.Symlink(target, name)
}

// links calls f with each symbolic link below top and the link's target. Unreadable folders count
// as empty because no link leads through them.
func (u *unpacker) links(top string, f func(name, target string) error) error {
	return fs.WalkDir(u.root.FS(), top, func(name string, d fs.DirEntry, err error) error {
		if u.ctx.Err() != nil && !u.settling {
			return u.ctx.Err()
		}
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		target, err := u.root.Readlink(name)
		if err != nil {
			return nil // the folder was removed
		}
		return f(name, target)
	})
}

// settle writes the deferred links and removes those through which a link leads out of its
// top-level name. It must run even after a failed copy.
func (u *unpacker) settle() {
	u.settling = true
	for _, top := range slices.Sorted(maps.Keys(u.tops)) {
		t := u.tops[top]
		if len(t.held) == 0 {
			continue
		}
		made := map[string]bool{}
		for _, l := range t.held {
			if _, err := u.root.Lstat(l.name); err == nil {
				continue // a later entry replaced the link
			}
			if u.noLinks(path.Dir(l.name)) != nil || u.root.Symlink(l.target, l.name) != nil {
				u.lim.Skipped(l.name, errThroughLink.Error())
				continue
			}
			made[l.name] = true
		}
		guilty := map[string]bool{}
		_ = u.links(top, func(name, target string) error {
			if leaves(name, target) {
				return nil // the link existed before
			}
			for _, by := range u.escapes(name, made) {
				guilty[by] = true
			}
			return nil
		})
		for _, name := range slices.Sorted(maps.Keys(guilty)) {
			_ = u.root.Remove(name)
			u.lim.Skipped(name, whyThrough)
		}
	}
}

// escapes follows the link at name. If the link leads out of its top-level name, escapes returns
// the links in made on its path.
func (u *unpacker) escapes(name string, made map[string]bool) []string {
	var by []string
	at, rest := path.Dir(name), []string{path.Base(name)}
	for hops := 0; len(rest) > 0; {
		p := rest[0]
		rest = rest[1:]
		if p == "" || p == "." {
			continue
		}
		if p == ".." {
			if !strings.Contains(at, "/") {
				return by
			}
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, p)
		st, err := u.root.Lstat(next)
		if err != nil {
			return nil // the link leads nowhere
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			at = next // a file ends the path
			continue
		}
		target, err := u.root.Readlink(next)
		if err != nil {
			return nil
		}
		if made[next] {
			by = append(by, next)
		}
		if hops++; hops > maxHops || leaves(next, target) {
			return by
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return nil
}
