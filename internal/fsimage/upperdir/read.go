package upperdir

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Additional records of an entry; see State.export in docs/wire.md.
const (
	recordXattr  = "SCHILY.xattr."
	recordHex    = "TURNSTONE.xattr."
	recordLinks  = "TURNSTONE.links"
	recordSize   = "TURNSTONE.size"
	recordSparse = "TURNSTONE.sparse"
	recordMore   = "TURNSTONE.more"
)

const (
	readSize = 256 << 10 // bytes per read
	maxSize  = 1 << 62   // bytes of a file, including holes
	maxPath  = 64 << 10  // bytes of a path
)

// A reader is the state of reading a stream.
type reader struct {
	ctx   context.Context
	in    *tar.Reader
	opts  Options
	spool *spoolWriter

	open    []openDir // from the top to the directory that is being read
	last    *node     // the previous entry, if it was a file that may continue
	name    string    // its name
	linked  map[string]*node
	ids     uint64
	entries int
	meta    int64
	data    int64
	holes   int64
}

// An openDir is a directory whose entries are incomplete.
type openDir struct {
	path string // with a trailing "/"; empty for the top
	n    *node
}

// read reads a stream.
func read(ctx context.Context, r io.Reader, spool *os.File, opts Options) (*node, error) {
	in := &counter{r: bufio.NewReaderSize(r, readSize)}
	d := &reader{ctx: ctx, in: tar.NewReader(in), opts: opts, linked: map[string]*node{},
		spool: &spoolWriter{f: spool, may: opts.Room, buf: make([]byte, 0, spoolBuffer)}}
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		before := in.n
		h, err := d.in.Next()
		if errors.Is(err, io.EOF) {
			// Next accepts a stream without an end marker as complete.
			if !in.ended(before) {
				return nil, d.cause(in, io.ErrUnexpectedEOF)
			}
			break
		}
		if err == nil {
			err = d.entry(h)
		}
		if err != nil {
			return nil, d.cause(in, err)
		}
	}
	switch n, err := in.Read(make([]byte, 1)); {
	case n > 0:
		return nil, integrity("the stream", "data follows its end")
	case !errors.Is(err, io.EOF):
		return nil, d.cause(in, err)
	case len(d.open) == 0:
		return nil, integrity("the stream", "it is empty")
	case d.holes > d.opts.Holes:
		return nil, d.tooManyHoles("the sandbox's files")
	}
	root := d.open[0].n
	for len(d.open) > 0 {
		if err := d.closeDir(); err != nil {
			return nil, err
		}
	}
	return root, d.spool.flush()
}

// cause prefers the reason for the stream's end over tar's resulting error.
func (d *reader) cause(in *counter, err error) error {
	switch {
	case d.ctx.Err() != nil:
		return context.Cause(d.ctx)
	case in.err != nil && !errors.Is(in.err, io.EOF):
		return in.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return integrity("the stream", "it is truncated")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong),
		errors.Is(err, tar.ErrInsecurePath):
		return integrity("the stream", "%w", err)
	}
	return err
}

// entry processes an entry.
func (d *reader) entry(h *tar.Header) error {
	if more, ok := h.PAXRecords[recordMore]; ok {
		return d.more(h, more)
	}
	d.last = nil
	if d.entries++; d.entries > d.opts.Entries {
		return exhausted("the sandbox's files", "remove files that the next turn does not need",
			"more than %d of them were changed", d.opts.Entries)
	}
	if len(h.Name) > maxPath+1 { // a directory's name has a trailing slash
		return exhausted("/"+h.Name, "remove the directory before the turn ends",
			"directories are nested so deep that a path has more than %d bytes", maxPath)
	}
	if err := d.count(h); err != nil {
		return err
	}
	if len(d.open) == 0 {
		return d.top(h)
	}
	path := h.Name
	if h.Typeflag == tar.TypeDir {
		path = strings.TrimSuffix(path, "/")
	}
	name, err := d.enter(path)
	if err != nil {
		return err
	}
	n, err := d.node(path, h)
	if err != nil {
		return err
	}
	dir := d.open[len(d.open)-1].n
	dir.kids = append(dir.kids, tree.Child{Name: name, Node: n})
	if h.Typeflag == tar.TypeDir {
		if len(d.open) > tree.MaxDepth {
			return exhausted(path, "remove directories that are nested very deep",
				"directories that are nested more than %d deep", tree.MaxDepth)
		}
		d.open = append(d.open, openDir{path + "/", n})
	}
	return nil
}

// count bounds an entry's data in memory, apart from its content.
func (d *reader) count(h *tar.Header) error {
	d.meta += int64(len(h.Name) + len(h.Linkname))
	for k, v := range h.PAXRecords {
		d.meta += int64(len(k) + len(v))
		// tar would convert the record to zeros without bound
		if strings.HasPrefix(k, "GNU.sparse.") {
			return integrity(h.Name, "it has the record %s", brief.Subject(k))
		}
	}
	if d.meta > d.opts.Meta {
		return exhausted("the sandbox's files",
			"remove files that the next turn does not need, or their extended attributes",
			"names and attributes of more than %s", turnstone.Bytes(d.opts.Meta))
	}
	return nil
}

