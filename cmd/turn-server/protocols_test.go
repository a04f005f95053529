package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/apitest"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/config"
)

// A protocol is a way to call the control API.
type protocol struct {
	name    string
	two     bool // HTTP/2, otherwise HTTP/1.1
	options []connect.ClientOption
}

var protocolsOfAPI = []protocol{
	{"connect json 1.1", false, []connect.ClientOption{connect.WithProtoJSON()}},
	{"connect 2", true, nil},
	{"grpc 2", true, []connect.ClientOption{connect.WithGRPC()}},
	{"grpc-web 1.1", false, []connect.ClientOption{connect.WithGRPCWeb()}},
	{"grpc-web 2", true, []connect.ClientOption{connect.WithGRPCWeb()}},
}

// withToken adds a token to requests.
type withToken struct {
	http.RoundTripper
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	return w.RoundTripper.RoundTrip(r)
}

// client returns a client of HTTP that speaks one version alone.
func (p protocol) client(t *testing.T, token string) *http.Client {
	var v http.Protocols
	v.SetHTTP1(!p.two)
	v.SetUnencryptedHTTP2(p.two)
	tr := &http.Transport{Protocols: &v}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: withToken{tr, token}}
}

// services returns a client of each service for callers, by its name.
func (p protocol) services(t *testing.T, url, token string) map[string]any {
	h, o := p.client(t, token), append(api.ClientOptions(), p.options...)
	return map[string]any{
		connectv1.SandboxServiceName:  connectv1.NewSandboxServiceClient(h, url, o...),
		connectv1.TurnServiceName:     connectv1.NewTurnServiceClient(h, url, o...),
		connectv1.SessionServiceName:  connectv1.NewSessionServiceClient(h, url, o...),
		connectv1.TemplateServiceName: connectv1.NewTemplateServiceClient(h, url, o...),
		connectv1.ServerServiceName:   connectv1.NewServerServiceClient(h, url, o...),
		connectv1.PoolServiceName:     connectv1.NewPoolServiceClient(h, url, o...),
	}
}

// called calls a method of a service's client with a valid request; of a stream it reads the first
// message.
func called(t *testing.T, service any, method string, valid bool) error {
	t.Helper()
	f := reflect.ValueOf(service).MethodByName(method)
	request := reflect.New(f.Type().In(1).Elem()) // a connect.Request
	m := reflect.New(request.Elem().FieldByName("Msg").Type().Elem())
	if valid {
		filled := m.Interface().(proto.Message).ProtoReflect()
		apitest.Fill(filled)
		if avoid := filled.Descriptor().Fields().ByName("avoid_nodes"); avoid != nil {
			filled.Clear(avoid) // it is the name of the only node
		}
	}
	request.Elem().FieldByName("Msg").Set(m)
	out := f.Call([]reflect.Value{reflect.ValueOf(t.Context()), request})
	if err, _ := out[1].Interface().(error); err != nil {
		return err
	}
	stream, ok := out[0].Interface().(interface {
		Receive() bool
		Err() error
		Close() error
	})
	if !ok {
		return nil
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		return nil
	}
	return stream.Err()
}

// A said is what an error of the API says in every protocol.
type said struct {
	code      connect.Code
	reason    string
	retryable bool
	text      string
}

func whatSays(err error) said {
	s, ok := api.FromConnect(err).(*api.Status)
	if !ok {
		return said{text: fmt.Sprint("no detail: ", err)}
	}
	return said{s.Code, s.Reason, api.Retryable(s), s.Error()}
}

// TestProtocols calls each method of the API through a gateway in a process of its own, in every
// protocol: with a token that grants it, with one that does not, and without one. What the errors
// say does not depend on the protocol.
func TestProtocols(t *testing.T) {
	x := startPair(t, config.Controller+","+config.Node, "TURN_SERVER_NODE_NAME=a",
		"TURN_SERVER_LIMITS_RATE=10000", "TURN_SERVER_LIMITS_BURST=10000")
	x.controller.await("node registered")
	operator := &client{t, filepath.Join(t.TempDir(), "home"),
		[]string{"TURN_HOST=" + x.controller.socket()}}
	all := token(t, x.controller)
	var weak struct{ Token string }
	check(t, json.Unmarshal([]byte(operator.must("token", "create", "--name", "weak", "--ttl", "1h",
		"--scope", "usage:read", "--json")), &weak))
	methods := 0
	for _, p := range protocolsOfAPI {
		t.Run(p.name, func(t *testing.T) {
			anybody, some, full := p.services(t, x.url, ""), p.services(t, x.url, weak.Token),
				p.services(t, x.url, all)
			for service, c := range full {
				for i := range reflect.TypeOf(c).NumMethod() {
					name := reflect.TypeOf(c).Method(i).Name
					methods++
					if got := whatSays(called(t, anybody[service], name, true)); got.code !=
						connect.CodeUnauthenticated || got.reason != "missing" {
						t.Errorf("%s without a token: %+v", name, got)
					}
					denied := whatSays(called(t, some[service], name, true))
					if name != "GetUsage" && (denied.code != connect.CodePermissionDenied ||
						denied.reason != "denied" || denied.retryable) {
						t.Errorf("%s without its scope: %+v", name, denied)
					}
					err := called(t, c, name, true)
					if err == nil {
						continue
					}
					if got := whatSays(err); !slices.Contains([]connect.Code{connect.CodeNotFound,
						connect.CodeInvalidArgument, connect.CodePermissionDenied,
						connect.CodeFailedPrecondition}, got.code) {
						t.Errorf("%s with its scope: %+v", name, got)
					}
				}
			}
		})
	}
	if methods < 5*38 {
		t.Errorf("%d methods were called", methods)
	}
	healthAndReflection(t, x.url)
	x.end(t, all, weak.Token)
}

// healthAndReflection: gRPC's health and reflection need no token, and name the services for callers
// alone.
func healthAndReflection(t *testing.T, url string) {
	t.Helper()
	answer, err := http.Post(url+"/grpc.health.v1.Health/Check", "application/json",
		strings.NewReader("{}"))
	check(t, err)
	b, err := io.ReadAll(answer.Body)
	check(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(b), "SERVING_STATUS_SERVING") {
		t.Errorf("health: %d %s", answer.StatusCode, b)
	}
	stream := grpcreflect.NewClient(protocolsOfAPI[2].client(t, ""), url, connect.WithGRPC()).
		NewStream(t.Context())
	names, err := stream.ListServices()
	check(t, err)
	var got []string
	for _, n := range names {
		if strings.HasPrefix(string(n), "turnstone.") {
			got = append(got, string(n))
		}
	}
	slices.Sort(got)
	want := []string{connectv1.PoolServiceName, connectv1.SandboxServiceName, connectv1.ServerServiceName,
		connectv1.SessionServiceName, connectv1.TemplateServiceName, connectv1.TurnServiceName}
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("reflection names %q", got)
	}
	_, err = stream.Close()
	check(t, err)
}
