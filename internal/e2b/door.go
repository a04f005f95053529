// Package e2b is a door for the clients of E2B: it answers their REST API with calls to the control
// API in the caller's name, and finds the sandbox for requests to a sandbox's daemon and ports. It
// keeps nothing: a restart loses open connections, and what callers hold stays valid.
package e2b

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/e2b/envd"
	"turnstone.dev/turnstone/internal/e2b/pass"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/sandboxes"
)

// A Node is the node in this process.
type Node interface {
	// Name and ChannelKey are those to which clients prove their keys.
	Name() string
	ChannelKey() channel.PublicKey
	// Find returns a sandbox that a client key owns, whatever its state. The error is of kind
	// NotFound if there is none.
	Find(id turnstone.SandboxID, owner func(tenant string) (channel.PublicKey, error)) (Found, error)
	// IDs returns all sandboxes that have not ended.
	IDs(ctx context.Context) []turnstone.SandboxID
}

// A Found is a sandbox of the node.
type Found struct {
	Tenant string
	Info   sandboxes.Info
	Open   func(ctx context.Context) (io.ReadWriteCloser, error)    // to its agent
	Dial   func(ctx context.Context, port uint16) (net.Conn, error) // to a port
	Commit func(ctx context.Context) error                          // its work as a turn
	// Discard ends it without a turn.
	Discard func(ctx context.Context) error

	gone func(ctx context.Context) bool // see Door.gone; nil: it is not
}

// runs reports whether the sandbox answers.
func (f Found) runs() bool { return !f.Info.State.Final() && !f.Info.Paused }

// Options are the parts of a Door.
type Options struct {
	Node Node
	Key  *pass.Key
	// Control is the handler of the control API, for requests whose context has a principal.
	Control http.Handler
	// Arrive admits a request to the API before its token is looked at: it bounds the rate of an
	// address, and so how fast tokens can be guessed. nil: all.
	Arrive func(*http.Request) error
	// Verifier verifies tokens, and Begin admits a call of a principal: it bounds its rate, and ends
	// the context when the token ends.
	Verifier auth.Verifier
	Begin    func(context.Context, auth.Principal) (context.Context, func(), error)
	// Domain is the domain below which PORT-ID names the port of a sandbox, and clients are told: with a
	// port if their URLs need one.
	Domain string
	// Sessions gives each new sandbox a session of its own, unless it names one.
	Sessions bool
	Log      *slog.Logger
}

// A Door answers E2B's clients. It is safe for concurrent use. Close it.
type Door struct {
	o         Options
	sandboxes connectv1.SandboxServiceClient
	sessions  connectv1.SessionServiceClient
	api       http.Handler
	daemon    *envd.Service
	daemonAPI http.Handler
	places    *places
	starting  starts

	ctx  context.Context // of requests to sandboxes
	stop context.CancelFunc
}

// New returns a door.
func New(o Options) *Door {
	d := &Door{o: o, daemon: envd.New(), places: newPlaces()}
	d.sandboxes, d.sessions = d.clients()
	d.api, d.daemonAPI = d.rest(), d.daemon.Handler()
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d
}

// Close ends all requests to sandboxes. Their commands continue.
func (d *Door) Close() error {
	d.stop()
	return d.daemon.Close()
}

// Headers and ports of E2B's clients.
const (
	idHeader      = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	daemonHeader  = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"

	daemonPort      = 49983
	interpreterPort = 49999
)

// ServeHTTP implements http.Handler.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	id, port, toSandbox := d.target(r)
	switch {
	case toSandbox:
		d.serveSandbox(w, r, id, port)
	case r.URL.Path == "/files" && r.URL.Query().Get("signature") != "",
		r.Header.Get(daemonHeader) != "" && r.Header.Get(apiHeader) == "":
		d.serveUnnamed(w, r)
	default:
		d.api.ServeHTTP(w, r)
	}
}

var sandboxForm = regexp.MustCompile(`^sb_[0-9a-v]{18}$`)