// top processes the first entry.
func (d *reader) top(h *tar.Header) error {
	if h.Name != "./" || h.Typeflag != tar.TypeDir {
		return integrity(h.Name, "the stream does not begin with the top directory")
	}
	n, err := d.node("/", h)
	if err == nil {
		d.open = append(d.open, openDir{"", n})
	}
	return err
}

// enter makes the directory of path, which must be open, the directory that is being read. It
// returns the path's last name.
func (d *reader) enter(path string) (name string, err error) {
	i := strings.LastIndexByte(path, '/') + 1
	dir, name := path[:i], path[i:]
	if err := tree.CheckName(name); err != nil {
		return "", integrity(path, "%w", err)
	}
	for len(d.open) > 1 && d.open[len(d.open)-1].path != dir {
		if err := d.closeDir(); err != nil {
			return "", err
		}
	}
	if d.open[len(d.open)-1].path != dir {
		return "", integrity(path, "its directory does not exist, or was left already")
	}
	return name, nil
}

// closeDir sorts the entries of the directory that is being read.
func (d *reader) closeDir() error {
	at := d.open[len(d.open)-1]
	d.open = d.open[:len(d.open)-1]
	kids := slices.Clip(at.n.kids)
	slices.SortFunc(kids, func(a, b tree.Child) int { return strings.Compare(a.Name, b.Name) })
	for i := range kids {
		if i > 0 && kids[i].Name == kids[i-1].Name {
			return integrity(at.path+kids[i].Name, "a duplicate name")
		}
	}
	at.n.kids = kids
	return nil
}

// node returns the node of an entry; for a hard link it finds the target's node.
func (d *reader) node(path string, h *tar.Header) (*node, error) {
	if h.Typeflag == tar.TypeLink {
		n := d.linked[h.Linkname]
		if n == nil {
			return nil, integrity(path, "a hard link to %q, which does not exist",
				brief.Subject(h.Linkname))
		}
		n.names++
		return n, nil
	}
	d.ids++
	n := &node{id: d.ids, names: 1, spool: d.spool.f}
	n.attr = tree.Attr{Mode: uint32(h.Mode & 0o7777),
		MTime: tree.Time{Sec: h.ModTime.Unix(), Nsec: int32(h.ModTime.Nanosecond())}}
	var err error
	if n.attr.UID, n.attr.GID, err = owner(path, h); err != nil {
		return nil, err
	}
	if n.attr.Xattrs, err = xattrs(path, h); err != nil {
		return nil, err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		n.attr.Type = tree.Dir
		return n, nil
	case tar.TypeReg:
		n.attr.Type = tree.File
		err = d.file(path, n, h)
	case tar.TypeSymlink:
		n.attr.Type, n.attr.Target = tree.Symlink, h.Linkname
		if h.Linkname == "" || len(h.Linkname) > tree.MaxTarget ||
			strings.IndexByte(h.Linkname, 0) >= 0 {
			err = integrity(path, "a link with a target of %d bytes", len(h.Linkname))
		}
	case tar.TypeFifo:
		n.attr.Type = tree.FIFO
	case tar.TypeChar, tar.TypeBlock:
		n.attr.Type = tree.Char
		if h.Typeflag == tar.TypeBlock {
			n.attr.Type = tree.Block
		}
		if h.Devmajor < 0 || h.Devmajor > tree.MaxMajor || h.Devminor < 0 ||
			h.Devminor > tree.MaxMinor {
			err = integrity(path, "a device %d/%d", h.Devmajor, h.Devminor)
		}
		n.attr.Major, n.attr.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	default:
		err = integrity(path, "an entry of the type %q", h.Typeflag)
	}
	if err == nil && h.PAXRecords[recordLinks] != "" {
		d.linked[h.Name] = n
	}
	return n, err
}

func owner(path string, h *tar.Header) (uid, gid uint32, err error) {
	if int64(h.Uid) != int64(uint32(h.Uid)) || int64(h.Gid) != int64(uint32(h.Gid)) {
		return 0, 0, integrity(path, "an owner %d:%d", h.Uid, h.Gid)
	}
	return uint32(h.Uid), uint32(h.Gid), nil
}

// xattrs returns an entry's extended attributes, sorted by name. Their names and values are checked
// when the tree is built.
func xattrs(path string, h *tar.Header) ([]tree.Xattr, error) {
	var out []tree.Xattr
	for k, v := range h.PAXRecords {
		name, plain := strings.CutPrefix(k, recordXattr)
		if !plain {
			var encoded bool
			if name, encoded = strings.CutPrefix(k, recordHex); !encoded {
				continue
			}
			b, err := hex.DecodeString(name)
			if err != nil {
				return nil, integrity(path, "an extended attribute's name: %w", err)
			}
			name = string(b)
		}
		if name == "" || strings.IndexByte(name, 0) >= 0 {
			return nil, integrity(path, "an extended attribute that is called %q", name)
		}
		out = append(out, tree.Xattr{Name: name, Value: []byte(v)})
	}
	slices.SortFunc(out, func(a, b tree.Xattr) int { return strings.Compare(a.Name, b.Name) })
	for i := range out {
		if i > 0 && out[i].Name == out[i-1].Name {
			return nil, integrity(path, "two extended attributes %q", brief.Subject(out[i].Name))
		}
	}
	return out, nil
}

