package turnstone

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// A Kind classifies an error for programs. Kinds cross the wire as text, so the values are part of
// the protocol.
type Kind string

// The kinds of errors.
const (
	KindInvalid  Kind = "invalid"   // the request, document or spec is wrong; a retry does not help
	KindNotFound Kind = "not_found" // the named object does not exist
	// this host cannot do it now: a program, a device or a file is missing
	KindUnavailable Kind = "unavailable"
	KindExhausted   Kind = "exhausted" // disk, memory or another limit is exhausted
	KindCanceled    Kind = "canceled"  // the caller gave up
	KindTimeout     Kind = "timeout"   // it took longer than allowed
	KindIntegrity   Kind = "integrity" // stored or received data does not match its digest
	KindDead        Kind = "dead"      // the sandbox or its connection is gone
	KindDenied      Kind = "denied"    // the caller's token was refused, or does not grant it
	KindInternal    Kind = "internal"  // a fault of this program
)

// ErrLocked is the cause of errors, of kind Unavailable, about a sealed session whose key is not at
// hand.
var ErrLocked = errors.New("is sealed, and its key is not here")

// An Op names an operation in errors, such as "template.build". Ops cross the wire and appear in
// JSON reports, so the values are part of the interface.
type Op string

// Error is the project's typed error. It survives the wire: all fields are encoded, Err as its
// text.
type Error struct {
	Op      Op // the operation
	Kind    Kind
	Subject string // the object: a file, a template, an ID
	Hint    string // a sentence that says what the user can do; may be empty
	Err     error  // the cause; may be nil
}

// NewError returns an error of an operation on a subject. subject may be empty and cause may be
// nil.
func NewError(op Op, kind Kind, subject string, cause error) *Error {
	return &Error{Op: op, Kind: kind, Subject: subject, Err: cause}
}

// Errorf is NewError with a cause that fmt.Errorf creates from format and args; %w wraps.
func Errorf(op Op, kind Kind, subject, format string, args ...any) *Error {
	return NewError(op, kind, subject, fmt.Errorf(format, args...))
}

// Classify is NewError with the kind that the cause has: KindCanceled where a context has ended,
// KindExhausted, with the hint room, where a disk or a quota is full, otherwise kind.
func Classify(op Op, kind Kind, subject string, cause error, room string) *Error {
	e := NewError(op, kind, subject, cause)
	switch {
	case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
		e.Kind = KindCanceled
	case IsFull(cause):
		e.Kind, e.Hint = KindExhausted, room
	}
	return e
}

// IsFull reports whether a disk or a quota is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// WithHint sets the hint, an imperative sentence, and returns e. Only the creator of e may call
// WithHint.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// Error returns "subject: cause" without the operation and the hint, which a user interface
// displays separately.
func (e *Error) Error() string {
	var parts []string
	if e.Subject != "" {
		parts = append(parts, e.Subject)
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	} else if e.Kind != "" {
		parts = append(parts, strings.ReplaceAll(string(e.Kind), "_", " "))
	}
	if len(parts) == 0 {
		return string(e.Op)
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// With returns a copy of e whose subject and hint text has changed, and whose cause is what cause
// returns.
func (e *Error) With(text func(string) string, cause func(error) error) error {
	c := *e
	c.Subject, c.Hint = text(e.Subject), text(e.Hint)
	if e.Err != nil {
		c.Err = cause(e.Err)
	}
	return &c
}

// KindOf returns the kind of the outermost *Error in err's chain, or KindInternal.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) && e.Kind != "" {
		return e.Kind
	}
	return KindInternal
}

// HintOf returns the first hint in err's chain, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
