package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"turnstone.dev/turnstone"
)

// The encoding of a root, in the terms of a directory's encoding:
//
//	root   'r' version body:bytes number-of-groups [0 group* | 1 chunk*]
//	chunk  object(32) number-of-groups
//	object 'l' version group*
//	group  number-of-paths path:bytes…
//
// A short table of links is part of the root, a long table is in separate objects, cut at positions
// that depend on the first path of a group. Two tables with equal sections then have common
// objects, as directories do.
const (
	inlineLinks  = 16 << 10 // bytes of the table inside the root
	minLinkChunk = 16 << 10 // minimum bytes of an object, except the last
	maxLinkChunk = 1 << 20  // bytes after which every object ends with the next group
	linkCutMask  = 1<<6 - 1 // a group ends an object with this probability
)

// Encode returns the canonical encoding of r, which must pass Check, and the objects with its links
// that the encoding names.
func (r *Root) Encode() (root []byte, links [][]byte) {
	root = []byte{rootMagic, formatVersion}
	body := appendBody(nil, &r.Entry)
	root = binary.AppendUvarint(root, uint64(len(body)))
	root = append(root, body...)
	root = binary.AppendUvarint(root, uint64(len(r.Links)))
	if len(r.Links) == 0 {
		return root, nil
	}
	chunks, counts, size := encodeLinks(r.Links)
	if size <= inlineLinks {
		root = append(root, 0)
		return append(root, chunks[0][2:]...), nil
	}
	root = append(root, 1)
	for i, c := range chunks {
		root = appendDigest(root, turnstone.DigestBytes(c))
		root = binary.AppendUvarint(root, uint64(counts[i]))
	}
	return root, chunks
}

// encodeLinks cuts the table into objects. size is the size of the groups in all of them in bytes.
func encodeLinks(groups []LinkGroup) (chunks [][]byte, counts []int, size int) {
	var chunk []byte
	n := 0
	for i, g := range groups {
		if chunk == nil {
			chunk, n = []byte{linksMagic, formatVersion}, 0
		}
		chunk = appendGroup(chunk, g)
		n++
		if i == len(groups)-1 || endsChunk(len(chunk)-2, g) {
			size += len(chunk) - 2
			chunks, counts = append(chunks, chunk), append(counts, n)
			chunk = nil
		}
	}
	return chunks, counts, size
}

func appendGroup(out []byte, g LinkGroup) []byte {
	out = binary.AppendUvarint(out, uint64(len(g)))
	for _, p := range g {
		out = appendString(out, p)
	}
	return out
}

// endsChunk reports whether g is the last group in an object of size bytes including g.
func endsChunk(size int, g LinkGroup) bool {
	return size > maxLinkChunk || size > minLinkChunk &&
		crc32.ChecksumIEEE([]byte(g[0]))&linkCutMask == 0
}

// A head is a root without its links, and the location of the links.
type head struct {
	entry  Entry
	groups uint64
	inline []byte // the table, if it is in the root
	chunks []linkChunk
}

type linkChunk struct {
	object turnstone.Digest
	groups uint64
}

func decodeHead(b []byte) (*head, error) {
	if len(b) < 2 || b[0] != rootMagic || b[1] != formatVersion {
		return nil, errors.New("is not a root of a tree, or is of another version")
	}
	c := cursor{b: b[2:]}
	body := c.bytes(math.MaxInt32)
	if c.err != nil {
		return nil, c.err
	}
	var h head
	if err := decodeBody(body, &h.entry); err != nil {
		return nil, err
	}
	if h.entry.Type != Dir {
		return nil, errors.New("is not a directory")
	}
	h.groups = c.uvarint()
	if c.err != nil || h.groups == 0 {
		return &h, c.end()
	}
	switch c.byte() {
	case 0:
		h.inline = c.b
		if len(h.inline) > inlineLinks {
			return nil, errForm
		}
		return &h, c.err
	case 1:
		return &h, h.decodeChunks(&c)
	}
	return nil, errForm
}

func (h *head) decodeChunks(c *cursor) error {
	left := h.groups
	for len(c.b) > 0 {
		k := linkChunk{c.digest(), c.uvarint()}
		if c.err == nil && (k.groups == 0 || k.groups > left) {
			return errForm
		}
		left -= k.groups
		h.chunks = append(h.chunks, k)
	}
	if c.err == nil && left > 0 {
		return errShort
	}
	return c.err
}

// DecodeRoot is the inverse of Encode; get returns the objects with links. Everything except
// Encode's output is an error of kind Integrity. The result does not refer to b.
func DecodeRoot(b []byte, get func(turnstone.Digest) ([]byte, error)) (*Root, error) {
	h, err := decodeHead(b)
	if err != nil {
		return nil, damaged("tree.decode", "a root's object", err)
	}
	r := &Root{Entry: h.entry}
	if r.Links, err = h.links("tree.decode", get, nil); err != nil {
		return nil, err
	}
	if h.chunks == nil {
		return r, nil
	}
	// The table must be cut as Encode does, otherwise it would have two encodings.
	again, _ := r.Encode()
	if string(again) != string(b) {
		return nil, damaged("tree.decode", "a root's object", errForm)
	}
	return r, nil
}

// links reads the groups, except those in the objects to omit.
func (h *head) links(op turnstone.Op, get func(turnstone.Digest) ([]byte, error),
	omit map[turnstone.Digest]bool) (groups []LinkGroup, err error) {
	if h.groups > 0 && h.chunks == nil {
		if groups, err = decodeGroups(nil, h.inline, h.groups); err != nil {
			return nil, damaged(op, "a root's object", err)
		}
		return groups, nil
	}
	for _, k := range h.chunks {
		if !omit[k.object] {
			if groups, err = k.read(get, groups); err != nil {
				return nil, err
			}
		}
	}
	return groups, nil
}

// read appends the chunk's groups to groups.
func (k *linkChunk) read(get func(turnstone.Digest) ([]byte, error),
	groups []LinkGroup) ([]LinkGroup, error) {
	b, err := get(k.object)
	if err != nil {
		return nil, err
	}
	if len(b) < 2 || b[0] != linksMagic || b[1] != formatVersion {
		return nil, damaged("tree.decode", string(k.object),
			errors.New("is not a table of hard links, or is of another version"))
	}
	if groups, err = decodeGroups(groups, b[2:], k.groups); err != nil {
		return nil, damaged("tree.decode", string(k.object), err)
	}
	return groups, nil
}

// decodeGroups appends the n groups in b.
func decodeGroups(groups []LinkGroup, b []byte, n uint64) ([]LinkGroup, error) {
	if n > uint64(len(b)/5) { // "/a" and "/b" with their lengths are longer
		return nil, errShort
	}
	last := ""
	if len(groups) > 0 {
		last = groups[len(groups)-1][0]
	}
	groups = slices.Grow(groups, int(n))
	c := cursor{b: b}
	for range n {
		paths := c.uvarint()
		if paths > uint64(len(c.b)/2) {
			return nil, errShort
		}
		g := make(LinkGroup, 0, paths)
		for range paths {
			g = append(g, string(c.bytes(math.MaxInt32)))
		}
		if c.err != nil {
			return nil, c.err
		}
		if err := checkGroup(g, last); err != nil {
			return nil, fmt.Errorf("hard links: %w", err)
		}
		last = g[0]
		groups = append(groups, g)
	}
	return groups, c.end()
}
