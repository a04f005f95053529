package auth

import (
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
)

// A Reason names why a token or a request was refused. Reasons are part of the control API.
type Reason string

// The reasons. Denied is about the request, Stale about the server, all others about the token.
const (
	Missing     Reason = "missing"       // there is no token
	TooLarge    Reason = "too_large"     // it was not parsed
	Malformed   Reason = "malformed"     // no signed token, or not in its only encoding
	BadHeader   Reason = "header"        // its header brings a key, or extensions
	Algorithm   Reason = "algorithm"     // the issuer does not sign with it
	WrongIssuer Reason = "issuer"        // nobody that this server trusts
	UnknownKey  Reason = "key"           // not, or no longer, a key of the issuer
	Forged      Reason = "signature"     // the key did not sign it
	Expired     Reason = "expired"       //
	NotYet      Reason = "not_yet_valid" //
	Audience    Reason = "audience"      // it is for another server
	BadClaims   Reason = "claims"        // a claim is missing, malformed or not allowed
	Revoked     Reason = "revoked"       // the token or its key
	Stale       Reason = "stale"         // the server cannot verify tokens now; a retry may help
	Denied      Reason = "denied"        // the token is valid and does not grant this
)

// Unauthenticated reports whether the caller is unknown, rather than known and refused.
func (r Reason) Unauthenticated() bool { return r != "" && r != Denied && r != Stale }

// hints say what the holder of a token can do.
var hints = map[Reason]string{
	Missing: "set TURN_TOKEN to a token of the server, such as one of turn token create",
	Expired: "create a new token",
	NotYet:  "compare the clocks of this machine, of the issuer and of the server",
	Audience: "create the token for this server's name; the issuer's audience and the server's " +
		"configuration have to agree",
	WrongIssuer: "use a token of this server, or configure the issuer",
	UnknownKey:  "create a new token: the issuer has changed its keys",
	Revoked:     "create a new token",
	Stale:       "try again soon; the server's log says what it waits for",
	Denied:      "create a token with the scope, session or template that is missing",
}

type reasonError struct {
	reason Reason
	err    error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// refuse returns an error with a reason. Arguments must hold no part of a token and no key.
func refuse(op turnstone.Op, r Reason, format string, args ...any) *turnstone.Error {
	kind, subject := turnstone.KindDenied, "the token"
	if r == Stale {
		kind = turnstone.KindUnavailable
	}
	cause := &reasonError{r, fmt.Errorf(format, args...)}
	return turnstone.NewError(op, kind, subject, cause).WithHint(hints[r])
}

// ReasonOf returns the reason in err's chain, or "".
func ReasonOf(err error) Reason {
	var e *reasonError
	if errors.As(err, &e) {
		return e.reason
	}
	return ""
}
