package layer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// The first bytes of an encoded layer, and of its records.
const (
	encodeMagic   = "turnstone-layer\x001"
	recordEnd     = 0
	recordRemoved = 1
	recordSet     = 2
)

// Encode writes the layer that leads from tree a to tree b; it writes nothing if the trees are
// equal. The encoding is canonical: equal trees result in equal bytes, wherever and however they
// were made. The format is, after encodeMagic, a record for each path that differs, sorted bytewise
// by path:
//
//	removed  0x01, path
//	set      0x02, path, type (a byte), mode, uid, gid, seconds, nanoseconds;
//	         of a file its size and the 32 bytes of its digest; of a symbolic link
//	         its target; of a device major and minor;
//	         the number of extended attributes, and the name and the value of each;
//	         the first of the file's paths if it has several, else an empty string.
//	end      0x00
//
// Removing or replacing a directory implies the removal of everything below, which has no records.
// Numbers are unsigned varints, seconds a signed varint (encoding/binary); paths, targets, names
// and values are preceded by their length.
func Encode(ctx context.Context, r tree.Getter, a, b turnstone.TreeRef, w io.Writer) error {
	out := bufio.NewWriterSize(w, 64<<10)
	e := encoder{gone: map[string]bool{}}
	for c, err := range tree.Diff(ctx, r, a, b) {
		if err != nil {
			return err
		}
		if e.implied(&c) {
			continue
		}
		if !e.any {
			e.b, e.any = append(e.b, encodeMagic...), true
		}
		if err := e.change(&c); err != nil {
			return err
		}
		if _, err := out.Write(e.b); err != nil {
			return err
		}
		e.b = e.b[:0]
	}
	if e.any {
		if err := out.WriteByte(recordEnd); err != nil {
			return err
		}
	}
	return out.Flush()
}

// implied reports whether c is the removal of an entry in a removed directory.
func (e *encoder) implied(c *tree.Change) bool {
	in := e.gone[c.Path[:strings.LastIndexByte(c.Path, '/')]]
	if c.Old != nil && c.Old.Type == tree.Dir && (c.New == nil || c.New.Type != tree.Dir) {
		e.gone[c.Path] = true
	}
	return in
}

// Digest returns the digest of Encode's output, and "" if the output is empty.
func Digest(ctx context.Context, r tree.Getter, a, b turnstone.TreeRef) (turnstone.Digest, error) {
	if a == b {
		return "", nil
	}
	h := sha256.New()
	n := counter{w: h}
	if err := Encode(ctx, r, a, b, &n); err != nil || n.n == 0 {
		return "", err
	}
	return turnstone.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.w.Write(b)
}

type encoder struct {
	b    []byte          // the record
	any  bool            // there was a record
	gone map[string]bool // removed directories
}

func (e *encoder) num(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) str(s string) {
	e.num(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) change(c *tree.Change) error {
	n := c.New
	if n == nil {
		e.b = append(e.b, recordRemoved)
		e.str(c.Path)
		return nil
	}
	e.b = append(e.b, recordSet)
	e.str(c.Path)
	e.b = append(e.b, byte(n.Type))
	e.num(uint64(n.Mode))
	e.num(uint64(n.UID))
	e.num(uint64(n.GID))
	e.b = binary.AppendVarint(e.b, n.MTime.Sec)
	e.num(uint64(n.MTime.Nsec))
	switch n.Type {
	case tree.File:
		e.num(uint64(n.Size))
		sum, err := hex.DecodeString(n.Content.Digest.Hex())
		if err != nil || len(sum) != sha256.Size {
			return turnstone.Errorf("layer.encode", turnstone.KindIntegrity, c.Path,
				"malformed digest %q", n.Content.Digest)
		}
		e.b = append(e.b, sum...)
	case tree.Symlink:
		e.str(n.Target)
	case tree.Char, tree.Block:
		e.num(uint64(n.Major))
		e.num(uint64(n.Minor))
	}
	e.num(uint64(len(n.Xattrs)))
	for _, x := range n.Xattrs {
		e.str(x.Name)
		e.num(uint64(len(x.Value)))
		e.b = append(e.b, x.Value...)
	}
	first := ""
	if len(c.NewLinks) > 1 {
		first = c.NewLinks[0]
	}
	e.str(first)
	return nil
}
