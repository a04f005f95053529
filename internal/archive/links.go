package archive

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Where a hostile stream may put symbolic links.
//
// A link is kept if its target is relative, its ".."s all come first, and there are
// no more of them than folders between the link and its top-level name. The kernel
// applies such ".."s to the real folder of the link, and every name that follows
// leads further down, or to another link of which the same is true. So no chain of
// such links leads out of the top-level name, in whatever order they come, whatever
// they replace, and wherever the folder is moved as a whole.
//
// The one thing that breaks this is a link that was in the folder before the copy
// and leads out of it. Where there is one, links are held back until all else is
// there, and those by which anything would come to it are left out.

const (
	whyOut     = "a symbolic link that leads out of the copy"
	whyAlone   = "a symbolic link in the place of the copy itself"
	whyThrough = "a symbolic link that leads out of the copy by way of one that was there before"
	whyMany    = "a symbolic link too many for a folder that has links which lead out of it"

	maxHeld = 64 << 20 // bytes of names and targets that are held back
	maxHops = 255      // links on one way: more than any kernel follows
)

// A topLevel is what is known of one top-level name.
type topLevel struct {
	existed bool // before the copy
	scanned bool
	foreign bool // it has links that lead out of it
	held    []heldLink
}

type heldLink struct{ name, target string }

// leaves says whether a link at name with this target may lead out of its top-level
// name.
func leaves(name, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return true
	}
	depth := strings.Count(name, "/") - 1 // folders of the top-level one that are above the link
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

// top returns what is known of name's top-level name.
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

// link writes a symbolic link, or leaves it out.
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

// links calls f with each symbolic link below top, and what it says. Folders that
// cannot be read count as empty: no link leads through them either.
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
			return nil // it is gone
		}
		return f(name, target)
	})
}

// settle writes the links that were held back, and takes away again those by which
// a link leads out of its top-level name. It has to run however the copy ended.
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
				continue // a later entry took its place
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
				return nil // it was there before
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

// escapes follows the link at name. When it leads out of its top-level name, those
// links of made that it came by are returned.
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
			return nil // it leads nowhere
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			at = next // of a file nothing more is found
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
