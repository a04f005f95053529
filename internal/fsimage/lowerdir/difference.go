package lowerdir

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/substrate"
)

// Limits of an image's input. The trees may come from another machine.
const (
	maxFiles     = 8_000_000
	maxPath      = 64 << 10 // bytes
	maxPaths     = 2 << 30  // total bytes of all paths
	maxXattr     = 65535    // bytes of a value: the format's limit
	maxXattrs    = 200 << 10
	opaqueXattr  = "trusted.overlay.opaque"
	privateXattr = "trusted.overlay." // prefix of an overlay's own attributes
)

// A difference is the state of computing a difference.
type difference struct {
	ctx    context.Context
	r      tree.Getter
	groups map[string]tree.LinkGroup // of the new tree, by path
	forced map[string]bool           // paths whose group changed, and their parent directories
	links  []tar2erofs.Link
	files  int
	paths  int64
	bytes  int64
}

// plan returns the image's top directory, and the names that share an inode.
func plan(ctx context.Context, r tree.Getter, from, to turnstone.TreeRef, extra []File) (*node,
	[]tar2erofs.Link, error) {
	d := &difference{ctx: ctx, r: r, groups: make(map[string]tree.LinkGroup),
		forced: make(map[string]bool)}
	old, next, err := d.roots(from, to)
	if err != nil {
		return nil, nil, err
	}
	d.findGroups(old.Links, next.Links)
	top := &node{mode: fs.ModeDir | 0o755, stat: erofs.Stat{Nlink: 4}}
	below, err := contextDir(extra)
	if err != nil {
		return nil, nil, err
	}
	root := &next.Entry
	if root.Type != tree.Dir {
		return nil, nil, invalid("/", "is not a directory")
	}
	var before *tree.Entry
	if old.Type == tree.Dir {
		before = &old.Entry
	}
	changed, err := d.dir("", before, root)
	if err != nil {
		return nil, nil, err
	}
	changed.name = "fs"
	top.children = []*node{below, changed}
	return top, d.links, nil
}

// roots reads both trees' roots. An empty tree's root has no type.
func (d *difference) roots(from, to turnstone.TreeRef) (old, next *tree.Root, err error) {
	old, next = new(tree.Root),
		&tree.Root{Entry: tree.Entry{Attr: tree.Attr{Type: tree.Dir, Mode: 0o755}}}
	if from.Root != "" {
		if old, err = tree.GetRoot(d.ctx, d.r, from); err != nil {
			return nil, nil, err
		}
	}
	if to.Root != "" {
		next, err = tree.GetRoot(d.ctx, d.r, to)
	}
	return old, next, err
}

// findGroups records the new tree's groups, and the paths to write because their group has changed:
// all names of an inode must be in the same image.
func (d *difference) findGroups(old, next []tree.LinkGroup) {
	same := make(map[string]bool, len(old))
	for _, g := range old {
		same[strings.Join(g, "\x00")] = true
	}
	kept := make(map[string]bool)
	for _, g := range next {
		for _, path := range g {
			d.groups[path] = g
		}
		key := strings.Join(g, "\x00")
		if same[key] {
			kept[key] = true
		} else {
			d.force(g)
		}
	}
	for _, g := range old {
		if !kept[strings.Join(g, "\x00")] {
			d.force(g)
		}
	}
}

func (d *difference) force(g tree.LinkGroup) {
	for _, path := range g {
		for path != "" && path != "/" && !d.forced[path] {
			d.forced[path] = true
			path = path[:max(0, strings.LastIndexByte(path, '/'))]
		}
		d.forced[""] = true
	}
}

func (d *difference) entries(e *tree.Entry) (tree.Directory, error) {
	if e == nil || e.Tree == "" {
		return nil, nil
	}
	return tree.GetDirectory(d.ctx, d.r, e.Tree)
}

