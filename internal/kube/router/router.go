// Package router answers what agent-sandbox's clients ask of a sandbox: HTTP to a port of it, and,
// where nothing listens there, the calls of agent-sandbox's runtime as commands of the wire.
//
// With a Reviewer it answers only whom the cluster lets use the sandbox. Without one it authenticates
// nobody, as agent-sandbox's own router does by default: who reaches it reaches all sandboxes of the
// cluster. Headers, bodies and what sandboxes answer are untrusted.
package router

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strconv"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/duplex"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/wire"
)

// A Server finds sandboxes, and opens channels to them.
type Server interface {
	// List returns the sandboxes of objects: see agents.Server.
	List(ctx context.Context, namespace, by string) ([]*v1.Sandbox, error)
	Open(ctx context.Context, namespace, id string) (io.ReadWriteCloser, error)
}

// Options are the parts of a router.
type Options struct {
	Server  Server
	Cluster string
	Log     *slog.Logger
	// UID returns the UID of a Sandbox; the error is of kind NotFound if there is none. The server is asked
	// about no other, because each namespace costs it a token. nil: the server is asked about all.
	UID func(ctx context.Context, namespace, name string) (string, error)
	// Network says that other machines reach the router. Without it only programs of this machine are
	// answered, and no page of a web site that has made a browser find it by a name.
	Network bool
	// Review says which callers may use a sandbox; nil: all may.
	Review Reviewer
	// Forwarded answers callers who come through a port-forward without a review: the API server has asked
	// whether they may do that. A proxy in the pod must not make others look like them.
	Forwarded bool
}

// The headers by which a request names a sandbox: the name of its Sandbox, the namespace, the port.
const (
	idHeader        = "X-Sandbox-Id"
	namespaceHeader = "X-Sandbox-Namespace"
	portHeader      = "X-Sandbox-Port"

	usualNamespace = "default"
	usualPort      = 8888
)

// name is a name of Kubernetes.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// A handler is safe for concurrent use.
type handler struct {
	o        Options
	runtime  http.Handler
	requests shares
	kept     shares

	rateWait, awayWait time.Duration

	mu    sync.Mutex
	known map[[2]string]found
}

// A found is the sandbox of an object.
type found struct {
	id, workdir string
	at          time.Time
}

const (
	// foundFor is how long a sandbox is believed to be the one of its object.
	foundFor = 5 * time.Second
	// maxFound bounds what is remembered.
	maxFound = 10_000
)

// New returns a handler.
func New(o Options) http.Handler {
	h := &handler{o: o, known: make(map[[2]string]found), requests: shares{most: maxRequests},
		kept: shares{most: maxKept}, rateWait: rateWait, awayWait: awayWait}
	h.runtime = runtime()
	if o.Network {
		return duplex.Handler(h)
	}
	return duplex.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if (loopback.Guard{}).Local(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" && r.Header.Get(idHeader) == "" {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	id, namespace, port, err := target(r.Header)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if !h.admit(w, r, namespace, id) {
		return
	}
	if !h.requests.take(namespace, 1) {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "the namespace "+namespace+" has as many requests at one time as it may")
		return
	}
	defer h.requests.leave(namespace, 1)
	f, c, err := h.open(r.Context(), namespace, id)
	switch {
	case err == nil:
		defer func() { _ = c.Close() }()
		h.serve(w, r, namespace, f, c, port)
	case r.Context().Err() != nil: // its caller has left
	case turnstone.KindOf(err) == turnstone.KindNotFound:
		refuse(w, http.StatusNotFound, "there is no sandbox "+id+" in the namespace "+namespace+", or it is not ready")
	default:
		h.o.Log.Warn("a sandbox was not reached", "namespace", namespace, "name", id, "error", err)
		failed(w, err, "the sandbox does not answer")
	}
}

