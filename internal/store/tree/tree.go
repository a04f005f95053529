// Package tree holds file trees: what a file system contains, as objects that are
// named by their digest. A directory is one object, which names those below it, so
// two trees that are equal below some directory share that part, and comparing
// them skips it. Each directory also has its FS hash (see docs/fs-hash.md), so the
// FS hash of a whole tree that changed in one place costs only the way up from there.
//
// The package knows where objects are kept only through Getter, Putter and
// ContentPutter.
package tree

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
)

// A Type says what an entry is.
type Type uint8

// The types of entries. Sockets are in no tree: they mean nothing without the
// process that listens.
const (
	Dir     Type = 1
	File    Type = 2
	Symlink Type = 3
	Char    Type = 4
	Block   Type = 5
	FIFO    Type = 6
)

// A Time is a timestamp as file systems keep it.
type Time struct {
	Sec  int64 // since 1970
	Nsec int32 // 0 to 999,999,999
}

// An Xattr is one extended attribute.
type Xattr struct {
	Name  string // with its namespace, as "user.note"
	Value []byte
}

// Attr is what a file system says of one file, beside its name and its content.
type Attr struct {
	Type   Type
	Mode   uint32 // permission bits, with setuid, setgid and sticky: 0 to 07777
	UID    uint32
	GID    uint32
	MTime  Time
	Size   int64   // of a File's content, in bytes
	Target string  // of a Symlink
	Major  uint32  // of a device
	Minor  uint32  // of a device
	Xattrs []Xattr // sorted by name
}

// Content names a file's bytes.
type Content struct {
	Digest turnstone.Digest `json:"digest"` // SHA-256 of all of them
	Size   int64            `json:"size"`
	// Chunks names the object that lists the chunks of a large file; empty when
	// the content is one object, whose digest is Digest.
	Chunks turnstone.Digest `json:"chunks,omitempty"`
}

// An Entry is one name in a directory.
type Entry struct {
	Name string // bytes, without "/" and NUL; 1 to 255
	Attr
	Content Content          // of a File; Content.Size == Size
	Tree    turnstone.Digest // of a Dir: the object with its entries
	Hash    turnstone.Digest // of a Dir: the FS hash of its entries
}

// A Directory is the content of one directory, sorted by name, bytewise.
type Directory []Entry

// A LinkGroup is the paths of one file that has several names: absolute, sorted
// bytewise, at least two.
type LinkGroup []string

// A Root is a whole file tree.
type Root struct {
	Entry             // the top directory; its Name is empty
	Links []LinkGroup // sorted by their first paths
}

// A Ref names a Root.
type Ref struct {
	Root turnstone.Digest `json:"root"`    // of the encoded Root
	Hash turnstone.Digest `json:"fs_hash"` // its FS hash
}

// A Getter returns the object that d names. It has checked it: an object that is
// not what d says is an error of kind Integrity, one that is not there of kind
// NotFound. Its methods are safe for concurrent use, as are those of the interfaces below.
type Getter interface {
	Get(ctx context.Context, d turnstone.Digest) ([]byte, error)
}

// A Putter keeps objects. It may write them later; b is not used after the call.
type Putter interface {
	Put(ctx context.Context, b []byte) (turnstone.Digest, error)
}

// A ContentPutter keeps the bytes of files.
type ContentPutter interface {
	PutContent(ctx context.Context, r io.Reader, size int64) (Content, error)
}

// A ContentGetter opens the bytes of files, checking them as they are read.
type ContentGetter interface {
	OpenContent(ctx context.Context, c Content) (io.ReadCloser, error)
}

// A Reader is where a tree is read from.
type Reader interface {
	Getter
	ContentGetter
}

// A Writer is where a tree is made: what it has put, it also gets.
type Writer interface {
	Getter
	Putter
	ContentPutter
}

// A Node is one file of a file system that is read to make a tree of it: of a
// disk's image, or of a host's folder. What it returns may be hostile.
type Node interface {
	// Attr returns what is known of it; all extended attributes are there, those
	// that only a file system itself uses too.
	Attr() (Attr, error)
	// Inode identifies the file in its file system, and tells how many names it has there.
	Inode() (id uint64, names uint32)
	// Children returns a directory's entries, sorted by name.
	Children(ctx context.Context) ([]Child, error)
	// Open returns a file's content, of Attr().Size bytes.
	Open() (io.ReadCloser, error)
}

// A Child is a named Node.
type Child struct {
	Name string
	Node Node
}
