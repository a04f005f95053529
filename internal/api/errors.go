// Package api is what servers and clients of the control API share: errors, bounds and idempotency.
// The messages and services are generated, in the folders below.
package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Bounds of an error's texts in bytes. Longer texts are cut.
const (
	maxOp      = 64
	maxSubject = 256
	maxHint    = 512
	maxCause   = 1024
)

const (
	maxViolations = 16
	maxRetryAfter = 24 * time.Hour

	maxIntroduction = 16 << 10 // bytes
)

// A Status is an error with what only the control API says of errors. Err may be any error; what
// FromConnect returns has a *turnstone.Error there.
type Status struct {
	Code       connect.Code  // 0: the code of Err's kind
	RetryAfter time.Duration // when a retry may succeed, 0: unknown
	Violations []Violation
	Reason     string // why a token or a proof was refused, such as "expired"; may be empty
	// Introduction is a node's signed statement about the key that a proof has to be made to, with
	// the reason Unproven. It is not verified.
	Introduction []byte
	// Certificate is that of the node which introduces itself, as it shows it; it may be empty.
	Certificate []byte
	Err         error
}

// A Violation is one fault of a request. It has no value of the request.
type Violation struct {
	Field   string // path of the field
	Rule    string // such as "string.max_bytes"
	Message string
}

// Error implements error by Err's text.
func (s *Status) Error() string { return s.Err.Error() }

// Unwrap returns Err.
func (s *Status) Unwrap() error { return s.Err }

// With returns a copy of s whose error is what cause returns.
func (s *Status) With(_ func(string) string, cause func(error) error) error {
	c := *s
	c.Err = cause(s.Err)
	return &c
}

// A meaning is what a kind of error is in the control API.
type meaning struct {
	kind      turnstone.Kind
	wire      v1.ErrorKind
	code      connect.Code
	retryable bool
	says      string // for docs/api.md
}

// meanings has one row for each kind, and one code for each kind.
var meanings = []meaning{
	{turnstone.KindInvalid, v1.ErrorKind_ERROR_KIND_INVALID, connect.CodeInvalidArgument, false,
		"the request is wrong"},
	{turnstone.KindNotFound, v1.ErrorKind_ERROR_KIND_NOT_FOUND, connect.CodeNotFound, false,
		"the object does not exist, or belongs to another tenant"},
	{turnstone.KindUnavailable, v1.ErrorKind_ERROR_KIND_UNAVAILABLE, connect.CodeUnavailable, true,
		"the server or the node cannot do it now"},
	// A rate limit may be retried: its Status has RetryAfter.
	{turnstone.KindExhausted, v1.ErrorKind_ERROR_KIND_EXHAUSTED, connect.CodeResourceExhausted,
		false, "a disk, memory, a quota or a rate limit is exhausted"},
	{turnstone.KindCanceled, v1.ErrorKind_ERROR_KIND_CANCELED, connect.CodeCanceled, false,
		"the caller gave up"},
	{turnstone.KindTimeout, v1.ErrorKind_ERROR_KIND_TIMEOUT, connect.CodeDeadlineExceeded, true,
		"it took longer than allowed"},
	{turnstone.KindIntegrity, v1.ErrorKind_ERROR_KIND_INTEGRITY, connect.CodeDataLoss, false,
		"data does not match its digest"},
	{turnstone.KindDead, v1.ErrorKind_ERROR_KIND_DEAD, connect.CodeAborted, true,
		"the sandbox or its connection is gone"},
	{turnstone.KindInternal, v1.ErrorKind_ERROR_KIND_INTERNAL, connect.CodeInternal, false,
		"a fault of the server, which its log explains"},
	{turnstone.KindDenied, v1.ErrorKind_ERROR_KIND_DENIED, connect.CodePermissionDenied, false,
		"the token does not grant it; `unauthenticated`: it is missing, invalid or has ended"},
}

