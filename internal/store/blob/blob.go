// Package blob says what the context store needs of the place where its bytes lie:
// names, each with an immutable byte string. A folder (internal/store/blob/local) and S3
// (internal/store/blob/s3) are such places; blobtest has what each of them must keep.
package blob

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"turnstone.dev/turnstone"
)

// Info is what is known of a blob without reading it.
type Info struct {
	Name     string
	Size     int64     // bytes
	Modified time.Time // when it was put
}

// Store keeps named, immutable byte strings. A name is not also a folder of
// others: where there is "a", there is no "a/b". Its methods are safe for concurrent
// use, also by several processes. Errors are of type *turnstone.Error.
type Store interface {
	// Put keeps the size bytes of r as name. When it returns, the blob is durable and
	// visible to all; when it fails, there is no blob, or the one that was there
	// before. Who puts a name twice puts the same bytes. A reader that has more or
	// fewer bytes is an error of kind Invalid.
	Put(ctx context.Context, name string, r io.Reader, size int64) error
	// Get opens n bytes from off on; n < 0 is up to the end. Kind KindNotFound where there
	// is no blob; a range that is not wholly inside it is of kind Invalid. The reader
	// fails with io.ErrUnexpectedEOF rather than end early.
	Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error)
	// List yields the blobs whose names begin with prefix, sorted bytewise. An error ends it.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Remove removes a blob. One that is not there is no error.
	Remove(ctx context.Context, name string) error
}

// A RangeReader is a Store that reads a range into memory for less than Get.
type RangeReader interface {
	// ReadAt fills p with the bytes from off on; its errors are those of Get.
	ReadAt(ctx context.Context, name string, p []byte, off int64) error
}

// maxName is what every place can keep: S3 allows 1024, with the prefix.
const maxName = 512

// CheckName returns an error of kind Invalid for a name that no Store takes:
// names are segments joined by "/"; a segment is not empty, does not begin with
// ".", and has neither control characters nor a backslash; 255 bytes each, 512
// in all, UTF-8.
func CheckName(op turnstone.Op, name string) error {
	bad := func(why string) error {
		return turnstone.NewError(op, turnstone.KindInvalid, name,
			errors.New("not a blob's name: "+why))
	}
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return bad("it is empty, too long, or not UTF-8")
	}
	for seg := range strings.SplitSeq(name, "/") {
		if seg == "" || seg[0] == '.' || len(seg) > 255 {
			return bad("a part of it is empty, too long, or begins with a dot")
		}
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return bad("it has a control character or a backslash")
	}
	return nil
}

// Begin returns the error of an operation on the blob name that has to end before it
// has begun: the name is none, or ctx is done. It is for those who implement a Store.
func Begin(ctx context.Context, op turnstone.Op, name string) error {
	if err := CheckName(op, name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return Error(op, name, err)
	}
	return nil
}

// Error returns err as a *turnstone.Error about the blob name, for those who
// implement a Store. One that is typed keeps its kind and hint.
func Error(op turnstone.Op, name string, err error) error {
	e := turnstone.NewError(op, turnstone.KindUnavailable, name, err)
	var typed *turnstone.Error
	switch {
	case errors.As(err, &typed):
		if typed.Subject != "" {
			return typed
		}
		e.Kind, e.Hint, e.Err = typed.Kind, typed.Hint, typed.Err
	case errors.Is(err, context.Canceled):
		e.Kind = turnstone.KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = turnstone.KindTimeout
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		e.Kind = turnstone.KindNotFound
	case turnstone.IsFull(err):
		e.Kind, e.Hint = turnstone.KindExhausted, "make room on the disk, as with `turn gc`"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "the store's folder has to be yours"
	}
	return e
}

// Range returns how many bytes a Get of n bytes from off on has to yield of a
// blob of size bytes, and an error of kind Invalid where it has not so many.
func Range(op turnstone.Op, name string, off, n, size int64) (int64, error) {
	if off < 0 || off > size || n > size-off {
		return 0, turnstone.Errorf(op, turnstone.KindInvalid, name,
			"bytes %d and %d more are not inside its %d", off, n, size)
	}
	if n < 0 {
		n = size - off
	}
	return n, nil
}