// file reads the content of a file, or the first parts of it.
func (d *reader) file(path string, n *node, h *tar.Header) error {
	list, sparse := h.PAXRecords[recordSparse]
	if !sparse {
		if h.Size > d.opts.FileSize {
			return d.tooLarge(path)
		}
		n.attr.Size = h.Size
		if h.Size == 0 {
			return nil
		}
		n.parts = make([]part, 0, 1)
		return d.part(path, n, part{length: h.Size})
	}
	size, err := strconv.ParseInt(h.PAXRecords[recordSize], 10, 64)
	if err != nil || size < 0 || size > maxSize {
		return integrity(path, "a file of %q bytes", brief.Subject(h.PAXRecords[recordSize]))
	}
	if size > d.opts.FileSize {
		return d.tooLarge(path)
	}
	if size > d.opts.Holes+d.opts.Bytes { // which also bounds the sum
		return d.tooManyHoles(path)
	}
	n.attr.Size = size
	d.last, d.name = n, h.Name
	d.holes += size
	return d.parts(path, n, list, h.Size)
}

// more reads further parts of the previous file.
func (d *reader) more(h *tar.Header, list string) error {
	if d.last == nil || h.Typeflag != tar.TypeReg || h.Name != d.name {
		return integrity(h.Name, "a part of a file other than the previous file")
	}
	if err := d.count(h); err != nil {
		return err
	}
	return d.parts(h.Name, d.last, list, h.Size)
}

// parts reads the parts that a list names; size is the amount of data in the stream.
func (d *reader) parts(path string, n *node, list string, size int64) error {
	// the list's parts in memory are larger than the list
	if d.meta += int64(len(list)) * 4; list == "" {
		if size != 0 {
			return integrity(path, "data without a part")
		}
		return d.countHoles(path)
	}
	numbers := strings.Count(list, ",") + 1
	next := func() (v int64, err error) {
		word, rest, _ := strings.Cut(list, ",")
		list = rest
		if v, err = strconv.ParseInt(word, 10, 64); err != nil || v < 0 || v > maxSize {
			return 0, integrity(path, "a part at %q", brief.Subject(word))
		}
		return v, nil
	}
	if numbers%2 != 0 {
		return integrity(path, "a part without a length")
	}
	for range numbers / 2 {
		offset, err := next()
		if err != nil {
			return err
		}
		length, err := next()
		if err != nil {
			return err
		}
		end := int64(0)
		if k := len(n.parts); k > 0 {
			end = n.parts[k-1].offset + n.parts[k-1].length
		}
		if offset < end || length == 0 || length > size || offset > n.attr.Size-length {
			return integrity(path, "a part of %d bytes at %d, of %d", length, offset, n.attr.Size)
		}
		size -= length
		d.holes -= length
		if err := d.part(path, n, part{offset: offset, length: length}); err != nil {
			return err
		}
	}
	if size != 0 {
		return integrity(path, "data without a part")
	}
	return d.countHoles(path)
}

// countHoles is called when the parts of a file may be incomplete: later parts reduce the holes.
func (d *reader) countHoles(path string) error {
	if d.holes > d.opts.Holes+d.opts.Bytes-d.data {
		return d.tooManyHoles(path)
	}
	return nil
}

func (d *reader) tooLarge(path string) error {
	return exhausted(path, "make the file smaller, or remove it", "a file of more than %s",
		turnstone.Bytes(d.opts.FileSize).Human())
}

func (d *reader) tooManyHoles(path string) error {
	return exhausted(path, "remove the largest sparse files, or make them smaller with truncate",
		"sparse files with holes of more than %s in total", turnstone.Bytes(d.opts.Holes))
}

// part copies the next p.length bytes of the stream to the spool.
func (d *reader) part(path string, n *node, p part) error {
	if d.data += p.length; d.data > d.opts.Bytes || p.length > d.opts.Bytes {
		return exhausted(path, "remove files that the next turn does not need",
			"files of more than %s in total", turnstone.Bytes(d.opts.Bytes))
	}
	p.at = d.spool.end()
	// Continues the previous part, such as in a file with many entries.
	if k := len(n.parts); k > 0 && n.parts[k-1].offset+n.parts[k-1].length == p.offset &&
		n.parts[k-1].at+n.parts[k-1].length == p.at {
		n.parts[k-1].length += p.length
	} else {
		n.parts = append(n.parts, p)
	}
	for left := p.length; left > 0; {
		if d.ctx.Err() != nil {
			return context.Cause(d.ctx)
		}
		b, err := d.spool.room()
		if err != nil {
			return err
		}
		k, err := io.ReadFull(d.in, b[:min(int64(len(b)), left)])
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		d.spool.take(k)
		left -= int64(k)
	}
	return nil
}