// kindsOfCodes has the kinds of the codes that no kind has: of libraries, proxies and refusals.
var kindsOfCodes = map[connect.Code]turnstone.Kind{
	connect.CodeUnauthenticated:    turnstone.KindDenied, // the token is missing or invalid
	connect.CodeAlreadyExists:      turnstone.KindInvalid,
	connect.CodeFailedPrecondition: turnstone.KindInvalid, // such as a pause of a stopped sandbox
	connect.CodeOutOfRange:         turnstone.KindInvalid,
	connect.CodeUnimplemented:      turnstone.KindUnavailable,
	connect.CodeUnknown:            turnstone.KindInternal,
}

// A Meaning is a row of the table of errors in docs/api.md.
type Meaning struct {
	Kind      turnstone.Kind
	Code      connect.Code
	Retryable string // "yes", "no", or when
	Says      string
}

// Meanings returns the table of errors, in the order of the enumeration ErrorKind.
func Meanings() (all []Meaning) {
	for _, m := range meanings {
		retryable := "no"
		switch {
		case m.retryable:
			retryable = "yes"
		case m.kind == turnstone.KindExhausted:
			retryable = "after `Retry-After`, if it is there"
		}
		all = append(all, Meaning{m.kind, m.code, retryable, m.says})
	}
	return all
}

// ofKind returns the row of kind; of an unknown kind, that of KindInternal.
func ofKind(kind turnstone.Kind) (row meaning) {
	for _, m := range meanings {
		if m.kind == kind {
			return m
		}
		if m.kind == turnstone.KindInternal {
			row = m
		}
	}
	return row
}

// KindOfCode returns the kind of an error that has a code and no detail.
func KindOfCode(code connect.Code) turnstone.Kind {
	for _, m := range meanings {
		if m.code == code {
			return m.kind
		}
	}
	if kind, ok := kindsOfCodes[code]; ok {
		return kind
	}
	return turnstone.KindInternal
}

// CodeOf returns the Connect code of err: of the first Status in its chain, otherwise of its kind.
func CodeOf(err error) connect.Code {
	var s *Status
	if errors.As(err, &s) && s.Code != 0 {
		return s.Code
	}
	return ofKind(kindIn(err)).code
}

// kindIn is turnstone.KindOf, and knows the errors of contexts.
func kindIn(err error) turnstone.Kind {
	var e *turnstone.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled):
		return turnstone.KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return turnstone.KindTimeout
	}
	return ofKind(turnstone.KindOf(err)).kind
}

// Unproven is the reason of a Status that refuses a call whose client's key is not proved to the
// node. The call may succeed with a proof to the key of the introduction.
const Unproven = "proof"

// IsUnproven reports whether a call was refused because its client's key is not proved.
func IsUnproven(err error) bool {
	var s *Status
	return errors.As(err, &s) && s.Reason == Unproven
}

// KeySpent is the reason of a Status that refuses a call whose idempotency key creates nothing any
// longer: an earlier call with it failed for good, or was another request.
const KeySpent = "key_spent"

// SpendKey gives an error the reason KeySpent.
func SpendKey(err error) error { return &Status{Code: CodeOf(err), Reason: KeySpent, Err: err} }

// IsKeySpent reports whether a call may succeed with another idempotency key, and never with its own.
func IsKeySpent(err error) bool {
	var s *Status
	return errors.As(err, &s) && s.Reason == KeySpent
}

// RetryAfter returns how long a client waits before it repeats the request; 0 if unknown.
func RetryAfter(err error) time.Duration {
	var s *Status
	if !errors.As(err, &s) || s.RetryAfter <= 0 {
		return 0
	}
	return min(s.RetryAfter, maxRetryAfter)
}

// Retryable reports whether the same request may succeed later. A request that has an effect is
// repeated only with an idempotency key.
func Retryable(err error) bool {
	m := ofKind(kindIn(err))
	if code := CodeOf(err); code != m.code {
		return code == connect.CodeAborted || code == connect.CodeUnavailable
	}
	return m.retryable || m.kind == turnstone.KindExhausted && RetryAfter(err) > 0
}