// dir returns the node of the directory at path with its differences. old is the lower directory,
// or nil if there is none.
func (d *difference) dir(path string, old, next *tree.Entry) (*node, error) {
	n, err := d.node(path, next)
	if err != nil {
		return nil, err
	}
	if old != nil && old.Tree == next.Tree && !d.forced[path] {
		return n, nil
	}
	was, err := d.entries(old)
	if err != nil {
		return nil, err
	}
	is, err := d.entries(next)
	if err != nil {
		return nil, err
	}
	dirs := uint32(0)
	kept := false
	var gone []*node
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].Name < is[0].Name:
			gone = append(gone, whiteout(was[0].Name))
			was = was[1:]
			continue
		case is[0].Type == tree.Dir:
			dirs++
		}
		var before *tree.Entry
		if len(was) > 0 && was[0].Name == is[0].Name {
			before, was = &was[0], was[1:]
		}
		c, lower, err := d.entry(path+"/"+is[0].Name, before, &is[0])
		if err != nil {
			return nil, err
		}
		if c != nil {
			n.children = append(n.children, c)
		}
		kept = kept || lower
		is = is[1:]
	}
	n.stat.Nlink = int(2 + dirs)
	return n, d.hide(n, gone, kept)
}

// hide hides removed entries: individually, or the whole lower directory if none of its entries is
// needed.
func (d *difference) hide(n *node, gone []*node, kept bool) error {
	if len(gone) == 0 {
		return nil
	}
	if !kept {
		opaque(n)
		return nil
	}
	n.children = append(n.children, gone...)
	slices.SortFunc(n.children, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	if d.files += len(gone); d.files > maxFiles {
		return tooMany()
	}
	return nil
}

func opaque(n *node) {
	if n.stat.Xattrs == nil {
		n.stat.Xattrs = make(map[string]string, 1)
	}
	n.stat.Xattrs[opaqueXattr] = "y"
}

// whiteout returns a name that hides the lower entry.
func whiteout(name string) *node {
	return &node{name: name, mode: fs.ModeDevice | fs.ModeCharDevice, stat: erofs.Stat{Nlink: 1}}
}

// entry returns the node of the file at path, nil if it is unchanged. lower reports whether a part
// of the lower directory is still needed.
func (d *difference) entry(path string, old, next *tree.Entry) (n *node, lower bool, err error) {
	if next.Type == tree.Dir {
		if old != nil && old.Type == tree.Dir {
			if same(old, next) && !d.forced[path] {
				return nil, true, nil
			}
			n, err = d.dir(path, old, next)
			return n, true, err
		}
		n, err = d.dir(path, nil, next)
		if err == nil && old != nil {
			opaque(n)
		}
		return n, false, err
	}
	if old != nil && same(old, next) && !d.forced[path] {
		return nil, true, nil
	}
	n, err = d.node(path, next)
	if err != nil {
		return nil, false, err
	}
	if group := d.groups[path]; group != nil {
		n.stat.Nlink = len(group)
		if path != group[0] {
			n.link()
			d.links = append(d.links, tar2erofs.Link{Name: "fs" + path, Target: "fs" + group[0]})
		}
	}
	d.bytes += n.size
	if d.bytes > substrate.SlotSize {
		return nil, false, tooLarge()
	}
	return n, false, nil
}

// same reports whether two entries are indistinguishable to a reader. The storage of a content has
// no influence.
func same(a, b *tree.Entry) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID &&
		a.MTime == b.MTime && a.Size == b.Size &&
		a.Target == b.Target && a.Major == b.Major && a.Minor == b.Minor &&
		a.Content.Digest == b.Content.Digest && a.Tree == b.Tree &&
		slices.EqualFunc(a.Xattrs, b.Xattrs, func(x, y tree.Xattr) bool {
			return x.Name == y.Name && string(x.Value) == string(y.Value)
		})
}

// node returns the node of e without children.
func (d *difference) node(path string, e *tree.Entry) (*node, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	d.paths += int64(len(path))
	if d.files++; d.files > maxFiles || d.paths > maxPaths || len(path) > maxPath {
		return nil, tooMany()
	}
	if path != "" && (e.Name == "" || e.Name == "." || e.Name == ".." || len(e.Name) > 255 ||
		strings.ContainsAny(e.Name, "/\x00")) {
		return nil, invalid(path, "has a name that is not valid for a file")
	}
	n := &node{name: e.Name, target: e.Target, mode: fs.FileMode(e.Mode & 0o777),
		stat: erofs.Stat{UID: e.UID, GID: e.GID, Mtime: uint64(e.MTime.Sec),
			MtimeNs: uint32(e.MTime.Nsec), Nlink: 1}}
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid,
		0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if e.Mode&bit != 0 {
			n.mode |= flag
		}
	}
	if err := n.setType(path, e); err != nil {
		return nil, err
	}
	total := 0
	for _, x := range e.Xattrs {
		total += len(x.Name) + len(x.Value) + 8
		if strings.HasPrefix(x.Name, privateXattr) || len(x.Name) > 255 ||
			len(x.Value) > maxXattr || total > maxXattrs {
			return nil, invalid(path, "has an unsupported extended attribute: "+x.Name)
		}
		if n.stat.Xattrs == nil {
			n.stat.Xattrs = make(map[string]string, len(e.Xattrs))
		}
		n.stat.Xattrs[tar2erofs.WriterXattr(x.Name)] = string(x.Value)
	}
	return n, nil
}

