// Package guard authorises calls of the control API by their methods, before anything of their
// bodies is decoded.
package guard

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/fair"
)

// A method is what a procedure needs.
type method struct {
	scope auth.Scope // empty: it is not for callers
	// sandbox: its request names one sandbox, so the token of a sandbox may be enough.
	sandbox bool
	stream  bool // it is answered by a stream, which lasts
}

// methods returns the procedures of the services for callers by their paths.
func methods() map[string]method {
	all := map[string]method{}
	for _, file := range []protoreflect.FileDescriptor{v1.File_turnstone_v1_sandbox_proto,
		v1.File_turnstone_v1_turn_proto, v1.File_turnstone_v1_session_proto,
		v1.File_turnstone_v1_template_proto, v1.File_turnstone_v1_server_proto,
		v1.File_turnstone_v1_pool_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				field := m.Input().Fields().ByName("sandbox_id")
				all["/"+string(service.FullName())+"/"+string(m.Name())] = method{
					scope:   auth.Scope(api.ScopeOf(connect.Spec{Schema: m})),
					sandbox: field != nil && m.Input().Fields().ByName("page") == nil,
					stream:  m.IsStreamingServer()}
			}
		}
	}
	return all
}

// ours begins the paths of the services of this API. Others are health and reflection, which tell
// nothing about tenants.
const ours = "/turnstone."

// Handler returns a handler that authenticates the caller of each request and checks the scope of
// the method before next reads anything of the body. The caller is the principal of the request's
// context (auth.NewContext), else that of the token in the header Authorization. What is refused is
// noted by a. Of the calls that are admitted those of shares are served at one time, except streams.
func Handler(v auth.Verifier, next http.Handler, a Auditor, shares *fair.Shares) http.Handler {
	all := methods()
	errors := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, known := all[r.URL.Path]
		if !known && !strings.HasPrefix(r.URL.Path, ours) {
			next.ServeHTTP(w, r)
			return
		}
		r = withAddress(r)
		p, err := admit(v, r, m)
		ctx := auth.NewContext(r.Context(), p)
		if err == nil && !m.stream {
			var share *fair.Share
			if ctx, share, err = shares.Enter(ctx, p.Tenant); err == nil {
				defer share.Leave()
			}
		}
		if err == nil {
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		a.refused(r, p, known, err)
		e := api.ToConnect(err)
		if e.Code() == connect.CodeUnauthenticated {
			w.Header().Set("WWW-Authenticate", "Bearer") // RFC 6750, 3
		}
		_ = errors.Write(w, r, e) // the connection is gone
	})
}

// admit returns the caller of a request if it has the method's scope.
func admit(v auth.Verifier, r *http.Request, m method) (auth.Principal, error) {
	p, ok := auth.FromContext(r.Context())
	if !ok {
		token, err := auth.Bearer(r.Header)
		if err == nil {
			p, err = v.Verify(r.Context(), token)
		}
		if err != nil {
			return auth.Principal{}, refusal(err)
		}
	}
	if m.scope == "" {
		return auth.Principal{}, &api.Status{Code: connect.CodeUnimplemented,
			Err: turnstone.Errorf("api.call", turnstone.KindUnavailable, "",
				"the server has no such method").
				WithHint("check that client and server have the same version")}
	}
	ask := auth.Request{Scope: m.scope}
	if m.sandbox {
		ask.Sandbox = p.Sandbox // which sandbox is asked for is in the body: its handler checks it
	}
	return p, refusal(p.Allow(ask))
}

// refusal adds the code of the control API to a refusal of package auth.
func refusal(err error) error {
	reason := auth.ReasonOf(err)
	if reason == "" {
		return err
	}
	s := &api.Status{Reason: string(reason), Err: err}
	switch {
	case reason.Unauthenticated():
		s.Code = connect.CodeUnauthenticated
	case reason == auth.Denied:
		s.Code = connect.CodePermissionDenied
	case reason == auth.Stale:
		s.RetryAfter = time.Second
	}
	return s
}

// Refusals is an interceptor that adds the code of the control API to the refusals of package auth
// that handlers return.
type Refusals struct{}

// WrapUnary implements connect.Interceptor.
func (Refusals) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		answer, err := next(ctx, r)
		if err != nil {
			return nil, refusal(err)
		}
		return answer, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (Refusals) WrapStreamingClient(
	next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (Refusals) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return refusal(next(ctx, conn))
	}
}

// Caller returns the principal that a call was admitted with.
func Caller(ctx context.Context) auth.Principal {
	p, _ := auth.FromContext(ctx) // the zero principal sees nothing
	return p
}
