// Package blob defines the storage interface of the context store: names, each with an immutable
// byte string. Implementations are a folder (internal/store/blob/local) and S3
// (internal/store/blob/s3); blobtest contains the tests that every implementation must pass.
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

// Info describes a blob.
type Info struct {
	Name     string
	Size     int64     // in bytes
	Modified time.Time // time of the Put
}

// Store keeps named, immutable byte strings. A name is never a prefix folder of another: with "a"
// there is no "a/b". Its methods are safe for concurrent use, also by several processes. Errors are
// of type *turnstone.Error.
type Store interface {
	// Put stores the size bytes of r as name. When Put returns, the blob is durable and visible to
	// all readers; after an error the name has no blob or its previous blob. Repeated Puts of a
	// name must have the same bytes. A reader with more or fewer bytes is an error of kind Invalid.
	Put(ctx context.Context, name string, r io.Reader, size int64) error
	// Get opens n bytes from off on; n < 0 means up to the end. The error is of kind NotFound if
	// there is no blob, and of kind Invalid if the range is not completely inside the blob. The
	// reader fails with io.ErrUnexpectedEOF instead of ending early.
	Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error)
	// List yields the blobs whose names begin with prefix, sorted bytewise. An error ends the
	// sequence.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Remove removes a blob. A missing blob is not an error.
	Remove(ctx context.Context, name string) error
}

// A RangeReader is a Store that reads a range into memory at a lower cost than Get.
type RangeReader interface {
	// ReadAt fills p with the bytes from off on; its errors are those of Get.
	ReadAt(ctx context.Context, name string, p []byte, off int64) error
}

// A Syncer is a Store whose removals become durable later, unless they are synced.
type Syncer interface {
	// Sync makes earlier removals of blobs in a folder durable: those whose names have the prefix
	// folder, which ends with a slash.
	Sync(ctx context.Context, folder string) error
}

// A Late is a Store whose List may lack blobs that others have put a moment ago.
type Late interface {
	// Settle waits for such blobs. It returns false if it has waited a moment ago, or ctx is done.
	Settle(ctx context.Context) bool
}

// maxName is supported by every implementation: S3 allows 1024, including the prefix.
const maxName = 512

// CheckName returns an error of kind Invalid for a name that no Store accepts. Names are segments
// joined by "/". A segment is not empty, does not begin with ".", and contains neither control
// characters nor a backslash; 255 bytes each, 512 in total, UTF-8.
func CheckName(op turnstone.Op, name string) error {
	bad := func(why string) error {
		return turnstone.NewError(op, turnstone.KindInvalid, name,
			errors.New("not a blob's name: "+why))
	}
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return bad("the name is empty, too long, or not UTF-8")
	}
	for seg := range strings.SplitSeq(name, "/") {
		if seg == "" || seg[0] == '.' || len(seg) > 255 {
			return bad("a segment is empty, too long, or begins with a dot")
		}
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return bad("the name contains a control character or a backslash")
	}
	return nil
}

// Begin returns the error of an operation on the blob name that must not start because the name is
// invalid or ctx is done. It is for implementations of Store.
func Begin(ctx context.Context, op turnstone.Op, name string) error {
	if err := CheckName(op, name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return Error(op, name, err)
	}
	return nil
}

// Error returns err as a *turnstone.Error about the blob name, for implementations of Store. A
// typed error keeps its kind and hint.
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
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.EISDIR):
		e.Kind = turnstone.KindNotFound
	case turnstone.IsFull(err):
		e.Kind, e.Hint = turnstone.KindExhausted, "free some disk space, such as with `turn gc`"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "make yourself the owner of the store's folder"
	}
	return e
}

// Range returns the number of bytes that a Get of n bytes from off on yields for a blob of size
// bytes, or an error of kind Invalid if the range is not inside the blob.
func Range(op turnstone.Op, name string, off, n, size int64) (int64, error) {
	if off < 0 || off > size || n > size-off {
		return 0, turnstone.Errorf(op, turnstone.KindInvalid, name,
			"bytes %d and %d more are outside of its %d", off, n, size)
	}
	if n < 0 {
		n = size - off
	}
	return n, nil
}
