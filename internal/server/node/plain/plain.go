// Package plain runs commands and turns for callers without the encrypted channel, such as curl: by
// plain HTTP, at the node. Whoever is between the caller and the node can read what is said. It is
// refused unless the node's own configuration allows it: neither a gateway nor a controller can
// switch it on.
package plain

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/hostpath"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// Prefix begins the paths of this package.
const Prefix = "/turnstone/v1/plain/"

// Paths of Exec and Run.
const (
	ExecPath = Prefix + "sandboxes/{id}/exec"
	RunPath  = Prefix + "run"
)

// Sandboxes are the sandboxes of a tenant, such as a *sandboxes.Store.
type Sandboxes interface {
	Get(id turnstone.SandboxID) (sandboxes.Info, error)
	Exec(ctx context.Context, id turnstone.SandboxID, cmd sandboxes.Command) (
		wire.ProcessExit, error)
}

// A Runner runs the turns of a tenant, such as an *executor.Executor.
type Runner interface {
	Run(ctx context.Context, r executor.Request, o executor.Observer) (*turnstone.TurnReport, error)
}

// A Tenant is what a node has for one tenant.
type Tenant struct {
	Sandboxes Sandboxes
	Runner    Runner
	// Open reports whether a sandbox has no owner: it was created without a client's key, or by a
	// command of the operator, who asks. nil: none has.
	Open func(id turnstone.SandboxID, operator bool) (bool, error)
	// Limit returns a context whose turns use no session of others.
	Limit func(context.Context) context.Context
}

// Options are the parts of a Service.
type Options struct {
	// Allow is the node's setting plaintext: config.PlaintextOff, PlaintextLoopback or PlaintextOn.
	Allow string
	// Verifier verifies tokens of requests whose context has no principal (auth.FromContext); nil: they
	// are refused.
	Verifier auth.Verifier
	// Tenant returns what the node has for a tenant.
	Tenant func(ctx context.Context, name string) (Tenant, error)
	// Paths hides the node's paths in answered errors; nil: they stay.
	Paths *hostpath.Hider
	// Requests is the number of requests at the same time. Default: 16.
	Requests int
}

const defaultRequests = 16

// Bounds of bodies in bytes.
const (
	maxExec     = 2 << 20 // of a request to exec
	maxDocument = 1 << 20
	maxOutput   = 1 << 20 // of each output that is answered
)

// A Service answers requests. It is safe for concurrent use.
type Service struct {
	o     Options
	slots chan struct{}
}

// New returns a service.
func New(o Options) *Service {
	if o.Requests == 0 {
		o.Requests = defaultRequests
	}
	return &Service{o: o, slots: make(chan struct{}, o.Requests)}
}

// Drain waits until the requests that run have ended. The error is that of ctx. Whoever calls it
// lets no more requests come.
func (s *Service) Drain(ctx context.Context) error {
	for range cap(s.slots) {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Handler serves the paths that begin with Prefix. A request ends when its caller leaves.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+ExecPath, s.guarded("application/json", s.exec))
	mux.HandleFunc("POST "+RunPath, s.guarded("text/markdown", s.run))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		s.refuse(w, turnstone.Errorf("plain.path", turnstone.KindNotFound, "the path",
			"is not one of this server").WithHint("see docs/api.md for the paths"))
	})
	return mux
}

// guarded admits and authenticates the caller before next reads anything of the body.
func (s *Service) guarded(kind string,
	next func(http.ResponseWriter, *http.Request, auth.Principal) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, err := s.caller(r, kind)
		if err != nil {
			s.refuse(w, err)
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			w.Header().Set("Retry-After", "1")
			s.refuse(w, turnstone.Errorf("plain.call", turnstone.KindUnavailable, "the node",
				"serves as many plain requests as it may").WithHint("try again"))
			return
		}
		if err := next(w, r, p); err != nil && r.Context().Err() == nil {
			slog.Debug("a plain request failed", "path", r.URL.Path, "kind", turnstone.KindOf(err))
			s.refuse(w, err)
		}
	}
}

// caller returns who makes a request, if the node's configuration allows it.
func (s *Service) caller(r *http.Request, kind string) (auth.Principal, error) {
	p, known := auth.FromContext(r.Context())
	// the operator's socket: its callers have no token
	if err := s.allowed(r, known && operator(p)); err != nil {
		return auth.Principal{}, err
	}
	if !known {
		token, err := auth.Bearer(r.Header)
		if err == nil && s.o.Verifier == nil {
			err = turnstone.Errorf("plain.call", turnstone.KindUnavailable, "the node",
				"verifies no tokens")
		}
		if err == nil {
			p, err = s.o.Verifier.Verify(r.Context(), token)
		}
		if err != nil {
			return auth.Principal{}, err
		}
	}
	// A page in a browser cannot send these types to another site without asking it first.
	if got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || got != kind {
		return auth.Principal{}, turnstone.Errorf("plain.call", turnstone.KindInvalid,
			"the content type", "is not %s", kind).
			WithHint("add the header Content-Type: " + kind)
	}
	return p, nil
}

