package guard

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/principal"
)

// An Auditor writes calls to the audit log. A nil Log writes nothing. It is an interceptor, for the
// calls that Handler admits; Handler notes those that it refuses.
type Auditor struct{ Log *audit.Log }

type addressKey struct{}

// entry returns what is known of a caller.
func entry(ctx context.Context, p auth.Principal, method string) audit.Entry {
	address, _ := ctx.Value(addressKey{}).(string)
	return audit.Entry{Tenant: p.Tenant, Subject: p.Subject, Issuer: p.Issuer, Token: p.TokenID,
		Address: address, Method: method}
}

// name returns the method of a path as SERVICE/METHOD, without the package, or "unknown" for one
// that does not exist: the caller has chosen it.
func name(path string, known bool) string {
	if !known {
		return "unknown"
	}
	return path[strings.LastIndex(path, ".")+1:]
}

// Refused notes a request whose token a gateway has refused: whose it is, nobody knows.
func (a Auditor) Refused(r *http.Request, err error) {
	if a.Log != nil {
		a.Log.Note(outcome(entry(withAddress(r).Context(), auth.Principal{}, "authenticate"), err))
	}
}

// refused notes a call that was not admitted.
func (a Auditor) refused(r *http.Request, p auth.Principal, known bool, err error) {
	if a.Log != nil {
		a.Log.Note(outcome(entry(r.Context(), p, name(r.URL.Path, known)), err))
	}
}

// outcome adds how a call ended.
func outcome(e audit.Entry, err error) audit.Entry {
	e.Outcome = audit.Done
	if err == nil {
		return e
	}
	e.Outcome, e.Kind = audit.Failed, string(turnstone.KindOf(err))
	switch reason := auth.ReasonOf(err); {
	case reason != "":
		e.Outcome, e.Kind = audit.Refused, string(reason)
	case api.IsUnproven(err): // the client may repeat the call, now that it knows the node
		e.Outcome, e.Kind = audit.Refused, "unproven"
	case turnstone.KindOf(err) == turnstone.KindDenied,
		turnstone.KindOf(err) == turnstone.KindExhausted:
		e.Outcome = audit.Refused
	}
	return e
}

// Opened notes that a channel was opened, or was not. Its bytes are sealed: what is done in it the
// node's own records say.
func (a Auditor) Opened(ctx context.Context, p auth.Principal, object string, err error) {
	if a.Log == nil {
		return
	}
	e := entry(ctx, p, "channel.open")
	if err == nil {
		e.Object = object
	}
	a.Log.Note(outcome(e, err))
}

// WrapUnary implements connect.Interceptor. A call that changes something gets a line, whatever
// becomes of it, and is refused before it does anything if no line can be written.
func (a Auditor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if a.Log == nil {
			return next(ctx, r)
		}
		method := name(r.Spec().Procedure, true)
		reads := r.Spec().IdempotencyLevel == connect.IdempotencyNoSideEffects
		if !reads {
			if err := a.Log.Ready(); err != nil {
				return nil, err
			}
		}
		answer, err := next(ctx, r)
		e := outcome(entry(ctx, Caller(ctx), method), err)
		switch {
		case err != nil && reads && e.Outcome == audit.Failed:
		case err != nil:
			a.Log.Note(e)
		case reads:
		case strings.Contains(method, "/Connect"): // it changes nothing, and may be repeated for ever
			e.Object = objects(r.Any(), answer.Any())
			a.Log.Note(e)
		case strings.HasSuffix(method, "Token"):
			e.Object = objects(nil, answer.Any()) // a request may hold a token for its ID
			_ = a.Log.AppendSynced(e)             // a line that waits was reported
		default:
			e.Object = objects(r.Any(), answer.Any())
			_ = a.Log.Append(e)
		}
		return answer, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (a Auditor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. Streams only read.
func (a Auditor) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		if a.Log != nil && err != nil {
			if e := outcome(entry(ctx, Caller(ctx), name(conn.Spec().Procedure, true)),
				err); e.Outcome == audit.Refused {
				a.Log.Note(e)
			}
		}
		return err
	}
}

// maxObjects bounds the objects of a line.
const maxObjects = 8

// ids are the fields that name an object, the answer's before the request's: a new object is in the
// answer only.
var ids = []protoreflect.Name{"sandbox_id", "snapshot_id", "ticket_id", "session_id", "token_id",
	"session", "template", "node"}

// objects returns the IDs of what a call was about.
func objects(messages ...any) string {
	var all []string
	for i := len(messages) - 1; i >= 0 && len(all) == 0; i-- {
		if m, ok := messages[i].(proto.Message); ok {
			all = find(m.ProtoReflect(), 2)
		}
	}
	return strings.Join(all[:min(len(all), maxObjects)], " ")
}

// find returns the first ID of a message, or those of its messages down to a depth.
func find(m protoreflect.Message, depth int) (all []string) {
	if !m.IsValid() {
		return nil
	}
	for _, name := range ids {
		f := m.Descriptor().Fields().ByName(name)
		if f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() && m.Has(f) {
			return []string{m.Get(f).String()}
		}
	}
	if depth == 0 {
		return nil
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Kind() != protoreflect.MessageKind || f.IsMap() || f.Name() == "client" {
			continue
		}
		if !f.IsList() {
			all = append(all, find(m.Get(f).Message(), depth-1)...)
			continue
		}
		list := m.Get(f).List()
		for j := range min(list.Len(), maxObjects) {
			all = append(all, find(list.Get(j).Message(), depth-1)...)
		}
	}
	return all
}

// withAddress adds the address that the gateway has seen to a request's context.
func withAddress(r *http.Request) *http.Request {
	return r.WithContext(WithAddress(r.Context(), r.Header))
}

// WithAddress adds the address in the header of a request from a gateway to a context.
func WithAddress(ctx context.Context, h http.Header) context.Context {
	return context.WithValue(ctx, addressKey{}, h.Get(principal.CallerHeader))
}
