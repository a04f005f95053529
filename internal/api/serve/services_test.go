package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// TestServices speaks gRPC over HTTP/2 and JSON over HTTP/1.1 with one server.
func TestServices(t *testing.T) {
	var sick atomic.Bool
	healthy := func(context.Context) error {
		if sick.Load() {
			return errors.New("the reason")
		}
		return nil
	}
	s := httptest.NewUnstartedServer(Services{Sandboxes: backend{}, Healthy: healthy}.Handler(nil))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	second := new(http.Protocols)
	second.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: second}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}

	c := connectv1.NewSandboxServiceClient(client, s.URL,
		append(api.ClientOptions(), connect.WithGRPC())...)
	_, err := c.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{SandboxId: "x"}))
	if err = api.FromConnect(err); turnstone.KindOf(err) != turnstone.KindInvalid ||
		turnstone.HintOf(err) == "" {
		t.Errorf("gRPC: %v", err)
	}
	if _, err := connectv1.NewTurnServiceClient(client, s.URL).GetTurn(t.Context(),
		connect.NewRequest(&v1.GetTurnRequest{})); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("a service that is not there: %v", err)
	}
	stream := grpcreflect.NewClient(client, s.URL, connect.WithGRPC()).NewStream(t.Context())
	names, err := stream.ListServices()
	if err != nil || len(names) != 1 || string(names[0]) != connectv1.SandboxServiceName {
		t.Errorf("reflection: %v, %v", names, err)
	}
	files, err := stream.FileContainingSymbol(names[0])
	if err != nil || !slices.ContainsFunc(files, func(f *descriptorpb.FileDescriptorProto) bool {
		return f.GetName() == "turnstone/v1/sandbox.proto"
	}) {
		t.Errorf("reflection: %v, %v", files, err)
	}
	if _, err := stream.Close(); err != nil {
		t.Error(err)
	}
	checkHealth(t, s.URL, `{}`, `"SERVING_STATUS_SERVING"`)
	checkHealth(t, s.URL, `{"service":"turnstone.v1.SandboxService"}`, `"SERVING_STATUS_SERVING"`)
	checkHealth(t, s.URL, `{"service":"turnstone.v1.NodeService"}`, `"not_found"`)
	sick.Store(true)
	checkHealth(t, s.URL, `{}`, `"SERVING_STATUS_NOT_SERVING"`)
}

func checkHealth(t *testing.T, url, body, want string) {
	t.Helper()
	answer, err := http.Post(url+"/grpc.health.v1.Health/Check", "application/json",
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(got), want) || strings.Contains(string(got), "reason") {
		t.Errorf("%s: %s, %v", body, got, err)
	}
}