// target returns the sandbox and the port that a request is for: by its headers, or by the name of
// the host, PORT-ID.DOMAIN.
func (d *Door) target(r *http.Request) (id turnstone.SandboxID, port uint16, ok bool) {
	if name := r.Header.Get(idHeader); name != "" {
		n, err := strconv.ParseUint(r.Header.Get(portHeader), 10, 16)
		if err != nil {
			n = daemonPort
		}
		if n == daemonPort && strings.HasPrefix(r.URL.Path, "/sandboxes/") {
			return "", 0, false // clients up to 2.27 name the sandbox that they connect to the API too
		}
		return turnstone.SandboxID(name), uint16(n), true
	}
	label, domain, _ := strings.Cut(withoutPort(r.Host), ".")
	number, name, found := strings.Cut(label, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	if !found || err != nil || n == 0 || !strings.EqualFold(domain, withoutPort(d.o.Domain)) {
		return "", 0, false
	}
	return turnstone.SandboxID(strings.ToLower(name)), uint16(n), true
}

func withoutPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// notFound is the answer that clients take for the end of a sandbox.
func notFound(w http.ResponseWriter, id turnstone.SandboxID) {
	envd.Refuse(w, http.StatusBadGateway, envd.NotFound(id))
}

// serveSandbox answers a request to a sandbox. Whether a sandbox exists is told to those alone who
// have its token.
func (d *Door) serveSandbox(w http.ResponseWriter, r *http.Request, id turnstone.SandboxID,
	port uint16) {
	switch {
	case d.hasToken(r, id, port):
	case d.hasLink(r, id, port):
		r.Header.Del("Authorization") // a user's name beside the link would make its path another file
	default:
		envd.Refuse(w, http.StatusUnauthorized, "unauthorized: the request has no valid access token "+
			"of this sandbox")
		return
	}
	f, err := d.find(id)
	if err != nil || !f.runs() {
		notFound(w, id)
		return
	}
	release, ok := d.places.take(id)
	if !ok {
		w.Header().Set("Retry-After", "1")
		envd.Refuse(w, http.StatusTooManyRequests, "the sandbox has as many requests at one time as it may")
		return
	}
	defer release()
	ctx, cancel := d.during(r)
	defer cancel()
	r = r.WithContext(ctx)
	defer func() {
		if cut := recover(); cut != nil {
			cutOff(r)
			panic(cut)
		}
	}()
	switch port {
	case daemonPort:
		d.serveDaemon(w, r, f)
	case interpreterPort:
		d.serveInterpreter(w, r, f)
	default:
		d.servePort(w, r, f, port)
	}
}

// during returns the context of a request to a sandbox, which ends with the door too.
func (d *Door) during(r *http.Request) (context.Context, func()) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(d.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// hasToken reports whether a request has a token of the sandbox for a port.
func (d *Door) hasToken(r *http.Request, id turnstone.SandboxID, port uint16) bool {
	if !sandboxForm.MatchString(string(id)) {
		return false
	}
	if token := r.Header.Get(daemonHeader); token != "" && d.o.Key.IsDaemon(id, token) {
		return true
	}
	return port != daemonPort && d.o.Key.IsTraffic(id, r.Header.Get(trafficHeader))
}

// hasLink reports whether a request is a signed link to a file of the sandbox.
func (d *Door) hasLink(r *http.Request, id turnstone.SandboxID, port uint16) bool {
	link, ok := linkOf(r)
	return ok && port == daemonPort && sandboxForm.MatchString(string(id)) &&
		d.o.Key.IsSigned(id, link, time.Now())
}

// linkOf returns the signed link of a request to a file.
func linkOf(r *http.Request) (pass.Link, bool) {
	if r.URL.Path != "/files" {
		return pass.Link{}, false
	}
	q := r.URL.Query()
	l := pass.Link{Path: q.Get("path"), User: q.Get("username"), Operation: pass.Read,
		Expires: q.Get("signature_expiration"), Signature: q.Get("signature")}
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		l.Operation = pass.Write
	default:
		return l, false
	}
	return l, l.Signature != ""
}

// serveUnnamed answers a request to a daemon that does not name its sandbox, as clients make signed links,
// and those up to 2.27 all requests to a sandbox that they have connected to, if they were told one address
// for all sandboxes: only one sandbox's token fits.
func (d *Door) serveUnnamed(w http.ResponseWriter, r *http.Request) {
	if d.o.Arrive != nil { // to find the sandbox, all of the node are read
		if err := d.o.Arrive(r); err != nil {
			d.refuse(w, err)
			return
		}
	}
	link, signed := linkOf(r)
	token, now := r.Header.Get(daemonHeader), time.Now()
	for _, id := range d.o.Node.IDs(r.Context()) {
		if token != "" && d.o.Key.IsDaemon(id, token) || signed && d.o.Key.IsSigned(id, link, now) {
			d.serveSandbox(w, r, id, daemonPort)
			return
		}
	}
	if token != "" { // perhaps of a sandbox that has ended, whose callers see no other difference
		envd.Refuse(w, http.StatusBadGateway, "The sandbox was not found")
		return
	}
	envd.Refuse(w, http.StatusUnauthorized, "unauthorized: the signature is not valid, or has expired")
}

// find returns a sandbox that was made at the door.
func (d *Door) find(id turnstone.SandboxID) (Found, error) {
	f, err := d.o.Node.Find(id, func(tenant string) (channel.PublicKey, error) {
		pair, err := d.o.Key.Client(tenant)
		return pair.Public, err
	})
	f.gone = func(ctx context.Context) bool { return d.gone(ctx, id) }
	return f, err
}

// serveDaemon answers a request to the daemon of a sandbox.
func (d *Door) serveDaemon(w http.ResponseWriter, r *http.Request, f Found) {
	d.daemonAPI.ServeHTTP(w, r.WithContext(envd.NewContext(r.Context(), boxOf(f))))
}

func boxOf(f Found) *envd.Box {
	return &envd.Box{ID: f.Info.ID, Tenant: f.Tenant, User: f.Info.User, Workdir: f.Info.Workdir, Open: f.Open,
		Gone: f.gone}
}

// How long a sandbox that was lost may keep its work before its end is known, and the time between
// two looks.
const (
	settleTime  = 2 * time.Minute
	settlePause = 50 * time.Millisecond
)

// gone reports whether a sandbox that did not answer has ended, or is paused. One that answers again was
// forked, or its work was kept.
func (d *Door) gone(ctx context.Context, id turnstone.SandboxID) bool {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		f, err := d.find(id)
		if turnstone.KindOf(err) == turnstone.KindNotFound || err == nil && !f.runs() {
			return true
		}
		if err == nil {
			if _, err = envd.Measure(envd.NewContext(ctx, boxOf(f))); err == nil {
				return false
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(settlePause):
		}
	}
}
