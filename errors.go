package turnstone

import (
	"errors"
	"strings"
)

// A Kind classifies an error for the program that handles it. Kinds cross the
// wire as text, so the values are part of the protocol.
type Kind string

// The kinds of error.
const (
	KindInvalid     Kind = "invalid"     // the request, document or spec is wrong; trying again does not help
	KindNotFound    Kind = "not_found"   // what is named does not exist
	KindUnavailable Kind = "unavailable" // this host cannot do it now: a program, a device or a file is missing
	KindExhausted   Kind = "exhausted"   // disk, memory or another limit is used up
	KindCanceled    Kind = "canceled"    // the caller gave up
	KindTimeout     Kind = "timeout"     // it took longer than allowed
	KindIntegrity   Kind = "integrity"   // stored or received data is not what its digest says
	KindDead        Kind = "dead"        // the sandbox or its connection is gone
	KindInternal    Kind = "internal"    // a fault of this program
)

// Error is the typed error of the project. It survives the wire: all of its
// fields but Err are encoded, and Err is encoded as its text.
type Error struct {
	Op      string // what was being done, as "template.build"
	Kind    Kind
	Subject string // what it was done to: a file, a template, an ID
	Hint    string // one sentence that says what the user can do; may be empty
	Err     error  // the cause; may be nil
}

// Error returns "subject: cause" without the operation and the hint, which a
// user interface shows in its own way.
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
		return e.Op
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the outermost *Error in err's chain, or Internal.
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