// ToConnect converts an error of a handler: the detail is a turnstone.v1.Error. The text of an
// error without a kind, and the cause of a KindInternal, may be about anything, so they are not
// sent: the caller of ToConnect logs them. An error that another server's detail explains stays as
// it is.
func ToConnect(err error) *connect.Error {
	if err == nil {
		return nil
	}
	var sent *connect.Error
	if errors.As(err, &sent) {
		if detail(sent) != nil {
			return sent
		}
		err = FromConnect(sent)
	}
	out := toDetail(err)
	text := out.Cause
	if text == "" {
		text = strings.ReplaceAll(string(kindIn(err)), "_", " ")
	}
	if out.Subject != "" {
		text = out.Subject + ": " + text
	}
	e := connect.NewError(CodeOf(err), errors.New(text))
	if wait := RetryAfter(err); wait > 0 {
		seconds := (wait + time.Second - 1) / time.Second
		e.Meta().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	if d, err := connect.NewErrorDetail(out); err == nil {
		e.AddDetail(d)
	}
	return e
}

// toDetail returns the detail that says err.
func toDetail(err error) *v1.Error {
	kind := kindIn(err)
	out := &v1.Error{Kind: ofKind(kind).wire, Retryable: Retryable(err),
		Hint: Clean(turnstone.HintOf(err), maxHint)}
	var e *turnstone.Error
	if errors.As(err, &e) {
		out.Op, out.Subject = Clean(string(e.Op), maxOp), Clean(e.Subject, maxSubject)
		if e.Err != nil && kind != turnstone.KindInternal {
			out.Cause = Clean(e.Err.Error(), maxCause)
		}
	}
	if wait := RetryAfter(err); wait > 0 {
		out.RetryAfter = durationpb.New(wait)
	}
	var s *Status
	if errors.As(err, &s) {
		out.Reason, out.Introduction = Clean(s.Reason, maxOp), s.Introduction
		out.Certificate = s.Certificate
		for _, v := range s.Violations[:min(len(s.Violations), maxViolations)] {
			out.Violations = append(out.Violations, &v1.Violation{
				Field: Clean(v.Field, maxSubject), Rule: Clean(v.Rule, maxOp),
				Message: Clean(v.Message, maxHint)})
		}
	}
	return out
}

// FromConnect converts an error of a call to a *Status with a *turnstone.Error. The texts are
// bounded and fit for a terminal, because a gateway could have written them. Without a detail, as
// from a proxy, the code decides the kind. An error that is no Connect error is returned as it is.
func FromConnect(err error) error {
	var sent *connect.Error
	if !errors.As(err, &sent) {
		return err
	}
	d := detail(sent)
	s := &Status{Code: sent.Code(), Reason: Clean(d.GetReason(), maxOp)}
	if i := d.GetIntroduction(); len(i) <= maxIntroduction {
		s.Introduction = i
	}
	if c := d.GetCertificate(); len(c) <= maxIntroduction {
		s.Certificate = c
	}
	if d == nil {
		if lost(sent) {
			s.Code = connect.CodeUnavailable
		}
		e := turnstone.NewError("api.call", KindOfCode(s.Code), "", nil)
		if e.Err = errors.New(Clean(sent.Message(), maxCause)); !connect.IsWireError(sent) {
			e.Err = &local{text: e.Err.Error(), err: sent.Unwrap()}
		}
		if s.Code == connect.CodeUnimplemented {
			_ = e.WithHint("check that client and server have the same version")
		}
		s.Err, s.RetryAfter = e, headerWait(sent)
		return s
	}
	e := turnstone.NewError(turnstone.Op(Clean(d.Op, maxOp)), fromKind(d.Kind),
		Clean(d.Subject, maxSubject), nil).WithHint(Clean(d.Hint, maxHint))
	if d.Kind == v1.ErrorKind_ERROR_KIND_UNSPECIFIED || ofKind(e.Kind).wire != d.Kind {
		e.Kind = KindOfCode(sent.Code()) // a kind that this program does not know
	}
	if d.Cause != "" {
		e.Err = errors.New(Clean(d.Cause, maxCause))
	}
	if wait := d.RetryAfter; wait.IsValid() && wait.AsDuration() > 0 {
		s.RetryAfter = min(wait.AsDuration(), maxRetryAfter)
	}
	for _, v := range d.Violations[:min(len(d.Violations), maxViolations)] {
		s.Violations = append(s.Violations, Violation{Clean(v.Field, maxSubject),
			Clean(v.Rule, maxOp), Clean(v.Message, maxHint)})
	}
	s.Err = e
	return s
}

// Unreached reports whether the server of a call with ctx did not answer, or its connection ended
// before the answer did: the call may be repeated if it has no effect, or an idempotency key. It is
// false after the end of ctx.
func Unreached(ctx context.Context, err error) bool {
	var e *connect.Error
	if !errors.As(err, &e) || connect.IsWireError(e) || ctx.Err() != nil {
		return false
	}
	// connect returns "canceled" for the end of ctx, and for broken connections.
	return e.Code() == connect.CodeUnavailable || e.Code() == connect.CodeCanceled || lost(e)
}

// lost reports whether a connection ended before its answer did, because the server's process was
// killed, for example. connect v1.21 returns "unavailable" only if the answer has not begun;
// otherwise it returns "unknown" or "internal", or "canceled" if the kernel reset the connection.
func lost(e *connect.Error) bool {
	if connect.IsWireError(e) || errors.Is(e, context.Canceled) {
		return false
	}
	var of *net.OpError
	switch e.Code() {
	case connect.CodeUnknown, connect.CodeInternal:
		return errors.Is(e, io.ErrUnexpectedEOF) || errors.Is(e, net.ErrClosed) ||
			errors.As(e, &of) && of.Op != "local error" && of.Op != "remote error" // TLS alerts
	case connect.CodeCanceled:
		return errors.Is(e, syscall.ECONNRESET) || errors.Is(e, syscall.EPIPE)
	}
	return false
}

// A local error was made by this process, such as a failed connection; its chain is kept.
type local struct {
	text string
	err  error
}

func (l *local) Error() string { return l.text }
func (l *local) Unwrap() error { return l.err }

// fromKind returns the kind that a detail says, or "" for a value that no row has.
func fromKind(wire v1.ErrorKind) turnstone.Kind {
	for _, m := range meanings {
		if m.wire == wire {
			return m.kind
		}
	}
	return ""
}

// detail returns the first detail of e that is a turnstone.v1.Error, or nil.
func detail(e *connect.Error) *v1.Error {
	for _, d := range e.Details() {
		if d.Type() != string((&v1.Error{}).ProtoReflect().Descriptor().FullName()) {
			continue
		}
		if m, err := d.Value(); err == nil {
			if out, ok := m.(*v1.Error); ok {
				return out
			}
		}
	}
	return nil
}

// headerWait returns the seconds of the header Retry-After (RFC 9110, 10.2.3), or 0. A date there
// counts as unknown.
func headerWait(e *connect.Error) time.Duration {
	n, err := strconv.ParseUint(e.Meta().Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, maxRetryAfter)
}

// Clean returns s as one line of printable text of at most most bytes.
func Clean(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if len(s) <= most {
		return s
	}
	const cut = "…"
	n := most - len(cut)
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cut
}

// Invalid returns the error of a request with these violations; op names the procedure.
func Invalid(op turnstone.Op, all ...Violation) error {
	var texts []string
	for _, v := range all[:min(len(all), 3)] {
		texts = append(texts, strings.TrimPrefix(v.Field+": "+v.Message, ": "))
	}
	if n := len(all) - len(texts); n > 0 {
		texts = append(texts, fmt.Sprintf("%d more", n))
	}
	return &Status{Violations: all, Err: turnstone.Errorf(op, turnstone.KindInvalid, "request",
		"%s", strings.Join(texts, "; ")).WithHint("see docs/api.md for the rules of each field")}
}
