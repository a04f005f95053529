// Package announced reads contents whose size, or whose digest, is known before: what is read has to
// match.
package announced

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"turnstone.dev/turnstone"
)

const op turnstone.Op = "store.put"

// Wrong returns the error for a content that is not what was announced.
func Wrong(text string) error {
	return turnstone.NewError(op, turnstone.KindInvalid, "", errors.New(text))
}

// Fail returns err as a typed error; a typed error is unchanged.
func Fail(op turnstone.Op, subject string, err error) error {
	var typed *turnstone.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	kind := turnstone.KindUnavailable
	switch {
	case errors.Is(err, context.Canceled):
		kind = turnstone.KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError(op, kind, subject, err)
}

// ReadExactly fills p from r, which must end there.
func ReadExactly(r io.Reader, p []byte) error {
	if n, err := io.ReadFull(r, p); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Wrong(fmt.Sprintf("the content has %d bytes and %d were announced", n, len(p)))
	} else if err != nil {
		return Fail(op, "", err)
	}
	return atEnd(r)
}

// atEnd verifies that r is at its end.
func atEnd(r io.Reader) error {
	var more [1]byte
	switch _, err := io.ReadFull(r, more[:]); {
	case err == nil:
		return Wrong("the content is longer than announced")
	case !errors.Is(err, io.EOF):
		return Fail(op, "", err)
	}
	return nil
}

// A Source reads the announced number of bytes and remembers its error.
type Source struct {
	Err error // other than io.EOF

	ctx  context.Context
	r    io.Reader
	left int64
}

// NewSource returns a Source of size bytes of r.
func NewSource(ctx context.Context, r io.Reader, size int64) *Source {
	return &Source{ctx: ctx, r: r, left: size}
}

func (s *Source) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if s.Err = s.ctx.Err(); s.Err != nil {
		return 0, s.Err
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err != nil && err != io.EOF {
		s.Err = err
	}
	return n, err
}

// End verifies that all announced bytes were read and no more follow.
func (s *Source) End() error {
	if s.Err != nil {
		return Fail(op, "", s.Err)
	}
	if s.left > 0 {
		return Wrong(fmt.Sprintf("the content is %d bytes shorter than announced", s.left))
	}
	return atEnd(s.r)
}

// A Copy reads a copy of a content, and verifies the whole at its end.
type Copy struct {
	rc   io.ReadCloser
	left int64
	want [32]byte
	sum  hash.Hash
	bad  func(err error) error
}

// NewCopy returns a reader of rc, which has size bytes with the digest want. bad returns the error for
// a copy that differs.
func NewCopy(rc io.ReadCloser, size int64, want [32]byte, bad func(err error) error) *Copy {
	return &Copy{rc: rc, left: size, want: want, sum: sha256.New(), bad: bad}
}

func (v *Copy) Read(p []byte) (int, error) {
	n, err := v.rc.Read(p)
	v.left -= int64(n)
	_, _ = v.sum.Write(p[:n])
	switch {
	case v.left < 0:
		return 0, v.bad(errors.New("the alternate copy is longer than it was"))
	case err == io.EOF && v.left > 0:
		return 0, v.bad(errors.New("the alternate copy is shorter than it was"))
	case err == io.EOF && [32]byte(v.sum.Sum(nil)) != v.want:
		return 0, v.bad(errors.New("the alternate copy has changed"))
	}
	return n, err
}

// Close closes the copy.
func (v *Copy) Close() error { return v.rc.Close() }