func (n *node) setType(path string, e *tree.Entry) error {
	switch e.Type {
	case tree.Dir:
		n.mode |= fs.ModeDir
		n.stat.Nlink = 2
	case tree.File:
		if e.Size < 0 || e.Content.Size != e.Size || e.Size > 0 && e.Content.Digest == "" {
			return invalid(path, "has no content of its size")
		}
		n.size, n.content = e.Size, e.Content
	case tree.Symlink:
		if e.Target == "" || len(e.Target) > 4095 || strings.IndexByte(e.Target, 0) >= 0 {
			return invalid(path, "is a symlink without a target")
		}
		n.mode |= fs.ModeSymlink
	case tree.Char, tree.Block:
		if e.Type == tree.Char && e.Major == 0 && e.Minor == 0 {
			return invalid(path, "is the device 0/0, which hides files in an overlay")
		}
		if e.Major > 0xfff || e.Minor > 0xfffff {
			return invalid(path, "has a device number that is out of range")
		}
		n.mode |= fs.ModeDevice
		if e.Type == tree.Char {
			n.mode |= fs.ModeCharDevice
		}
		n.stat.Rdev = e.Minor&0xff | e.Major<<8 | (e.Minor&^0xff)<<12 // the kernel's new_encode_dev
	case tree.FIFO:
		n.mode |= fs.ModeNamedPipe
	default:
		return invalid(path, "has an unknown type")
	}
	return nil
}

func invalid(path, msg string) error {
	return turnstone.Errorf("image.write", turnstone.KindInvalid, fmt.Sprintf("%.200q", path),
		"%s", msg)
}

func tooMany() error {
	return turnstone.Errorf("image.write", turnstone.KindExhausted, "image",
		"the image would have too many files")
}

// contextDir returns the directory context with files. Of two files with the same path the later
// counts.
func contextDir(files []File) (*node, error) {
	top := newContextDir("context")
	dirs := map[string]*node{"": top}
	seen := make(map[string]*node)
	for _, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." || len(f.Path) > maxPath {
			return nil, invalid(f.Path, "is not a path below /context")
		}
		size := f.Content.Size
		if f.Content.Digest == "" {
			size = int64(len(f.Data))
		}
		n := seen[f.Path]
		if n == nil {
			if dirs[f.Path] != nil {
				return nil, invalid(f.Path, "is a file and a directory")
			}
			n = &node{mode: 0o644}
			seen[f.Path] = n
			if err := place(dirs, seen, f, n); err != nil {
				return nil, err
			}
		}
		n.size, n.content, n.data = size, f.Content, f.Data
		n.stat = erofs.Stat{Nlink: 1, Mtime: uint64(f.MTime.Sec), MtimeNs: uint32(f.MTime.Nsec)}
	}
	for _, d := range dirs {
		slices.SortFunc(d.children, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	}
	return top, nil
}

func newContextDir(name string) *node {
	return &node{name: name, mode: fs.ModeDir | 0o755, stat: erofs.Stat{Nlink: 2}}
}

// place puts n at the path of f, and creates the parent directories.
func place(dirs, seen map[string]*node, f File, n *node) error {
	at := dirs[""]
	rest := f.Path
	for done := 0; ; {
		name, more, deeper := strings.Cut(rest, "/")
		// as old as the newest file in it
		at.stat.Mtime = max(at.stat.Mtime, uint64(max(0, f.MTime.Sec)))
		if !deeper {
			n.name = name
			at.children = append(at.children, n)
			return nil
		}
		done += len(name)
		path := f.Path[:done]
		done++
		if seen[path] != nil {
			return invalid(path, "is a file and a directory")
		}
		d := dirs[path]
		if d == nil {
			d = newContextDir(name)
			dirs[path] = d
			at.children = append(at.children, d)
			at.stat.Nlink++
		}
		at, rest = d, more
	}
}
