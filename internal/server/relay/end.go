package relay

import (
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
)

// A Side is an end of a relay.
type Side string

// The sides.
const (
	Neither Side = ""
	Client  Side = "client"
	Node    Side = "node"
)

// A Reason says why a relay ended before both sides had ended their streams.
type Reason string

// The reasons.
const (
	Broken   Reason = "broken"   // the side's connection failed
	Stalled  Reason = "stalled"  // the side did not take bytes in time
	Silent   Reason = "silent"   // no byte came from either side for too long
	TooLong  Reason = "too long" // the relay's time is over
	TooMuch  Reason = "too much" // the relay's bytes are used up
	Canceled Reason = "canceled" // the caller ended the relay
)

// An EndError is the cause of an error of Copy.
type EndError struct {
	Side   Side // the side that is to blame; Neither for Silent and the limits
	Reason Reason
	Err    error // the failure of the connection or of the context; nil for others
}

// Error implements error.
func (e *EndError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
	return string(e.Reason)
}

// Unwrap returns the failure.
func (e *EndError) Unwrap() error { return e.Err }

// EndOf returns the EndError in err's chain, or nil.
func EndOf(err error) *EndError {
	var e *EndError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// typed wraps e with its kind and a hint.
func (e *EndError) typed() error {
	kind, hint := turnstone.KindDead, "connect again"
	switch e.Reason {
	case Stalled:
		kind, hint = turnstone.KindTimeout, "read what the other side sends, and connect again"
	case Silent:
		kind, hint = turnstone.KindTimeout, "connect again, and send a ping while nothing happens"
	case TooLong:
		kind = turnstone.KindTimeout
	case TooMuch:
		kind = turnstone.KindExhausted
	case Canceled:
		kind, hint = turnstone.KindCanceled, ""
	}
	subject := "the relay"
	if e.Side != Neither {
		subject = "the " + string(e.Side)
	}
	return turnstone.NewError("relay.copy", kind, subject, e).WithHint(hint)
}
