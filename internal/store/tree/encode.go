package tree

import (
	"encoding/binary"
	"encoding/hex"
	"strings"

	"turnstone.dev/turnstone"
)

// The encoding of a directory. Numbers are unsigned varints in their shortest form
// (encoding/binary), seconds are signed; "bytes" is a length followed by the bytes.
//
//	directory  'd' version entry*
//	entry      name:bytes body:bytes
//	body       type:byte mode uid gid seconds nanoseconds
//	           number of extended attributes, each name:bytes value:bytes
//	           file:    size digest(32) 0 | size digest(32) 1 chunks(32)
//	           symlink: target:bytes
//	           device:  major minor
//	           dir:     tree(32) hash(32)
//
// An entry's body can be skipped, or compared with another, without decoding. A directory has a
// single encoding: other encodings are rejected.
const (
	dirMagic      = 'd'
	rootMagic     = 'r'
	linksMagic    = 'l'
	formatVersion = 1

	rawDigest   = 32
	digestStart = "sha256:"
	digestLen   = len(digestStart) + 2*rawDigest
)

// Encode returns the canonical encoding of d, which must pass Check: two directories are equal if
// their encodings are equal.
func (d Directory) Encode() []byte {
	size := 2
	for i := range d {
		size += len(d[i].Name) + 120
	}
	out := append(make([]byte, 0, size), dirMagic, formatVersion)
	var body []byte
	for i := range d {
		body = appendBody(body[:0], &d[i])
		out = appendString(out, d[i].Name)
		out = binary.AppendUvarint(out, uint64(len(body)))
		out = append(out, body...)
	}
	return out
}

func appendBody(out []byte, e *Entry) []byte {
	out = append(out, byte(e.Type))
	out = binary.AppendUvarint(out, uint64(e.Mode))
	out = binary.AppendUvarint(out, uint64(e.UID))
	out = binary.AppendUvarint(out, uint64(e.GID))
	out = binary.AppendVarint(out, e.MTime.Sec)
	out = binary.AppendUvarint(out, uint64(e.MTime.Nsec))
	out = binary.AppendUvarint(out, uint64(len(e.Xattrs)))
	for _, x := range e.Xattrs {
		out = appendString(out, x.Name)
		out = binary.AppendUvarint(out, uint64(len(x.Value)))
		out = append(out, x.Value...)
	}
	switch e.Type {
	case Dir:
		out = appendDigest(out, e.Tree)
		out = appendDigest(out, e.Hash)
	case File:
		out = binary.AppendUvarint(out, uint64(e.Size))
		out = appendDigest(out, e.Content.Digest)
		if e.Content.Chunks == "" {
			out = append(out, 0)
		} else {
			out = appendDigest(append(out, 1), e.Content.Chunks)
		}
	case Symlink:
		out = appendString(out, e.Target)
	case Char, Block:
		out = binary.AppendUvarint(out, uint64(e.Major))
		out = binary.AppendUvarint(out, uint64(e.Minor))
	}
	return out
}

func appendString(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// appendDigest appends the bytes of d, which is well formed.
func appendDigest(out []byte, d turnstone.Digest) []byte {
	n := len(out)
	out = append(out, make([]byte, rawDigest)...)
	if len(d) == digestLen {
		_, _ = hex.Decode(out[n:], []byte(d[len(digestStart):]))
	}
	return out
}

// wellFormed is a faster turnstone.ParseDigest because every file has a digest.
func wellFormed(d turnstone.Digest) bool {
	if len(d) != digestLen || !strings.HasPrefix(string(d), digestStart) {
		return false
	}
	for _, c := range []byte(d[len(digestStart):]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