// open finds the sandbox of an object, and opens a channel to it. The caller closes it.
func (h *handler) open(ctx context.Context, namespace, object string) (f found, c *wire.Client, err error) {
	for again := false; ; again = true {
		if err := h.patiently(ctx, func() (err error) { f, err = h.find(ctx, namespace, object); return err }); err != nil {
			return f, nil, err
		}
		err = h.patiently(ctx, func() error {
			stream, err := h.o.Server.Open(ctx, namespace, f.id)
			if err == nil {
				c = wire.NewClient(stream)
			}
			return err
		})
		if turnstone.KindOf(err) != turnstone.KindNotFound || again {
			return f, c, err
		}
		h.forget(namespace, object) // the object may have another one since
	}
}

// forget forgets the sandbox of an object.
func (h *handler) forget(namespace, object string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.known, [2]string{namespace, object})
}

// target returns whom a request is for.
func target(h http.Header) (id, namespace string, port uint16, err error) {
	for _, name := range []string{idHeader, namespaceHeader, portHeader} {
		if len(h.Values(name)) > 1 { // what is in front may have judged the other one
			return "", "", 0, errors.New(name + " is there twice")
		}
	}
	id, namespace, port = h.Get(idHeader), h.Get(namespaceHeader), usualPort
	if namespace == "" {
		namespace = usualNamespace
	}
	if text := h.Get(portHeader); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return "", "", 0, errors.New(portHeader + " is not a port")
		}
		port = uint16(n)
	}
	if !name.MatchString(id) || !name.MatchString(namespace) {
		return "", "", 0, errors.New(idHeader + " or " + namespaceHeader + " is missing or malformed")
	}
	return id, namespace, port, nil
}

// find returns the ID of an object's sandbox.
func (h *handler) find(ctx context.Context, namespace, object string) (found, error) {
	k := [2]string{namespace, object}
	h.mu.Lock()
	f, ok := h.known[k]
	h.mu.Unlock()
	if ok && time.Since(f.at) < foundFor {
		return f, nil
	}
	of := []string{namespace, object}
	if h.o.UID != nil {
		uid, err := h.o.UID(ctx, namespace, object)
		if err != nil {
			return found{}, err
		}
		of = append(of, uid)
	}
	all, err := h.o.Server.List(ctx, namespace, agents.Managed(h.o.Cluster, of...))
	if err != nil {
		return found{}, err
	}
	var last *v1.Sandbox
	for _, b := range all {
		up := b.State == v1.SandboxState_SANDBOX_STATE_READY || b.State == v1.SandboxState_SANDBOX_STATE_RUNNING
		if up && !b.Paused && (last == nil || b.Created.AsTime().After(last.Created.AsTime())) {
			last = b
		}
	}
	if last == nil {
		return found{}, turnstone.Errorf("router.find", turnstone.KindNotFound, "sandbox "+object, "is not there")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.known) >= maxFound {
		clear(h.known)
	}
	f = found{last.SandboxId, last.Workdir, time.Now()}
	h.known[k] = f
	return f, nil
}

// errUsed says that the one connection of a request was used.
var errUsed = errors.New("the connection was used")

// serve passes a request on to the port, or answers it if nothing listens there: in the same channel.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, namespace string, f found, c *wire.Client, port uint16) {
	conn, err := c.ConnectPort(r.Context(), wire.SandboxConnectParams{Port: int64(port)})
	if kind := turnstone.KindOf(err); kind == turnstone.KindUnavailable || kind == turnstone.KindNotFound {
		h.runtime.ServeHTTP(w, r.WithContext(newContext(r.Context(), box{c, f.workdir, namespace, &h.kept})))
		return
	}
	if err != nil {
		h.o.Log.Warn("a sandbox does not answer", "namespace", namespace, "sandbox", f.id, "error", err)
		failed(w, err, "the sandbox does not answer")
		return
	}
	used := false
	t := &http.Transport{DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if used {
				return nil, errUsed
			}
			used = true
			return conn, nil
		}}
	defer t.CloseIdleConnections()
	defer func() { _ = conn.Close() }()
	proxy := &httputil.ReverseProxy{Transport: t, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "sandbox"
			p.Out.Host = p.In.Host
			for _, name := range []string{idHeader, namespaceHeader, portHeader} {
				p.Out.Header.Del(name)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				refuse(w, http.StatusBadGateway, "the sandbox's server has ended the connection")
			}
		}}
	proxy.ServeHTTP(w, r)
}
