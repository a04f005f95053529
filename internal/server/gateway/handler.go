package gateway

import (
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
)

// Paths of channels; a node has the same. HealthPath says that the process answers, ReadyPath that
// it can serve callers.
const (
	NodeChannelPath    = "/turnstone/v1/nodes/{node}/channel"
	SandboxChannelPath = "/turnstone/v1/sandboxes/{id}/channel"
	PlainPath          = "/turnstone/v1/plain/" // in the clear, to a node in this process
	HealthPath         = "/healthz"
	ReadyPath          = "/readyz"
)

// services are what callers reach with a token. Those between roles are not among them.
var services = []string{connectv1.SandboxServiceName, connectv1.TurnServiceName,
	connectv1.SessionServiceName, connectv1.TemplateServiceName, connectv1.ServerServiceName,
	connectv1.PoolServiceName}

// open are services that tell nothing about tenants: gRPC's health protocol and its reflection.
var open = []string{grpchealth.HealthV1ServiceName, grpcreflect.ReflectV1ServiceName,
	grpcreflect.ReflectV1AlphaServiceName}

// Handler serves callers. It bounds requests and not connections, which Serve does.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	control := g.crossOrigin(g.guarded(isStream, http.HandlerFunc(g.control)))
	for _, name := range services {
		mux.Handle("/"+name+"/", control)
	}
	for _, name := range open {
		mux.Handle("/"+name+"/", g.unknown(http.HandlerFunc(g.control)))
	}
	never := func(*http.Request) bool { return false }
	mux.Handle("GET "+NodeChannelPath, g.page(g.guarded(never, http.HandlerFunc(g.nodeChannel))))
	mux.Handle("GET "+SandboxChannelPath, g.page(g.guarded(never, http.HandlerFunc(g.sandboxChannel))))
	inTheClear := g.o.Plain
	if inTheClear == nil {
		inTheClear = http.HandlerFunc(g.noPlain)
	}
	mux.Handle("POST "+PlainPath, g.guarded(never, inTheClear))
	mux.HandleFunc("GET "+HealthPath, g.health)
	mux.HandleFunc("GET "+ReadyPath, g.ready)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.refuser.refuse(w, r, turnstone.Errorf("gateway.path", turnstone.KindNotFound, "the path",
			"is not one of this server").WithHint("see docs/api.md for the paths"))
	})
	if g.o.Around != nil {
		return g.o.Around(g.frame(mux))
	}
	return g.frame(mux)
}

// noPlain refuses Exec and Run, which end at the node: a gateway that passed them on would read them.
func (g *Gateway) noPlain(w http.ResponseWriter, r *http.Request) {
	g.refuser.refuse(w, r, &api.Status{Code: connect.CodePermissionDenied, Err: turnstone.Errorf(
		"plain.call", turnstone.KindInvalid, "the gateway", "does not forward Exec and Run: they "+
			"end at the node, which is another process, and the gateway would read them").
		WithHint("use the turn command, whose channel is encrypted to the node, or a server whose " +
			"gateway and node are one process")})
}

// control passes a control call on.
func (g *Gateway) control(w http.ResponseWriter, r *http.Request) { g.o.Control.ServeHTTP(w, r) }

// maxUnknown bounds a body in bytes that comes without a token. An answer about a service is a
// thousand times larger than its question.
const maxUnknown = 16 << 10

// unknown passes requests of callers without a token on.
func (g *Gateway) unknown(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxUnknown {
			g.refuser.refuse(w, r, tooLarge(r.ContentLength, maxUnknown))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxUnknown)
		next.ServeHTTP(w, r)
	})
}

// principal returns the caller: of the connection, or of the token.
func (g *Gateway) principal(r *http.Request) (auth.Principal, error) {
	if p, ok := auth.FromContext(r.Context()); ok {
		return p, nil
	}
	token, err := auth.Bearer(r.Header)
	if err != nil {
		return auth.Principal{}, refusal(err)
	}
	p, err := g.o.Verifier.Verify(r.Context(), token)
	if err != nil {
		return auth.Principal{}, refusal(err)
	}
	return p, nil
}

// isStream reports whether a call is answered by a stream of changes, which a client can watch
// again elsewhere.
func isStream(r *http.Request) bool {
	service, method, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(
		protoreflect.FullName(service + "." + method))
	m, ok := d.(protoreflect.MethodDescriptor)
	return err == nil && ok && m.IsStreamingServer()
}

func (g *Gateway) health(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("ok\n"))
}

func (g *Gateway) ready(w http.ResponseWriter, r *http.Request) {
	err := g.calls.refusing()
	if err == nil && g.o.Ready != nil {
		err = g.o.Ready(r.Context())
	}
	if err != nil {
		g.log.InfoContext(r.Context(), "not ready", "kind", turnstone.KindOf(err), "error", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "not ready", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}
