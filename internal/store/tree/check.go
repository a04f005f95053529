package tree

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// Limits of a tree: Linux's limits (limits.h, xattr(7), makedev(3)), and bounds against hostile
// trees.
const (
	maxName       = 255       // bytes of an entry's name
	MaxTarget     = 4095      // bytes of a symlink's target
	maxXattrName  = 255       // bytes of an extended attribute's name, with its namespace
	maxXattrValue = 64 << 10  // bytes of an extended attribute's value
	maxXattrs     = 1 << 20   // total bytes of an entry's names and values
	MaxDepth      = 4096      // nested directories
	MaxMajor      = 1<<12 - 1 // of a device
	MaxMinor      = 1<<20 - 1 // of a device

	maxNsec = 999_999_999
)

// KeptXattr reports whether an extended attribute is part of a tree. Attributes that only a file
// system, an overlay or a security module of a machine uses are not.
func KeptXattr(name string) bool {
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.") ||
		strings.HasPrefix(name, "trusted.") && !strings.HasPrefix(name, "trusted.overlay.")
}

// hashedXattr reports whether the FS hash covers an extended attribute.
func hashedXattr(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "user.")
}

// Normalize converts a file system's attributes to a tree's: only kept extended attributes (see
// KeptXattr), sorted; zero in fields that the type does not have; and for a symlink the mode that
// Linux shows for every symlink.
func (a *Attr) Normalize() {
	a.Mode &= 0o7777
	if a.Type != File {
		a.Size = 0
	}
	if a.Type != Symlink {
		a.Target = ""
	} else {
		a.Mode = 0o777
	}
	if a.Type != Char && a.Type != Block {
		a.Major, a.Minor = 0, 0
	}
	a.Xattrs = slices.DeleteFunc(slices.Clone(a.Xattrs), func(x Xattr) bool {
		return !KeptXattr(x.Name)
	})
	if len(a.Xattrs) == 0 {
		a.Xattrs = nil
	}
	slices.SortFunc(a.Xattrs, func(x, y Xattr) int { return strings.Compare(x.Name, y.Name) })
}

// Equal reports whether a and b are the same, including timestamps.
func (a *Attr) Equal(b *Attr) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID &&
		a.GID == b.GID && a.MTime == b.MTime &&
		a.Size == b.Size && a.Target == b.Target && a.Major == b.Major && a.Minor == b.Minor &&
		slices.EqualFunc(a.Xattrs, b.Xattrs, func(x, y Xattr) bool {
			return x.Name == y.Name && bytes.Equal(x.Value, y.Value)
		})
}

// CheckName reports why the name of an entry is invalid.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > maxName:
		return fmt.Errorf("a name has %d bytes, more than %d", len(name), maxName)
	case name == "." || name == "..":
		return fmt.Errorf("%q is not a valid name", name)
	case strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("the name %q contains a slash or a NUL byte", name)
	}
	return nil
}

// check reports why an entry is invalid, except for its name.
func (e *Entry) check() error {
	if err := e.checkFields(); err != nil {
		return err
	}
	switch e.Type {
	case Dir:
		if !wellFormed(e.Tree) || !wellFormed(e.Hash) {
			return errors.New("a directory's digests are malformed")
		}
	case File:
		if !wellFormed(e.Content.Digest) || e.Content.Chunks != "" &&
			!wellFormed(e.Content.Chunks) {
			return errors.New("a file's digest is malformed")
		}
	}
	return nil
}

func (e *Entry) checkFields() error {
	switch {
	case e.Type < Dir || e.Type > FIFO:
		return fmt.Errorf("unknown type %d", e.Type)
	case e.Mode > 0o7777:
		return fmt.Errorf("mode %o is more than 7777", e.Mode)
	case e.MTime.Nsec < 0 || e.MTime.Nsec > maxNsec:
		return fmt.Errorf("%d is not a valid number of nanoseconds", e.MTime.Nsec)
	case e.Size < 0 || e.Content.Size != e.Size:
		return fmt.Errorf("size %d, with a content of %d bytes", e.Size, e.Content.Size)
	case e.Type != File && (e.Size != 0 || e.Content != turnstone.Content{}):
		return errors.New("has a content and is not a file")
	case e.Type != Dir && (e.Tree != "" || e.Hash != ""):
		return errors.New("has entries and is not a directory")
	case (e.Target != "") != (e.Type == Symlink):
		return errors.New("only a symlink can have a target, and must have one")
	case len(e.Target) > MaxTarget || strings.IndexByte(e.Target, 0) >= 0:
		return fmt.Errorf(
			"a symlink's target has %d bytes, or contains a NUL byte; the limit is %d",
			len(e.Target), MaxTarget)
	case e.Type != Char && e.Type != Block && (e.Major != 0 || e.Minor != 0):
		return errors.New("has device numbers and is not a device")
	case e.Major > MaxMajor || e.Minor > MaxMinor:
		return fmt.Errorf("%d:%d are not valid device numbers of Linux", e.Major, e.Minor)
	}
	return checkXattrs(e.Xattrs)
}

