package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
)

// A fsTree is the file system that results from an image's layers, without the contents of its
// files: for each file it contains the layer and the entry with the content. All entries of layers
// are applied in memory only. So a path cannot leave the tree, a link can only point into it, and
// nothing is written before all layers have been read.
type fsTree struct {
	root   *node
	layer  int32 // the current layer
	nodes  int   // total number ever created
	meta   int64 // bytes of names, targets and attributes
	steps  int64 // steps of path lookups
	noted  []string
	limits limits
}

// limits bound a tree; tests have lower ones.
type limits struct {
	nodes int
	meta  int64
	steps int64
}

func standardLimits() limits { return limits{maxEntries, maxMeta, 200_000_000} }

// A node is a name of a file. A folder has a single name, and its kids.
type node struct {
	kids  map[string]*node
	file  *inode
	layer int32 // the last layer that named it
}

func (n *node) isDir() bool { return n.file.kind == tar.TypeDir }

// An inode is a file with one name or, with hard links, several.
type inode struct {
	kind     byte // as in a tar header
	mode     int64
	uid, gid int
	mtime    time.Time
	target   string            // of a symlink
	dev      [2]int64          // major and minor number
	xattrs   map[string]string // as PAX records; nil: none
	size     int64

	layer, entry int32  // the source of a regular file's content
	kept         []byte // the content, for the few files that are inspected
}

func newTree(l limits) *fsTree {
	return &fsTree{root: &node{kids: map[string]*node{},
		file: &inode{kind: tar.TypeDir, mode: 0o755}}, layer: -1, limits: l}
}

const (
	whiteout       = ".wh."         // before the name that a layer removes
	opaque         = ".wh..wh..opq" // in a folder whose lower content a layer removes
	whiteoutMeta   = ".wh..wh."     // of the tool that created the layer
	maxName        = 255
	maxPath        = 4095
	maxSymlinkHops = 40 // as in Linux
)

var (
	errLoop = errors.New("leads through too many symbolic links")
	errFar  = &contentError{why: "the image's symbolic links and whiteouts take too long to follow"}
)

// apply applies an entry of a layer to the tree.
func (t *fsTree) apply(hdr *tar.Header, entry int32) (*inode, error) {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil, nil
	}
	segments, err := split(hdr.Name)
	if err != nil {
		return nil, err
	}
	if len(segments) == 0 {
		if hdr.Typeflag != tar.TypeDir {
			return nil, errors.New("the root is not a folder")
		}
		return nil, t.attributes(t.root.file, hdr)
	}
	last := segments[len(segments)-1]
	if strings.HasPrefix(last, whiteout) {
		return nil, t.whiteout(segments[:len(segments)-1], last)
	}
	dir, err := t.walk(segments[:len(segments)-1], true)
	if err != nil {
		return nil, err
	}
	return t.enter(dir, last, hdr, entry)
}

