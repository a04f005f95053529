package tree

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"turnstone.dev/turnstone"
)

// Prefixes of the two hashes, so that neither can be confused with the other or with a file's hash.
const (
	dirPrefix  = "turnstone fs dir 1\n"
	rootPrefix = "turnstone fs root 1\n"

	hashBuffer = 32 << 10 // in bytes
)

// fsHash returns the FS hash of the entries of a directory as defined in docs/fs-hash.md. d must
// pass Check; the hashes of its subdirectories are trusted.
func (d Directory) fsHash() turnstone.Digest {
	h := newFSHasher(dirPrefix)
	for i := range d {
		h.bytes(d[i].Name)
		h.node(&d[i])
	}
	return h.sum()
}

// fsHash returns the FS hash of the whole tree. r must pass Check; r.Hash is trusted.
func (r *Root) fsHash() turnstone.Digest {
	h := newFSHasher(rootPrefix)
	h.node(&r.Entry)
	h.uint64(uint64(len(r.Links)))
	for _, g := range r.Links {
		h.uint32(uint32(len(g)))
		for _, p := range g {
			h.bytes(p)
		}
	}
	return h.sum()
}

// An fsHasher writes the fields of docs/fs-hash.md. Numbers are big-endian with fixed width, so
// that a second implementation needs no varints.
type fsHasher struct {
	h   hash.Hash
	buf []byte
}

func newFSHasher(prefix string) *fsHasher {
	return &fsHasher{h: sha256.New(), buf: append(make([]byte, 0, 1024), prefix...)}
}

func (h *fsHasher) node(e *Entry) {
	mode := e.Mode
	if e.Type == Symlink {
		mode = 0o777 // Linux has no other mode, but a file system's image may contain any
	}
	h.buf = append(h.buf, byte(e.Type))
	h.uint32(mode)
	h.uint32(e.UID)
	h.uint32(e.GID)
	h.xattrs(e.Xattrs)
	switch e.Type {
	case Dir:
		h.buf = appendDigest(h.buf, e.Hash)
	case File:
		h.uint64(uint64(e.Size))
		h.buf = appendDigest(h.buf, e.Content.Digest)
	case Symlink:
		h.bytes(e.Target)
	case Char, Block:
		h.uint32(e.Major)
		h.uint32(e.Minor)
	}
	h.flush(hashBuffer)
}

func (h *fsHasher) xattrs(xattrs []Xattr) {
	n := uint32(0)
	for i := range xattrs {
		if hashedXattr(xattrs[i].Name) {
			n++
		}
	}
	h.uint32(n)
	for i := range xattrs {
		if x := &xattrs[i]; hashedXattr(x.Name) {
			h.bytes(x.Name)
			h.uint32(uint32(len(x.Value)))
			h.buf = append(h.buf, x.Value...)
		}
	}
}

func (h *fsHasher) uint32(x uint32) { h.buf = binary.BigEndian.AppendUint32(h.buf, x) }
func (h *fsHasher) uint64(x uint64) { h.buf = binary.BigEndian.AppendUint64(h.buf, x) }

func (h *fsHasher) bytes(s string) {
	h.uint32(uint32(len(s)))
	h.buf = append(h.buf, s...)
	h.flush(hashBuffer)
}

// flush hashes the buffered data if it has at least n bytes.
func (h *fsHasher) flush(n int) {
	if len(h.buf) >= n {
		_, _ = h.h.Write(h.buf) // documented never to fail
		h.buf = h.buf[:0]
	}
}

func (h *fsHasher) sum() turnstone.Digest {
	h.flush(1)
	return digestOf(h.h)
}

func digestOf(h hash.Hash) turnstone.Digest {
	var sum [rawDigest]byte
	return turnstone.Digest(digestStart + hex.EncodeToString(h.Sum(sum[:0])))
}
