package serve_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
)

// TestScopes: each method for callers needs a scope that tokens can have, a method that changes
// nothing needs none that changes something, and methods between roles have none.
func TestScopes(t *testing.T) {
	for _, file := range []protoreflect.FileDescriptor{
		v1.File_turnstone_v1_sandbox_proto, v1.File_turnstone_v1_turn_proto,
		v1.File_turnstone_v1_session_proto, v1.File_turnstone_v1_template_proto,
		v1.File_turnstone_v1_pool_proto,
		v1.File_turnstone_v1_node_proto, v1.File_turnstone_v1_controller_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			internal := service.Name() == "NodeService" || service.Name() == "ControllerService"
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				scope := api.ScopeOf(connect.Spec{Schema: m})
				if internal != (scope == "") {
					t.Errorf("%s has the scope %q", m.FullName(), scope)
				}
				if !internal && !slices.Contains(auth.Scopes(), auth.Scope(scope)) {
					t.Errorf("%s needs %s, which no token can have", m.FullName(), scope)
				}
				read := strings.HasPrefix(string(m.Name()), "Get") ||
					strings.HasPrefix(string(m.Name()), "List") ||
					strings.HasPrefix(string(m.Name()), "Watch")
				if !internal && read != strings.HasSuffix(scope, ":read") &&
					m.Name() != "ConnectSession" && m.Name() != "ConnectNode" {
					t.Errorf("%s needs %s", m.FullName(), scope)
				}
			}
		}
	}
	if api.ScopeOf(connect.Spec{}) != "" {
		t.Error("no method has a scope")
	}
}

// TestScopeInInterceptor: an interceptor learns the scope before the request is validated.
func TestScopeInInterceptor(t *testing.T) {
	var got string
	guard := connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(_ context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			got = api.ScopeOf(r.Spec())
			return nil, &api.Status{Code: connect.CodePermissionDenied, Reason: "denied",
				Err: context.Canceled}
		}
	})
	_, h := connectv1.NewTurnServiceHandler(connectv1.UnimplementedTurnServiceHandler{},
		serve.HandlerOptions(nil, guard)...)
	client := connectv1.NewTurnServiceClient(&http.Client{Transport: direct{h}}, "http://server")
	_, err := client.CancelTurn(t.Context(), connect.NewRequest(&v1.CancelTurnRequest{}))
	if got != "turns:cancel" || connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("%q, %v", got, err)
	}
	if s, ok := api.FromConnect(err).(*api.Status); !ok || s.Reason != "denied" {
		t.Errorf("%#v", api.FromConnect(err))
	}
}

// direct calls a handler without a network.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r.RequestURI = r.URL.RequestURI()
	d.h.ServeHTTP(w, r)
	return w.Result(), nil
}
