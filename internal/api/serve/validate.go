// Package serve is the servers' half of the control API: validation, errors of handlers, health and
// reflection. Clients do not import it, because the validator's start costs milliseconds.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/hostpath"
)

// maxText bounds what an error repeats of a library, in bytes.
const maxText = 256

// A Report receives an error that its caller gets no text of, and panics of handlers.
type Report func(ctx context.Context, procedure string, err error)

// HandlerOptions are the options of every handler of the API: bounds, codecs that know each field,
// errors with details, validation, and no panic that ends the server. The interceptors in inner,
// such as an authorisation, run before the validation. report may be nil.
func HandlerOptions(report Report, inner ...connect.Interceptor) []connect.HandlerOption {
	if report == nil {
		report = func(context.Context, string, error) {}
	}
	all := append([]connect.Interceptor{&errorInterceptor{report}}, inner...)
	return []connect.HandlerOption{
		connect.WithReadMaxBytes(api.MaxRequest), connect.WithSendMaxBytes(api.MaxAnswer),
		connect.WithCompressMinBytes(minCompress),
		connect.WithCompression(api.Compression, api.Gunzip(api.MaxRequest), api.Gzip),
		connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}),
		connect.WithInterceptors(append(all, validateInterceptor{})...),
	}
}

// minCompress is the size of an answer in bytes that is worth compressing: to prepare a compressor
// costs more than to send the attestation of a channel.
const minCompress = 8 << 10

// validator compiles the rules of a message when it first sees the message.
var validator = sync.OnceValues(func() (protovalidate.Validator, error) {
	return protovalidate.New()
})

// Validate reports the faults of a request: unknown fields, and the rules of proto/. The error is
// of kind KindInvalid, with Violations, and has no value of the request.
func Validate(op turnstone.Op, m proto.Message) error {
	if unknown := unknownField(m.ProtoReflect()); unknown != nil {
		// A field that this server ignores could be the one that the caller relies on.
		return api.Invalid(op, *unknown)
	}
	v, err := validator()
	if err != nil {
		return turnstone.NewError(op, turnstone.KindInternal, "", err)
	}
	var broken *protovalidate.ValidationError
	switch err := v.Validate(m); {
	case err == nil:
		return nil
	case !errors.As(err, &broken):
		return turnstone.NewError(op, turnstone.KindInternal, "", err)
	}
	var all []api.Violation
	for _, b := range broken.Violations {
		all = append(all, api.Violation{Field: fieldPath(b), Rule: b.Proto.GetRuleId(),
			Message: ruleText(b)})
	}
	return api.Invalid(op, all...)
}

// fieldPath returns the path of a violation without keys of maps, which are the caller's data.
func fieldPath(b *protovalidate.Violation) string {
	var path strings.Builder
	for _, e := range b.Proto.GetField().GetElements() {
		if path.Len() > 0 {
			path.WriteByte('.')
		}
		path.WriteString(e.GetFieldName())
		if e.HasIndex() {
			fmt.Fprintf(&path, "[%d]", e.GetIndex())
		}
	}
	return path.String()
}

// ruleText returns a violation's sentence.
func ruleText(b *protovalidate.Violation) string {
	text := sentence(b)
	if b.Proto.GetForKey() {
		text = "a key: " + text
	}
	return text
}

// unknownField returns the violation of the first field in m that its type does not have, or nil.
func unknownField(m protoreflect.Message) (found *api.Violation) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		return &api.Violation{Field: string(m.Descriptor().Name()), Rule: "unknown",
			Message: "has a field that this server does not know"}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				found = unknownField(v.Message())
				return found == nil
			})
		case f.IsList() && f.Message() != nil:
			for i := 0; i < v.List().Len() && found == nil; i++ {
				found = unknownField(v.List().Get(i).Message())
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			found = unknownField(v.Message())
		}
		return found == nil
	})
	return found
}

// validateInterceptor validates all requests.
type validateInterceptor struct{}

func (validateInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := validateAny(r.Spec().Procedure, r.Any()); err != nil {
			return nil, err
		}
		return next(ctx, r)
	}
}