// enter puts an entry into a folder.
func (t *fsTree) enter(dir *node, name string, hdr *tar.Header, entry int32) (*inode, error) {
	there := dir.kids[name]
	switch hdr.Typeflag {
	case tar.TypeDir:
		if there == nil || !there.isDir() {
			var err error
			if there, err = t.makeDir(dir, name); err != nil {
				return nil, err
			}
		}
		there.layer = t.layer
		return nil, t.attributes(there.file, hdr)
	case tar.TypeLink:
		target, err := t.linkTarget(hdr.Linkname)
		if err != nil || target == there {
			return nil, err
		}
		return nil, t.put(dir, name, &node{file: target.file})
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock,
		tar.TypeFifo:
	default:
		return nil, fmt.Errorf("its type %q is unknown", hdr.Typeflag)
	}
	file := &inode{kind: hdr.Typeflag, layer: t.layer, entry: entry}
	if hdr.Typeflag == tar.TypeGNUSparse || hdr.Typeflag == tar.TypeCont {
		file.kind = tar.TypeReg
	}
	switch file.kind {
	case tar.TypeReg:
		file.size = hdr.Size
	case tar.TypeSymlink:
		if hdr.Linkname == "" || len(hdr.Linkname) > maxPath ||
			strings.IndexByte(hdr.Linkname, 0) >= 0 {
			return nil, errors.New("its target is empty, too long, or contains a zero byte")
		}
		file.target = hdr.Linkname
	case tar.TypeChar, tar.TypeBlock:
		file.dev = [2]int64{hdr.Devmajor, hdr.Devminor}
		if file.dev == [2]int64{} && file.kind == tar.TypeChar {
			// An overlay interprets such a device as a whiteout.
			t.note("%q is left out: a device 0:0 hides files in a sandbox", hdr.Name)
			t.remove(dir, name)
			return nil, nil
		}
		if file.dev[0] < 0 || file.dev[0] > 0xfff || file.dev[1] < 0 || file.dev[1] > 0xfffff {
			return nil, fmt.Errorf("its device number %d:%d is out of range", file.dev[0],
				file.dev[1])
		}
	}
	if err := t.attributes(file, hdr); err != nil {
		return nil, err
	}
	return file, t.put(dir, name, &node{file: file})
}

// put assigns a name in a folder to n, and replaces any file of that name.
func (t *fsTree) put(dir *node, name string, n *node) error {
	if t.nodes++; t.nodes > t.limits.nodes {
		return &contentError{why: fmt.Sprintf("the image has more than %d files", t.limits.nodes)}
	}
	if err := t.charge(len(name)); err != nil {
		return err
	}
	n.layer = t.layer
	dir.kids[name] = n
	return nil
}

func (t *fsTree) remove(dir *node, name string) { delete(dir.kids, name) }

func (t *fsTree) makeDir(dir *node, name string) (*node, error) {
	n := &node{kids: map[string]*node{}, file: &inode{kind: tar.TypeDir, mode: 0o755}}
	return n, t.put(dir, name, n)
}

func (t *fsTree) charge(n int) error {
	if t.meta += int64(n); t.meta > t.limits.meta {
		return &contentError{
			why: fmt.Sprintf("the names and attributes of the image's files have more than %d "+
				"bytes", t.limits.meta)}
	}
	return nil
}

// note records a message for the log, up to a maximum number of messages.
func (t *fsTree) note(format string, args ...any) {
	if len(t.noted) < 100 {
		t.noted = append(t.noted, fmt.Sprintf(format, args...))
	}
}

// linkTarget finds the target of a hard link. Its folders may be symbolic links; the last name is
// not followed.
func (t *fsTree) linkTarget(name string) (*node, error) {
	segments, err := split(name)
	if err != nil {
		return nil, fmt.Errorf("is a link to %.200q, which %w", name, err)
	}
	if len(segments) == 0 {
		return nil, errors.New("is a link to the root")
	}
	dir, err := t.walk(segments[:len(segments)-1], false)
	if err != nil {
		return nil, fmt.Errorf("is a link to %.200q, which %w", name, err)
	}
	var n *node
	if dir != nil {
		n = dir.kids[segments[len(segments)-1]]
	}
	switch {
	case n == nil:
		return nil, fmt.Errorf("is a link to %.200q, which does not precede it", name)
	case n.isDir():
		return nil, fmt.Errorf("is a link to the folder %.200q", name)
	}
	return n, nil
}

// walk finds a folder, and follows symbolic links inside the image: an absolute link begins at the
// image's root, and no link leads above it. Missing folders are created with create; otherwise the
// result is nil.
func (t *fsTree) walk(segments []string, create bool) (*node, error) {
	n, err := t.find(segments, create)
	if err == nil && n != nil && !n.isDir() {
		return nil, fmt.Errorf("leads through %.200q, which is not a folder",
			strings.Join(segments, "/"))
	}
	return n, err
}

