package tree

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"turnstone.dev/turnstone"
)

var (
	errShort = errors.New("ends too early")
	errForm  = errors.New("is not in canonical form")
)

// DecodeDirectory is the inverse of Encode: it accepts only Encode's output for a directory that
// passes Check. An error is of kind Integrity. The result does not refer to b.
func DecodeDirectory(b []byte) (Directory, error) {
	raw, err := openDir(b)
	if err != nil {
		return nil, damaged("tree.decode", "a directory's object", err)
	}
	n := 0
	for it := raw; ; n++ {
		_, _, ok, err := it.next()
		if err != nil {
			return nil, damaged("tree.decode", "a directory's object", err)
		}
		if !ok {
			break
		}
	}
	d := make(Directory, 0, n)
	for {
		name, body, ok, err := raw.next()
		if err != nil || !ok {
			return d, err
		}
		e := Entry{Name: string(name)}
		if err := decodeBody(body, &e); err != nil {
			return nil, damaged("tree.decode", fmt.Sprintf("%q in a directory's object", name), err)
		}
		d = append(d, e)
	}
}

// A rawDir iterates over the entries of an encoded directory without decoding them.
type rawDir struct {
	b    []byte
	last []byte // the previous name
}

func openDir(b []byte) (rawDir, error) {
	if len(b) < 2 || b[0] != dirMagic || b[1] != formatVersion {
		return rawDir{}, errors.New("is not a directory, or is of another version")
	}
	return rawDir{b: b[2:]}, nil
}

// next returns an entry's verified name, and its body; ok is false at the end.
func (r *rawDir) next() (name, body []byte, ok bool, err error) {
	if len(r.b) == 0 {
		return nil, nil, false, nil
	}
	c := cursor{b: r.b}
	name, body = c.bytes(maxName), c.bytes(math.MaxInt32)
	if c.err != nil {
		return nil, nil, false, c.err
	}
	if err := checkRawName(name); err != nil {
		return nil, nil, false, err
	}
	if r.last != nil && bytes.Compare(name, r.last) <= 0 {
		return nil, nil, false, fmt.Errorf(
			"%q follows %q: entries are sorted and unique", name, r.last)
	}
	r.b, r.last = c.b, name
	return name, body, true, nil
}

// checkRawName is CheckName without its cost for a valid name.
func checkRawName(name []byte) error {
	if len(name) == 0 || len(name) <= 2 && name[0] == '.' && name[len(name)-1] == '.' ||
		bytes.IndexByte(name, '/') >= 0 || bytes.IndexByte(name, 0) >= 0 {
		return CheckName(string(name))
	}
	return nil
}

// decodeBody decodes an entry except its name.
func decodeBody(b []byte, e *Entry) error {
	c := cursor{b: b}
	e.Type = Type(c.byte())
	e.Mode = c.uint32()
	e.UID = c.uint32()
	e.GID = c.uint32()
	e.MTime.Sec = c.varint()
	if n := c.uvarint(); n <= maxNsec {
		e.MTime.Nsec = int32(n)
	} else {
		c.fail(errors.New("its time has too many nanoseconds"))
	}
	decodeXattrs(&c, e)
	switch e.Type {
	case Dir:
		e.Tree, e.Hash = c.digest(), c.digest()
	case File:
		if n := c.uvarint(); n <= math.MaxInt64 {
			e.Size = int64(n)
		} else {
			c.fail(errors.New("its size is out of range"))
		}
		e.Content = turnstone.Content{Digest: c.digest(), Size: e.Size}
		switch c.byte() {
		case 0:
		case 1:
			e.Content.Chunks = c.digest()
		default:
			c.fail(errForm)
		}
	case Symlink:
		e.Target = string(c.bytes(MaxTarget))
	case Char, Block:
		e.Major, e.Minor = c.uint32(), c.uint32()
	}
	if err := c.end(); err != nil {
		return err
	}
	return e.checkFields()
}

func decodeXattrs(c *cursor, e *Entry) {
	n := c.uvarint()
	if n > uint64(len(c.b)/2) {
		c.fail(errShort)
		return
	}
	if n == 0 {
		return
	}
	e.Xattrs = make([]Xattr, 0, n)
	for range n {
		x := Xattr{Name: string(c.bytes(maxXattrName))}
		x.Value = append([]byte{}, c.bytes(maxXattrValue)...)
		if c.err != nil {
			return
		}
		e.Xattrs = append(e.Xattrs, x)
	}
}

// A cursor reads an encoding. After its first error all results are zero.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

func (c *cursor) byte() byte {
	if len(c.b) == 0 {
		c.fail(errShort)
		return 0
	}
	x := c.b[0]
	c.b = c.b[1:]
	return x
}

// uvarint reads a number in its shortest form, unlike binary.Uvarint, which also accepts longer
// forms.
func (c *cursor) uvarint() uint64 {
	if len(c.b) > 0 && c.b[0] < 0x80 { // nearly all numbers are short
		x := uint64(c.b[0])
		c.b = c.b[1:]
		return x
	}
	var x uint64
	for i := range c.b {
		v := c.b[i]
		if i == 9 && v > 1 || i > 9 {
			break
		}
		x |= uint64(v&0x7f) << (7 * i)
		if v < 0x80 {
			if v == 0 && i > 0 {
				break
			}
			c.b = c.b[i+1:]
			return x
		}
	}
	c.fail(errForm)
	return 0
}

func (c *cursor) varint() int64 {
	u := c.uvarint()
	x := int64(u >> 1)
	if u&1 != 0 {
		x = ^x
	}
	return x
}

func (c *cursor) uint32() uint32 {
	x := c.uvarint()
	if x > math.MaxUint32 {
		c.fail(errors.New("a number is out of range"))
		return 0
	}
	return uint32(x)
}

// bytes reads at most limit bytes; the result aliases the encoding.
func (c *cursor) bytes(limit int) []byte {
	n := c.uvarint()
	if n > uint64(limit) || n > uint64(len(c.b)) {
		c.fail(errShort)
		return nil
	}
	x := c.b[:n:n]
	c.b = c.b[n:]
	return x
}

func (c *cursor) digest() turnstone.Digest {
	if len(c.b) < rawDigest {
		c.fail(errShort)
		return ""
	}
	var text [digestLen]byte
	copy(text[:], digestStart)
	hex.Encode(text[len(digestStart):], c.b[:rawDigest])
	c.b = c.b[rawDigest:]
	return turnstone.Digest(text[:])
}

// end returns the error, or an error if bytes remain.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		return errors.New("has data after its end")
	}
	return c.err
}
