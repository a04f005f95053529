// Package tree represents file trees: the content of a file system, as objects named by their
// digest. A directory is an object that names the objects below it. Two trees that are equal below
// a directory share that part, and comparing them skips it. Each directory also has its FS hash
// (see docs/fs-hash.md), so after a local change the FS hash of a whole tree costs only the path up
// to the top.
//
// The package accesses the storage of objects only through Getter, Putter and ContentPutter.
package tree

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
)

// A Type is the type of an entry.
type Type uint8

// The types of entries. Trees contain no sockets, which have no meaning without the listening
// process.
const (
	Dir     Type = 1
	File    Type = 2
	Symlink Type = 3
	Char    Type = 4
	Block   Type = 5
	FIFO    Type = 6
)

// A Time is a file system's timestamp.
type Time struct {
	Sec  int64 // since 1970
	Nsec int32 // 0 to 999,999,999
}

// An Xattr is an extended attribute.
type Xattr struct {
	Name  string // with its namespace, such as "user.note"
	Value []byte
}

// Attr holds a file's attributes, except its name and its content.
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

// An Entry is a name in a directory.
type Entry struct {
	Name string // bytes, without "/" and NUL; 1 to 255
	Attr
	Content turnstone.Content // for a File; Content.Size == Size
	Tree    turnstone.Digest  // for a Dir: the object with its entries
	Hash    turnstone.Digest  // for a Dir: the FS hash of its entries
}

// A Directory is the content of a directory, sorted by name, bytewise.
type Directory []Entry

// A LinkGroup is the paths of a file with several names: absolute, sorted bytewise, at least two.
type LinkGroup []string

// A Root is a whole file tree.
type Root struct {
	Entry             // the top directory; its Name is empty
	Links []LinkGroup // sorted by their first paths
}

// A Getter returns the verified object that d names: an object that does not match d is an error of
// kind Integrity, a missing object of kind NotFound. Its methods are safe for concurrent use, as
// are those of the interfaces below.
type Getter interface {
	Get(ctx context.Context, d turnstone.Digest) ([]byte, error)
}

// A Putter stores objects. It may write them later; it does not use b after the call.
type Putter interface {
	Put(ctx context.Context, b []byte) (turnstone.Digest, error)
}

// A ContentPutter stores the bytes of files.
type ContentPutter interface {
	PutContent(ctx context.Context, r io.Reader, size int64) (turnstone.Content, error)
}

// A ContentGetter opens the bytes of files and verifies them during reading.
type ContentGetter interface {
	OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error)
}

// A Reader reads trees.
type Reader interface {
	Getter
	ContentGetter
}

// A Writer writes trees: it can also get everything that it has put.
type Writer interface {
	Getter
	Putter
	ContentPutter
}

// A Node is a file of a file system from which a tree is built: a disk's image, or a host's folder.
// Its results may be hostile.
type Node interface {
	// Attr returns the file's attributes with all extended attributes, including those that only a
	// file system uses.
	Attr() (Attr, error)
	// Inode identifies the file in its file system, and returns its number of names there.
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
