// Package treeindex finds the tree of a template's root image, and the position of each content in
// the image. It reads the image once and keeps an index beside it.
package treeindex

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// The file root.tree beside a root image describes the image's tree and the position of each
// content. Every turn uses it, so it is mapped and searched, not read. All numbers are
// little-endian and 8 bytes long.
//
//	header   magic, digest of the image(32), digest of the root object(32), FS hash(32),
//	         numbers of contents, extents, sizes and objects, bytes of objects,
//	         SHA-256 of the header so far(32)
//	contents digest(32) size, first extent, number of extents; sorted by digest
//	extents  offset in the image (all ones: zeros), size
//	sizes    the sizes of contents, sorted, each once
//	objects  length and bytes of each object of the tree
const (
	indexMagic   = "turntre1"
	indexHeader  = len(indexMagic) + 3*32 + 5*8 + 32
	contentEntry = 32 + 3*8
	extentEntry  = 2 * 8
	maxIndex     = 4 << 30 // bytes
)

// A placedContent is a content and its positions.
type placedContent struct {
	digest  [32]byte
	size    int64
	extents []extent
}

// An indexHead is the fixed part of an index.
type indexHead struct {
	image, root, hash                        [32]byte
	contents, extents, sizes, objects, bytes int64
}

// encodeIndex returns the index of an image.
func encodeIndex(image turnstone.Digest, ref turnstone.TreeRef, contents []placedContent,
	objects [][]byte) []byte {
	slices.SortFunc(contents,
		func(a, b placedContent) int { return bytes.Compare(a.digest[:], b.digest[:]) })
	contents = slices.CompactFunc(contents,
		func(a, b placedContent) bool { return a.digest == b.digest })
	var sizes []int64
	extents, size := 0, 0
	for _, c := range contents {
		sizes = append(sizes, c.size)
		extents += len(c.extents)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	for _, o := range objects {
		size += 8 + len(o)
	}
	number := func(b []byte,
		n int64) []byte {
		return binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	out := []byte(indexMagic)
	for _, d := range []turnstone.Digest{image, ref.Root, ref.Hash} {
		raw := rawDigest(d)
		out = append(out, raw[:]...)
	}
	for _, n := range []int{len(contents), extents, len(sizes), len(objects), size} {
		out = number(out, int64(n))
	}
	sum := sha256.Sum256(out)
	out = append(out, sum[:]...)
	first := int64(0)
	for _, c := range contents {
		out = append(out, c.digest[:]...)
		out = number(number(number(out, c.size), first), int64(len(c.extents)))
		first += int64(len(c.extents))
	}
	for _, c := range contents {
		for _, x := range c.extents {
			out = number(number(out, x.offset), x.size)
		}
	}
	for _, n := range sizes {
		out = number(out, n)
	}
	for _, o := range objects {
		out = append(number(out, int64(len(o))), o...)
	}
	return out
}

// rawDigest returns the bytes of a well-formed digest.
func rawDigest(d turnstone.Digest) (raw [32]byte) {
	if len(d.Hex()) == 64 {
		_, _ = hex.Decode(raw[:], []byte(d.Hex()))
	}
	return raw
}

func digestOf(raw [32]byte) turnstone.Digest {
	return turnstone.Digest("sha256:" + hex.EncodeToString(raw[:]))
}

// An Index is a mapped index file. It is safe for concurrent use.
type Index struct {
	indexHead
	mapped                               []byte
	contents, extents, sizes, objectData []byte
}

var errIndex = errors.New("the index of the template's tree is damaged, or of another version")

// openIndex maps the index at path, which must belong to image. Close it.
func openIndex(path string, image turnstone.Digest) (*Index, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Size() < int64(indexHeader) || fi.Size() > maxIndex {
		return nil, errIndex
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	x, err := parseIndex(mapped)
	if err == nil && digestOf(x.image) != image {
		err = errIndex
	}
	if err != nil {
		_ = unix.Munmap(mapped)
		return nil, err
	}
	return x, nil
}

// parseIndex checks only the header: later lookups check the entries that they use.
func parseIndex(b []byte) (*Index, error) {
	if len(b) < indexHeader || string(b[:len(indexMagic)]) != indexMagic {
		return nil, errIndex
	}
	head := b[:indexHeader-32]
	if sum := sha256.Sum256(head); !bytes.Equal(sum[:], b[len(head):indexHeader]) {
		return nil, errIndex
	}
	x := &Index{mapped: b}
	head = head[len(indexMagic):]
	for _, d := range []*[32]byte{&x.image, &x.root, &x.hash} {
		copy(d[:], head)
		head = head[32:]
	}
	for _, n := range []*int64{&x.indexHead.contents, &x.indexHead.extents, &x.indexHead.sizes,
		&x.indexHead.objects, &x.bytes} {
		*n, head = int64(binary.LittleEndian.Uint64(head)), head[8:]
	}
	rest := b[indexHeader:]
	for _, part := range []struct {
		to          *[]byte
		count, each int64
	}{{&x.contents, x.indexHead.contents, contentEntry},
		{&x.extents, x.indexHead.extents, extentEntry},
		{&x.sizes, x.indexHead.sizes, 8}, {&x.objectData, x.bytes, 1}} {
		if part.count < 0 || part.count > int64(len(rest))/part.each {
			return nil, errIndex
		}
		*part.to, rest = rest[:part.count*part.each], rest[part.count*part.each:]
	}
	if len(rest) > 0 {
		return nil, errIndex
	}
	return x, nil
}

// Close unmaps the index.
func (x *Index) Close() error { return unix.Munmap(x.mapped) }

func (x *Index) ref() turnstone.TreeRef {
	return turnstone.TreeRef{Root: digestOf(x.root), Hash: digestOf(x.hash)}
}

// find returns the number of a content.
func (x *Index) find(d turnstone.Digest) (int, bool) {
	raw := rawDigest(d)
	entry := func(i int) []byte { return x.contents[i*contentEntry : i*contentEntry+32] }
	n := len(x.contents) / contentEntry
	i := sort.Search(n, func(i int) bool { return bytes.Compare(entry(i), raw[:]) >= 0 })
	return i, i < n && bytes.Equal(entry(i), raw[:])
}

// hasSize reports whether a content has size bytes.
func (x *Index) hasSize(size int64) bool {
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(x.sizes[8*i:])) }
	n := len(x.sizes) / 8
	i := sort.Search(n, func(i int) bool { return at(i) >= size })
	return i < n && at(i) == size
}

// content returns the size of content i and its positions in an image of imageSize bytes.
func (x *Index) content(i int, imageSize int64) (size int64, extents []extent, err error) {
	e := x.contents[i*contentEntry+32:]
	number := func(b []byte, at int) int64 { return int64(binary.LittleEndian.Uint64(b[8*at:])) }
	size, first, count := number(e, 0), number(e, 1), number(e, 2)
	total := int64(len(x.extents) / extentEntry)
	if size < 0 || first < 0 || count < 0 || first > total || count > total-first {
		return 0, nil, errIndex
	}
	left := size
	for j := first; j < first+count; j++ {
		b := x.extents[j*extentEntry:]
		part := extent{number(b, 0), number(b, 1)}
		if part.size <= 0 || part.size > left || !part.within(imageSize) {
			return 0, nil, errIndex
		}
		left -= part.size
		extents = append(extents, part)
	}
	if left != 0 {
		return 0, nil, errIndex
	}
	return size, extents, nil
}

// each calls fn with every object of the tree, the root last.
func (x *Index) each(fn func(b []byte) error) error {
	rest := x.objectData
	for range x.indexHead.objects {
		if len(rest) < 8 {
			return errIndex
		}
		n := binary.LittleEndian.Uint64(rest)
		if rest = rest[8:]; n > uint64(len(rest)) {
			return errIndex
		}
		if err := fn(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// A part is a Writer that may have the root of a tree and not all below it.
type part interface{ Complete() bool }

// Put puts the tree's objects into w, unless w has the root's, and returns the tree.
func (x *Index) Put(ctx context.Context, w tree.Writer) (turnstone.TreeRef, error) {
	ref := x.ref()
	if p, ok := w.(part); ok && !p.Complete() {
		// each is put, or found
	} else if _, err := w.Get(ctx, ref.Root); err == nil {
		return ref, nil
	} else if turnstone.KindOf(err) != turnstone.KindNotFound {
		return turnstone.TreeRef{}, err
	}
	var last turnstone.Digest
	err := x.each(func(b []byte) (err error) {
		// Copied, because the index may be unmapped before w is done.
		last, err = w.Put(ctx, append([]byte{}, b...))
		return err
	})
	if err == nil && last != ref.Root {
		err = errIndex
	}
	if errors.Is(err, errIndex) {
		err = turnstone.NewError("template.tree", turnstone.KindIntegrity, ref.Root.Short(), err)
	}
	return ref, err
}