// find is walk for any type of file.
func (t *fsTree) find(todo []string, create bool) (*node, error) {
	at := []*node{t.root}
	hops := 0
	for len(todo) > 0 {
		if t.steps++; t.steps > t.limits.steps {
			return nil, errFar
		}
		name, dir := todo[0], at[len(at)-1]
		todo = todo[1:]
		switch {
		case name == "" || name == ".":
			continue
		case name == "..":
			at = at[:max(1, len(at)-1)]
			continue
		case len(name) > maxName:
			return nil, errors.New("has a name that is too long")
		}
		next := dir.kids[name]
		switch {
		case next == nil && !create:
			return nil, nil
		case next == nil:
			var err error
			if next, err = t.makeDir(dir, name); err != nil {
				return nil, err
			}
		case next.file.kind == tar.TypeSymlink:
			if hops++; hops > maxSymlinkHops {
				return nil, errLoop
			}
			if path.IsAbs(next.file.target) {
				at = at[:1]
			}
			todo = append(strings.Split(next.file.target, "/"), todo...)
			t.steps += int64(len(todo)) // the names are copied
			continue
		case !next.isDir() && len(todo) == 0:
			return next, nil
		case !next.isDir():
			return nil, fmt.Errorf("leads through %.200q, which is not a folder", name)
		}
		at = append(at, next)
	}
	return at[len(at)-1], nil
}

// lookup returns the final file of a path, through symbolic links; nil if there is none.
func (t *fsTree) lookup(name string) *node {
	n, err := t.find(strings.Split(name, "/"), false)
	if err != nil {
		return nil
	}
	return n
}

// whiteout removes the files of the layers below.
func (t *fsTree) whiteout(parent []string, name string) error {
	dir, err := t.walk(parent, false)
	if err != nil || dir == nil {
		return err // there is nothing to remove
	}
	if t.steps > t.limits.steps {
		return errFar
	}
	if name == opaque {
		t.hide(dir)
		return nil
	}
	if strings.HasPrefix(name, whiteoutMeta) {
		return nil
	}
	switch name = strings.TrimPrefix(name, whiteout); name {
	case "", ".", "..":
		return errors.New("is a whiteout of no file")
	}
	if n := dir.kids[name]; n != nil && !t.hidden(n) {
		delete(dir.kids, name)
	}
	return nil
}

// hide removes the files of a folder that do not belong to this layer.
func (t *fsTree) hide(dir *node) {
	for name, n := range dir.kids {
		if !t.hidden(n) {
			delete(dir.kids, name)
		}
	}
}

// hidden hides n, and reports whether a part of n stays: the part of this layer.
func (t *fsTree) hidden(n *node) (stays bool) {
	t.steps++
	if n.isDir() {
		t.hide(n)
		return n.layer == t.layer || len(n.kids) > 0
	}
	return n.layer == t.layer
}

// attributes gives a file the attributes of a header.
func (t *fsTree) attributes(f *inode, hdr *tar.Header) error {
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) > 1<<32-2 || int64(hdr.Gid) > 1<<32-2 {
		return fmt.Errorf("its owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	f.mode, f.uid, f.gid, f.mtime = hdr.Mode&0o7777, hdr.Uid, hdr.Gid, hdr.ModTime
	f.xattrs = nil
	size := len(f.target)
	for key, value := range hdr.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		// which a sandbox's overlay would interpret
		if !ok || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		if f.xattrs == nil {
			f.xattrs = map[string]string{}
		}
		f.xattrs[key] = value
		size += len(key) + len(value)
	}
	return t.charge(size)
}

// split splits a layer's path into names. An absolute path begins at the image's root; a path that
// leads above it is rejected.
func split(name string) ([]string, error) {
	if len(name) > maxPath {
		return nil, errors.New("has a path that is too long")
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, errors.New("has a zero byte in its path")
	}
	var out []string
	for s := range strings.SplitSeq(name, "/") {
		switch {
		case s == "" || s == ".":
		case s == "..":
			return nil, errors.New("leaves the image's root")
		case len(s) > maxName:
			return nil, errors.New("has a name that is too long")
		default:
			out = append(out, s)
		}
	}
	return out, nil
}
