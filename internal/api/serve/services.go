package serve

import (
	"context"
	"net/http"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// Services are what callers reach. A service that is nil is not there.
type Services struct {
	Sandboxes connectv1.SandboxServiceHandler
	Turns     connectv1.TurnServiceHandler
	Sessions  connectv1.SessionServiceHandler
	Templates connectv1.TemplateServiceHandler
	Server    connectv1.ServerServiceHandler
	Pools     connectv1.PoolServiceHandler

	// Healthy reports why the server cannot serve callers now; nil: it always can. It must answer
	// soon.
	Healthy func(ctx context.Context) error
}

// Handler returns the handler of the services, of gRPC's health protocol and of its reflection,
// which describes these services. Health and reflection tell nothing about tenants; interceptors in
// inner do not run for them. The other arguments are those of HandlerOptions.
func (s Services) Handler(report Report, inner ...connect.Interceptor) http.Handler {
	options := HandlerOptions(report, inner...)
	mux := http.NewServeMux()
	var names []string
	add := func(name, path string, h http.Handler) {
		mux.Handle(path, h)
		names = append(names, name)
	}
	if s.Sandboxes != nil {
		path, h := connectv1.NewSandboxServiceHandler(s.Sandboxes, options...)
		add(connectv1.SandboxServiceName, path, h)
	}
	if s.Turns != nil {
		path, h := connectv1.NewTurnServiceHandler(s.Turns, options...)
		add(connectv1.TurnServiceName, path, h)
	}
	if s.Sessions != nil {
		path, h := connectv1.NewSessionServiceHandler(s.Sessions, options...)
		add(connectv1.SessionServiceName, path, h)
	}
	if s.Templates != nil {
		path, h := connectv1.NewTemplateServiceHandler(s.Templates, options...)
		add(connectv1.TemplateServiceName, path, h)
	}
	if s.Server != nil {
		path, h := connectv1.NewServerServiceHandler(s.Server, options...)
		add(connectv1.ServerServiceName, path, h)
	}
	if s.Pools != nil {
		path, h := connectv1.NewPoolServiceHandler(s.Pools, options...)
		add(connectv1.PoolServiceName, path, h)
	}
	bounds := connect.WithHandlerOptions(
		connect.WithReadMaxBytes(api.MaxRequest), connect.WithSendMaxBytes(api.MaxAnswer),
		// requests without a token are not worth the work of decompression
		connect.WithCompression(api.Compression, nil, nil))
	mux.Handle(grpchealth.NewHandler(health{s.Healthy, names}, bounds))
	reflector := grpcreflect.NewStaticReflector(names...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, bounds))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, bounds))
	return mux
}

// health answers gRPC's health protocol. The empty name stands for the server.
type health struct {
	healthy func(context.Context) error
	names   []string
}

func (h health) Check(ctx context.Context, r *grpchealth.CheckRequest) (
	*grpchealth.CheckResponse, error) {
	known := r.Service == ""
	for _, name := range h.names {
		known = known || r.Service == name
	}
	if !known {
		return nil, api.ToConnect(turnstone.Errorf("api.health", turnstone.KindNotFound,
			"service", "%.80q is not served", r.Service))
	}
	if h.healthy != nil && h.healthy(ctx) != nil { // why is for the log, not for strangers
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