func (validateInterceptor) WrapStreamingClient(
	next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (validateInterceptor) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		return next(ctx, validatingConn{c})
	}
}

type validatingConn struct{ connect.StreamingHandlerConn }

func (c validatingConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		var e *connect.Error
		if !errors.Is(err, io.EOF) && errors.As(err, &e) &&
			api.KindOfCode(e.Code()) == turnstone.KindInternal {
			// connect-go says this of a request that is cut off.
			return api.ToConnect(turnstone.Errorf(opOf(c.Spec().Procedure), turnstone.KindInvalid,
				"request", "%s", api.Clean(e.Message(), maxText)))
		}
		return err
	}
	if err := validateAny(c.Spec().Procedure, m); err != nil {
		return api.ToConnect(err) // the generated handler returns it as it is
	}
	return nil
}

func validateAny(procedure string, m any) error {
	op := opOf(procedure)
	p, ok := m.(proto.Message)
	if !ok {
		return turnstone.Errorf(op, turnstone.KindInternal, "", "%T is no message", m)
	}
	return Validate(op, p)
}

// opOf returns the operation that a procedure is in errors, such as "SandboxService.GetSandbox".
func opOf(procedure string) turnstone.Op {
	service, method, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	return turnstone.Op(service[strings.LastIndexByte(service, '.')+1:] + "." + method)
}

// errorInterceptor converts the errors and panics of all that runs inside of it.
type errorInterceptor struct{ report Report }

func (i *errorInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (_ connect.AnyResponse, err error) {
		defer i.recover(ctx, r.Spec().Procedure, &err)
		answer, err := next(ctx, r)
		if err != nil {
			return nil, i.convert(ctx, r.Spec().Procedure, err)
		}
		return answer, nil
	}
}

func (i *errorInterceptor) WrapStreamingClient(
	next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i *errorInterceptor) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) (err error) {
		defer i.recover(ctx, c.Spec().Procedure, &err)
		if err := next(ctx, c); err != nil {
			return i.convert(ctx, c.Spec().Procedure, err)
		}
		return nil
	}
}

// convert converts err. Of a call that the server itself ended, such as by a token's end, the cause
// of its context says more.
func (i *errorInterceptor) convert(ctx context.Context, procedure string, err error) error {
	var why *api.Status
	if errors.As(context.Cause(ctx), &why) && api.CodeOf(err) == connect.CodeCanceled {
		err = why
	}
	out := api.ToConnect(err)
	if turnstone.KindOf(api.FromConnect(out)) == turnstone.KindInternal {
		i.report(ctx, procedure, hostpath.Original(err))
	}
	return out
}

// Hide returns an interceptor that takes this host's paths out of the errors of handlers. Reports
// get the errors as they are.
func Hide(h *hostpath.Hider) connect.Interceptor { return hideInterceptor{h} }

type hideInterceptor struct{ *hostpath.Hider }

func (i hideInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		answer, err := next(ctx, r)
		return answer, i.Error(err)
	}
}

func (i hideInterceptor) WrapStreamingClient(
	next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i hideInterceptor) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		return i.Error(next(ctx, c))
	}
}

// recover turns a panic into an error without its text. net/http's own panic, which ends a
// connection, continues.
func (i *errorInterceptor) recover(ctx context.Context, procedure string, err *error) {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		i.report(ctx, procedure, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		*err = api.ToConnect(turnstone.NewError(opOf(procedure), turnstone.KindInternal, "", nil))
	}
}

// strictJSON is Connect's JSON codec except that it rejects unknown fields: a misspelt "network"
// must not create a sandbox with one.
type strictJSON struct{ name string }

func (c strictJSON) Name() string { return c.name }

func (strictJSON) Marshal(m any) ([]byte, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", m)
	}
	return protojson.Marshal(p)
}

func (strictJSON) Unmarshal(b []byte, m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", m)
	}
	if len(b) == 0 {
		return errors.New("a JSON object is missing: send {} for an empty request")
	}
	if err := protojson.Unmarshal(b, p); err != nil {
		return errors.New(api.Clean(err.Error(), maxText))
	}
	return nil
}