func checkXattrs(xattrs []Xattr) error {
	sum, last := 0, ""
	for _, x := range xattrs {
		switch {
		case x.Name == "" || len(x.Name) > maxXattrName || strings.IndexByte(x.Name, 0) >= 0:
			return fmt.Errorf("%q is not a valid name of an extended attribute", x.Name)
		case x.Name <= last:
			return fmt.Errorf("the extended attribute %q is a duplicate, or not sorted", x.Name)
		case len(x.Value) > maxXattrValue:
			return fmt.Errorf("the extended attribute %q has %d bytes, more than %d", x.Name,
				len(x.Value), maxXattrValue)
		}
		last = x.Name
		sum += len(x.Name) + len(x.Value)
	}
	if sum > maxXattrs {
		return fmt.Errorf("extended attributes of %d bytes, more than %d", sum, maxXattrs)
	}
	return nil
}

// Check reports why a directory is invalid, as an error of kind Invalid whose subject is the
// entry's name.
func (d Directory) Check() error {
	for i := range d {
		e := &d[i]
		err := CheckName(e.Name)
		if err == nil {
			err = e.check()
		}
		if err == nil && i > 0 && e.Name <= d[i-1].Name {
			err = fmt.Errorf("%q follows %q: entries are sorted and unique", e.Name, d[i-1].Name)
		}
		if err != nil {
			return invalid("tree.check", fmt.Sprintf("%q", e.Name), err)
		}
	}
	return nil
}

// Check reports why a root is invalid, as an error of kind Invalid. It does not check that the
// paths of Links exist in the tree.
func (r *Root) Check() error {
	err := r.check()
	switch {
	case err != nil:
	case r.Name != "":
		err = errors.New("has a name")
	case r.Type != Dir:
		err = errors.New("is not a directory")
	default:
		err = checkLinks(r.Links)
	}
	if err != nil {
		return invalid("tree.check", "/", err)
	}
	return nil
}

func checkLinks(groups []LinkGroup) error {
	last := ""
	for _, g := range groups {
		if err := checkGroup(g, last); err != nil {
			return err
		}
		last = g[0]
	}
	return nil
}

// checkGroup checks a group that follows the group whose first path is last.
func checkGroup(g LinkGroup, last string) error {
	if len(g) < 2 {
		return errors.New("a group of hard links has fewer than two paths")
	}
	if g[0] <= last {
		return fmt.Errorf("the group of hard links %q is a duplicate, or not sorted", g[0])
	}
	for i, p := range g {
		if err := checkPath(p); err != nil {
			return err
		}
		if i > 0 && p <= g[i-1] {
			return fmt.Errorf("the hard link %q is a duplicate, or not sorted", p)
		}
	}
	return nil
}

func checkPath(p string) error {
	if len(p) < 2 || p[0] != '/' {
		return fmt.Errorf("the path %q is not absolute", p)
	}
	depth := 0
	for rest, more := p[1:], true; more; depth++ {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		if err := CheckName(name); err != nil {
			return fmt.Errorf("in a path: %w", err)
		}
	}
	if depth > MaxDepth+1 {
		return fmt.Errorf("a path has more than %d directories", MaxDepth)
	}
	return nil
}

func invalid(op turnstone.Op, subject string, err error) error {
	return turnstone.NewError(op, turnstone.KindInvalid, subject, err).
		WithHint("change the tree: a tree contains what Linux allows, and each name once")
}

func damaged(op turnstone.Op, subject string, err error) error {
	return turnstone.NewError(op, turnstone.KindIntegrity, subject, err).
		WithHint("run turn fsck to find all damaged objects; another program, or another version " +
			"of this program, wrote this object")
}
