package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
)

// A fsTree is the file system that an image's layers give one over another, without the
// contents of its files: for these it knows the layer and the entry that have them.
// Everything a layer says happens in here. So a path can leave nothing, a link can
// point nowhere but in here, and nothing is written before all layers have been read.
type fsTree struct {
	root   *node
	layer  int32 // that is being applied
	nodes  int   // that were ever made
	meta   int64 // bytes of names, targets and attributes
	steps  int64 // that looking paths up took
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

// A node is a name of a file. A folder has one only, and its kids.
type node struct {
	kids  map[string]*node
	file  *inode
	layer int32 // the last one that named it
}

func (n *node) isDir() bool { return n.file.kind == tar.TypeDir }

// An inode is a file that has one name or, with hard links, several.
type inode struct {
	kind     byte // as in a tar header
	mode     int64
	uid, gid int
	mtime    time.Time
	target   string            // of a symlink
	dev      [2]int64          // major and minor number
	xattrs   map[string]string // as PAX records; nil: none
	size     int64

	layer, entry int32  // what has the content of a regular file
	kept         []byte // the content, where it is known: of the few files that are looked into
}

func newTree(l limits) *fsTree {
	return &fsTree{root: &node{kids: map[string]*node{}, file: &inode{kind: tar.TypeDir, mode: 0o755}}, layer: -1, limits: l}
}

const (
	whiteout       = ".wh."         // before the name of what a layer removes
	opaque         = ".wh..wh..opq" // in a folder of which a layer removes all that is below
	whiteoutMeta   = ".wh..wh."     // of the tool that made the layer
	maxName        = 255
	maxPath        = 4095
	maxSymlinkHops = 40 // as in Linux
)

var (
	errLoop = errors.New("leads through too many symbolic links")
	errFar  = &contentError{why: "the image's symbolic links and whiteouts take too long to follow"}
)

// apply puts one entry of the layer over what is there.
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
			return nil, errors.New("the root is no folder")
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
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
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
		if hdr.Linkname == "" || len(hdr.Linkname) > maxPath || strings.IndexByte(hdr.Linkname, 0) >= 0 {
			return nil, errors.New("its target is empty, too long, or holds a zero byte")
		}
		file.target = hdr.Linkname
	case tar.TypeChar, tar.TypeBlock:
		file.dev = [2]int64{hdr.Devmajor, hdr.Devminor}
		if file.dev == [2]int64{} && file.kind == tar.TypeChar {
			// An overlay takes such a device for a whiteout.
			t.note("%q is left out: a device 0:0 hides files in a sandbox", hdr.Name)
			t.remove(dir, name)
			return nil, nil
		}
		if file.dev[0] < 0 || file.dev[0] > 0xfff || file.dev[1] < 0 || file.dev[1] > 0xfffff {
			return nil, fmt.Errorf("its device number %d:%d is out of range", file.dev[0], file.dev[1])
		}
	}
	if err := t.attributes(file, hdr); err != nil {
		return nil, err
	}
	return file, t.put(dir, name, &node{file: file})
}

// put gives a name of a folder to n, whatever had it.
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
		return &contentError{why: fmt.Sprintf("the names and attributes of the image's files have more than %d bytes", t.limits.meta)}
	}
	return nil
}

// note keeps what the log is to say, up to a number of times.
func (t *fsTree) note(format string, args ...any) {
	if len(t.noted) < 100 {
		t.noted = append(t.noted, fmt.Sprintf(format, args...))
	}
}

// linkTarget finds what a hard link is a further name of. Its folders may be symbolic
// links; it itself is not followed.
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
		return nil, fmt.Errorf("is a link to %.200q, which did not come before it", name)
	case n.isDir():
		return nil, fmt.Errorf("is a link to the folder %.200q", name)
	}
	return n, nil
}

// walk finds a folder, through symbolic links as they are inside the image: one that is
// absolute begins at the image's root, and none leads above it. Folders that are not
// there are made with create; without it there is no result.
func (t *fsTree) walk(segments []string, create bool) (*node, error) {
	n, err := t.find(segments, create)
	if err == nil && n != nil && !n.isDir() {
		return nil, fmt.Errorf("leads through %.200q, which is no folder", strings.Join(segments, "/"))
	}
	return n, err
}

// find is walk for what may also be a file.
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
			t.steps += int64(len(todo)) // they are copied
			continue
		case !next.isDir() && len(todo) == 0:
			return next, nil
		case !next.isDir():
			return nil, fmt.Errorf("leads through %.200q, which is no folder", name)
		}
		at = append(at, next)
	}
	return at[len(at)-1], nil
}

// lookup returns what a path is in the end, through symbolic links; nil if there is
// nothing.
func (t *fsTree) lookup(name string) *node {
	n, err := t.find(strings.Split(name, "/"), false)
	if err != nil {
		return nil
	}
	return n
}

// whiteout removes what the layers below have.
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

// hide removes from a folder what this layer has not put there.
func (t *fsTree) hide(dir *node) {
	for name, n := range dir.kids {
		if !t.hidden(n) {
			delete(dir.kids, name)
		}
	}
}

// hidden hides n, and reports whether something of it stays: what this layer has.
func (t *fsTree) hidden(n *node) (stays bool) {
	t.steps++
	if n.isDir() {
		t.hide(n)
		return n.layer == t.layer || len(n.kids) > 0
	}
	return n.layer == t.layer
}

// attributes gives a file those of a header.
func (t *fsTree) attributes(f *inode, hdr *tar.Header) error {
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) > 1<<32-2 || int64(hdr.Gid) > 1<<32-2 {
		return fmt.Errorf("its owner %d:%d is out of range", hdr.Uid, hdr.Gid)
	}
	f.mode, f.uid, f.gid, f.mtime = hdr.Mode&0o7777, hdr.Uid, hdr.Gid, hdr.ModTime
	f.xattrs = nil
	size := len(f.target)
	for key, value := range hdr.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok || strings.HasPrefix(name, "user.overlay.") { // which would mean something to a sandbox's overlay
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

// split cuts a path of a layer into its names. An absolute one begins at the image's
// root; one that climbs is refused.
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
