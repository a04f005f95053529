package channel

import (
	"errors"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
)

// A Fault names a manipulation that the channel or its attestation revealed.
type Fault string

// The faults of an attestation, of a handshake, and of frames.
const (
	FaultForged    Fault = "forged"    // the signature is not of the key that the statement names
	FaultUntrusted Fault = "untrusted" // the key that signed is not trusted
	FaultReplayed  Fault = "replayed"  // a statement for another request, or an old first message
	FaultExpired   Fault = "expired"   // the statement is not valid now
	FaultSpliced   Fault = "spliced"   // the statement is about another sandbox or other programs
	FaultWidened   Fault = "widened"   // the statement admits keys that the client did not name

	FaultKeySwapped Fault = "key_swapped" // the other side does not have the attested key
	FaultWeakKey    Fault = "weak_key"    // a key is a point of low order

	FaultAltered   Fault = "altered"   // the bytes were changed
	FaultRepeated  Fault = "repeated"  // a frame came a second time
	FaultReordered Fault = "reordered" // a frame came while an earlier one is late or lost
	FaultReflected Fault = "reflected" // a side's own bytes came back
	FaultTruncated Fault = "truncated" // the stream ended without the authenticated end
)

// reportable reports whether a side may say of received frames that this was done to them.
func reportable(f Fault) bool {
	return slices.Contains([]Fault{FaultAltered, FaultRepeated, FaultReordered, FaultReflected}, f)
}

// A faultError is an error with the name of a manipulation.
type faultError struct {
	fault Fault
	err   error
}

func (e *faultError) Error() string { return string(e.fault) + ": " + e.err.Error() }
func (e *faultError) Unwrap() error { return e.err }

// Fail returns an error with the name of a manipulation. Its kind is Dead for FaultTruncated, which
// a failing network causes too, and Integrity for all others: nobody should try again silently.
func Fail(op turnstone.Op, f Fault, subject, format string, args ...any) *turnstone.Error {
	kind, hint := turnstone.KindIntegrity,
		"do not trust the server or a proxy between you and the node before you know the cause"
	switch f {
	case FaultTruncated:
		kind, hint = turnstone.KindDead, "connect again"
	case FaultExpired:
		hint = "request a new attestation, and compare the clocks of this machine and the node"
	}
	cause := &faultError{f, fmt.Errorf(format, args...)}
	return turnstone.NewError(op, kind, subject, cause).WithHint(hint)
}

// FaultOf returns the manipulation that err names, or "".
func FaultOf(err error) Fault {
	var e *faultError
	if errors.As(err, &e) {
		return e.fault
	}
	return ""
}