// operator reports whether the caller came over the operator's socket.
func operator(p auth.Principal) bool {
	return p.Issuer == "" && p.TokenID == "" && p.Tenant == auth.OperatorTenant
}

// forwarded are headers of requests that a proxy has passed on, as are all that begin with
// X-Forwarded-: their callers may be anywhere. Origin is of a page in a browser, which may be of
// anywhere too.
var forwarded = []string{"Forwarded", "X-Real-Ip", "Via", "Cf-Connecting-Ip", "True-Client-Ip",
	"Fastly-Client-Ip", "Fly-Client-Ip", "X-Client-Ip", "X-Cluster-Client-Ip",
	"X-Original-Forwarded-For", "X-Original-Host", "Origin"}

// passedOn reports whether a request shows that its caller may be elsewhere: by headers, by a name
// of the server that is not this machine's, as a page has it whose name was made to lead here, or
// by HTTP/1.0, which proxies speak that add no headers.
func passedOn(r *http.Request) bool {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(forwarded, name) {
			return true
		}
	}
	return !r.ProtoAtLeast(1, 1)
}

// addressed reports whether a request names this machine by its loopback address.
func addressed(r *http.Request) bool {
	host := (&url.URL{Host: r.Host}).Hostname()
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// allowed decides by the node's configuration and by the connection.
func (s *Service) allowed(r *http.Request, socket bool) error {
	refuse := func(format string, args ...any) error {
		err := turnstone.Errorf("plain.call", turnstone.KindInvalid, "the node", format, args...).
			WithHint("use the turn command, whose channel is encrypted to the node")
		return &api.Status{Code: connect.CodePermissionDenied, Err: err}
	}
	switch s.o.Allow {
	case config.PlaintextOn:
		return nil
	case config.PlaintextLoopback:
	default:
		return refuse("does not serve content in the clear (plaintext = \"off\")")
	}
	if passedOn(r) {
		return refuse("serves content in the clear only to this machine, not through a proxy or " +
			"to a page in a browser (plaintext = \"loopback\")")
	}
	if !socket && r.TLS == nil && !addressed(r) { // TLS has checked the name
		return refuse("serves content in the clear only at localhost or a loopback address " +
			"(plaintext = \"loopback\")")
	}
	if !socket && !loopback(r) {
		return refuse("serves content in the clear only to this machine (plaintext = \"loopback\")")
	}
	return nil
}

// loopback reports whether both ends of the connection are on this machine.
func loopback(r *http.Request) bool {
	near := func(text string) bool {
		a, err := netip.ParseAddrPort(text)
		return err == nil && a.Addr().Unmap().IsLoopback()
	}
	own, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return near(r.RemoteAddr) && own != nil && near(own.String())
}

// An errorBody is the JSON of an error.
type errorBody struct {
	Code    string `json:"code"` // a Connect code
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// statusOf are the HTTP statuses of codes, as the Connect protocol has them.
var statusOf = map[connect.Code]int{
	connect.CodeInvalidArgument:   http.StatusBadRequest,
	connect.CodeNotFound:          http.StatusNotFound,
	connect.CodeUnavailable:       http.StatusServiceUnavailable,
	connect.CodeResourceExhausted: http.StatusTooManyRequests,
	connect.CodeCanceled:          499,
	connect.CodeDeadlineExceeded:  http.StatusGatewayTimeout,
	connect.CodeAborted:           http.StatusConflict,
	connect.CodeUnauthenticated:   http.StatusUnauthorized,
	connect.CodePermissionDenied:  http.StatusForbidden,
}

// refusal returns the error of a token with its code.
func refusal(err error) error {
	switch reason := auth.ReasonOf(err); {
	case reason.Unauthenticated():
		return &api.Status{Code: connect.CodeUnauthenticated, Err: err}
	case reason == auth.Denied:
		return &api.Status{Code: connect.CodePermissionDenied, Err: err}
	}
	return err
}

// refuse answers an error. A fault of the node has no text: its log has one.
func (s *Service) refuse(w http.ResponseWriter, err error) {
	err = s.o.Paths.Error(err)
	sent := api.ToConnect(refusal(err))
	body := errorBody{Code: connect.CodeOf(sent).String(), Message: sent.Error(),
		Hint: turnstone.HintOf(err)}
	var ce *connect.Error
	if errors.As(sent, &ce) {
		body.Message = ce.Message()
	}
	status, known := statusOf[connect.CodeOf(sent)]
	if !known {
		slog.Error("a plain request failed", "error", hostpath.Original(err))
		status, body.Hint = http.StatusInternalServerError, ""
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	answer(w, status, body)
}

func answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"code":"internal"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// read reads a body of at most max bytes.
func read(w http.ResponseWriter, r *http.Request, max int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, max))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, turnstone.Errorf("plain.call", turnstone.KindInvalid, "the body",
			"has more than %d bytes", max).WithHint("use the turn command for more")
	case err != nil:
		return nil, turnstone.NewError("plain.call", turnstone.KindInvalid, "the body", err)
	}
	return b, nil
}
