package ext4

import (
	"context"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// fileTypes maps a directory entry's type number to the file's type.
var fileTypes = [...]uint16{0, modeFile, modeDir, modeChar, modeBlock,
	modeFIFO, modeSocket, modeLink}

// Children returns a directory's entries, sorted by name, without "." and "..". Their nodes are
// *Inode, and are already read.
func (n *Inode) Children(ctx context.Context) ([]tree.Child, error) {
	entries, err := n.list(ctx)
	if err != nil {
		return nil, err
	}
	first := n.fs.listed.take(uint64(n.ino), 1)
	// In the order of their numbers, so that the inode tables are read once.
	slices.SortFunc(entries, func(a, b dirEntry) int { return int(int64(a.ino) - int64(b.ino)) })
	out := make([]tree.Child, 0, len(entries))
	for i, e := range entries {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		child, err := n.fs.inode(e.ino)
		if err != nil {
			return nil, err
		}
		if e.kind != 0 && n.fs.filetype &&
			(int(e.kind) >= len(fileTypes) || fileTypes[e.kind] != child.mode&modeType) {
			return nil, corrupt("directory %d has the wrong type for inode %d", n.ino, e.ino)
		}
		if child.attr.Type == tree.Dir {
			if err := n.fs.found(e.ino, dirName{n.ino, e.name}); err != nil {
				return nil, err
			}
		}
		// A file with a link count of 1 has a single name, so that many names cannot share its
		// content and make it expensive to read.
		if first && child.links == 1 && child.attr.Type != tree.Dir &&
			!n.fs.named.take(uint64(e.ino), 1) {
			return nil, corrupt("inode %d has a link count of 1 and two names", e.ino)
		}
		out = append(out, tree.Child{Name: e.name, Node: child})
	}
	slices.SortFunc(out, func(a, b tree.Child) int { return strings.Compare(a.Name, b.Name) })
	for i := range out {
		if i > 0 && out[i].Name == out[i-1].Name {
			return nil, corrupt("directory %d has two entries %q", n.ino, out[i].Name)
		}
	}
	return out, nil
}

// child returns the entry of that name.
func (n *Inode) child(name string) (*Inode, error) {
	notFound := turnstone.NewError("ext4.lookup", turnstone.KindNotFound, name, nil)
	if n.attr.Type != tree.Dir {
		return nil, notFound
	}
	entries, err := n.list(context.Background())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.name == name {
			return n.fs.inode(e.ino)
		}
	}
	return nil, notFound
}

// found records a name of this directory. A directory with two names, or inside itself, would never
// end.
func (fs *FS) found(ino uint32, name dirName) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if old, ok := fs.dirs[ino]; ino == rootInode || ok && old != name {
		return corrupt("directory %d has two names", ino)
	}
	fs.dirs[ino] = name
	return nil
}

// A dirEntry is a name in a directory.
type dirEntry struct {
	ino  uint32
	kind byte // index of fileTypes; 0 if unknown
	name string
}

// list reads a directory sequentially. The tree of a hashed directory is hidden in unused entries,
// so the directory reads like a linear directory.
func (n *Inode) list(ctx context.Context) ([]dirEntry, error) {
	if n.attr.Type != tree.Dir {
		return nil, corrupt("inode %d is not a directory", n.ino)
	}
	m, err := n.mapping()
	if err != nil {
		return nil, err
	}
	f := File{fs: n.fs, extents: m.extents, size: n.size}
	if f.allocated() != n.size { // bounds its size by the disk's size
		return nil, corrupt("directory %d has holes", n.ino)
	}
	l := lister{n: n, count: m.first}
	bs := int(n.fs.blockSize)
	buf := make([]byte, min(n.size, max(int64(bs), 256<<10)))
	for off := int64(0); off < n.size; off += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		buf = buf[:min(int64(len(buf)), n.size-off)]
		if _, err := f.Read(buf); err != nil {
			return nil, err
		}
		for b := buf; len(b) > 0; b = b[bs:] {
			if err := l.block(b[:bs]); err != nil {
				return nil, err
			}
		}
	}
	if l.seen != 2 {
		return nil, corrupt("directory %d does not begin with the entries . and ..", n.ino)
	}
	return l.entries, nil
}

type lister struct {
	n       *Inode
	count   bool // counts towards the limit
	seen    int  // entries, up to 2
	entries []dirEntry
}

// block reads a block of a directory (struct ext4_dir_entry_2).
func (l *lister) block(b []byte) error {
	const head = 8
	fs := l.n.fs
	for len(b) > 0 {
		if len(b) < head+4 {
			return corrupt("directory %d has a truncated entry", l.n.ino)
		}
		length, name := int(le.Uint16(b[4:])), int(b[6])
		if fs.blockSize == 1<<16 && (length == 0 || length == 1<<16-1) {
			length = 1 << 16
		}
		kind := b[7]
		if !fs.filetype {
			kind = 0
		}
		if length < head+4 || length%4 != 0 || length > len(b) || head+name > length {
			return corrupt("directory %d has an entry of %d bytes", l.n.ino, length)
		}
		if ino := le.Uint32(b); ino != 0 {
			if err := l.add(dirEntry{ino, kind, string(b[head : head+name])}); err != nil {
				return err
			}
		}
		b = b[length:]
	}
	return nil
}

func (l *lister) add(e dirEntry) error {
	if l.seen < 2 {
		if want := [...]string{".", ".."}[l.seen]; e.name != want ||
			l.seen == 0 && e.ino != l.n.ino {
			return corrupt("directory %d begins with %q", l.n.ino, e.name)
		}
		l.seen++
		return nil
	}
	if e.name == "" || e.name == "." || e.name == ".." || strings.ContainsAny(e.name, "/\x00") {
		return corrupt("directory %d has an entry %q", l.n.ino, e.name)
	}
	if l.count && l.n.fs.entries.Add(1) > l.n.fs.opts.Entries {
		return exhausted("remove files that the next turn does not need",
			"more than %d files", l.n.fs.opts.Entries)
	}
	l.entries = append(l.entries, e)
	return nil
}
