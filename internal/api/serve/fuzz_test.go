package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/apitest"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// A recorder keeps the requests that pass the validation.
type recorder struct {
	validateInterceptor
	seen func(procedure string, m proto.Message)
}

func (r recorder) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
		if m, ok := q.Any().(proto.Message); ok {
			r.seen(q.Spec().Procedure, m)
		}
		return next(ctx, q)
	}
}

func (r recorder) WrapStreamingHandler(
	next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// every returns a handler of all services, and their procedures.
func every(report Report, seen func(string, proto.Message)) (http.Handler, []string,
	map[string]protoreflect.MethodDescriptor) {
	options := append(HandlerOptions(report), connect.WithInterceptors(recorder{seen: seen}))
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewSandboxServiceHandler(
		connectv1.UnimplementedSandboxServiceHandler{}, options...))
	mux.Handle(connectv1.NewTurnServiceHandler(
		connectv1.UnimplementedTurnServiceHandler{}, options...))
	mux.Handle(connectv1.NewSessionServiceHandler(
		connectv1.UnimplementedSessionServiceHandler{}, options...))
	mux.Handle(connectv1.NewTemplateServiceHandler(
		connectv1.UnimplementedTemplateServiceHandler{}, options...))
	mux.Handle(connectv1.NewPoolServiceHandler(
		connectv1.UnimplementedPoolServiceHandler{}, options...))
	mux.Handle(connectv1.NewNodeServiceHandler(
		connectv1.UnimplementedNodeServiceHandler{}, options...))
	mux.Handle(connectv1.NewControllerServiceHandler(
		connectv1.UnimplementedControllerServiceHandler{}, options...))
	var names []string
	methods := map[string]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		v1.File_turnstone_v1_sandbox_proto, v1.File_turnstone_v1_turn_proto,
		v1.File_turnstone_v1_session_proto, v1.File_turnstone_v1_template_proto,
		v1.File_turnstone_v1_pool_proto,
		v1.File_turnstone_v1_node_proto, v1.File_turnstone_v1_controller_proto} {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				m := file.Services().Get(i).Methods().Get(j)
				name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
				names, methods[name] = append(names, name), m
			}
		}
	}
	return mux, names, methods
}

var contentTypes = []string{
	"application/json", "application/proto", "application/connect+json",
	"application/connect+proto", "application/grpc", "application/grpc+json",
	"application/grpc-web+proto", "application/json; charset=utf-8", "text/plain",
}

// FuzzRequests sends bytes as a request of each procedure, in each protocol and encoding. What a
// handler sees is valid, survives both encodings, and keeps within the bound; what it does not see
// is answered with an error that a client can read, and no fault of the server.
func FuzzRequests(f *testing.F) {
	var last proto.Message
	var fault error
	h, names, methods := every(
		func(_ context.Context, _ string, err error) { fault = err },
		func(_ string, m proto.Message) { last = m })
	for i, name := range names {
		m := apitest.MessageType(f, methods[name].Input()).New()
		apitest.Fill(m)
		if json, err := protojson.Marshal(m.Interface()); err == nil {
			f.Add(uint8(i), uint8(0), false, json)
			f.Add(uint8(i), uint8(2), false, frame(json))
		}
		if binary, err := proto.Marshal(m.Interface()); err == nil {
			f.Add(uint8(i), uint8(1), false, binary)
			f.Add(uint8(i), uint8(4), false, frame(binary))
		}
		f.Add(uint8(i), uint8(0), false, []byte(`{}`))
	}
	f.Add(uint8(0), uint8(1), true, []byte("\x1f\x8b\x08\x00"))
	f.Add(uint8(0), uint8(2), false, []byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, method, encoding uint8, zipped bool, body []byte) {
		last, fault = nil, nil
		name := names[int(method)%len(names)]
		kind := contentTypes[int(encoding)%len(contentTypes)]
		r := httptest.NewRequest(http.MethodPost, name, bytes.NewReader(body))
		r.ProtoMajor = 2 // gRPC needs it
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Connect-Protocol-Version", "1")
		if zipped {
			r.Header.Set("Content-Encoding", "gzip")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if fault != nil {
			t.Errorf("a request is a fault of the server: %v", fault)
		}
		if last != nil {
			checkSeen(t, last)
		}
		if w.Body.Len() > api.MaxAnswer {
			t.Errorf("the answer has %d bytes", w.Body.Len())
		}
		unary := w.Code != http.StatusUnsupportedMediaType // a stream has no plain JSON
		if w.Code != http.StatusOK && kind == "application/json" && unary {
			checkError(t, w)
		}
	})
}

func checkSeen(t *testing.T, m proto.Message) {
	t.Helper()
	if err := Validate("test", m); err != nil {
		t.Errorf("a handler got an invalid request: %v", err)
	}
	binary, err := proto.Marshal(m)
	if err != nil || len(binary) > api.MaxRequest {
		t.Fatalf("%d bytes, %v", len(binary), err)
	}
	text, err := strictJSON{}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	again := m.ProtoReflect().New().Interface()
	if err := (strictJSON{}).Unmarshal(text, again); err != nil || !proto.Equal(m, again) {
		t.Errorf("%v became %v: %v", m, again, err)
	}
}

// checkError checks an error of the Connect protocol: the code, and the detail if it has one.
func checkError(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	var answer struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Details []struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"details"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%d: %q: %v", w.Code, w.Body, err)
	}
	var code connect.Code
	if err := code.UnmarshalText([]byte(answer.Code)); err != nil {
		t.Fatal(err)
	}
	if api.KindOfCode(code) == turnstone.KindInternal {
		t.Errorf("a request is a fault of the server: %s", w.Body)
	}
}

// frame puts a message into the frame of streams.
func frame(b []byte) []byte {
	n := len(b)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, b...)
}

// TestSeedsAreValid: the seeds of FuzzRequests reach the handlers.
func TestSeedsAreValid(t *testing.T) {
	_, names, methods := every(nil, nil)
	for _, name := range names {
		m := apitest.MessageType(t, methods[name].Input()).New()
		apitest.Fill(m)
		if err := Validate("test", m.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
