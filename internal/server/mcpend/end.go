package mcpend

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/patience"
)

// Path is the path of the endpoint.
const Path = "/mcp"

// Bounds of the endpoint.
const (
	maxBody  = 4 << 20 // of a request
	maxHead  = 32 << 10
	headTime = 10 * time.Second
	// silenceTime is how long a connection without a sandbox is silent before it makes room for another
	// one of its caller.
	silenceTime = 10 * time.Second
	stallTime   = 30 * time.Second       // without a byte of a body, or with none read of an answer
	checkEvery  = 500 * time.Millisecond // whether tokens still hold: a stream ends within a second of a revocation
	idleTime    = 2 * time.Minute
	closeTime   = 2 * time.Minute // for what connections leave
	answerTime  = 3 * time.Second // for the last answers
)

// Options are the parts of an Endpoint.
type Options struct {
	// Arrive admits a request before its token is looked at: it bounds the rate of an address, and so
	// how fast tokens can be guessed. The error says how long to wait. nil: all.
	Arrive   func(*http.Request) error
	Verifier auth.Verifier
	// Open returns the place of a new connection, for a caller with a name of its own. token returns
	// the latest token that was shown with a request of this connection.
	Open func(ctx context.Context, caller string, token func() (string, error)) (mcpdoor.Place, error)
	Idle time.Duration // how long a connection may be silent
	Log  *slog.Logger
}

// An Endpoint answers callers. It is safe for concurrent use.
type Endpoint struct {
	o       Options
	door    *mcpdoor.Door // of connections
	parties *mcpdoor.Door // of calls without one
	handler http.Handler
	callers callers
	silence time.Duration // of a connection that may have to make room
}

// New returns an endpoint.
func New(o Options) *Endpoint {
	e := &Endpoint{o: o, silence: silenceTime}
	e.door = mcpdoor.New(mcpdoor.Options{Open: e.open, Log: o.Log,
		Versions: []string{"2025-11-25", "2025-06-18", "2025-03-26"}})
	e.parties = mcpdoor.New(mcpdoor.Options{Open: e.open, Log: o.Log, Idle: o.Idle,
		Party: func(i *mcpauth.TokenInfo) mcpdoor.Party {
			of := connectionOf(i)
			return mcpdoor.Party{Caller: of.caller, ID: of.party}
		}})
	// the listener's owner says which names it has; a token is always needed
	connections := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return e.door.Server() },
		&mcp.StreamableHTTPOptions{SessionTimeout: o.Idle, MaxRequestBodyBytes: maxBody})
	calls := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return e.parties.Server() },
		&mcp.StreamableHTTPOptions{Stateless: true, MaxRequestBodyBytes: maxBody,
			PropagateRequestCancellation: true})
	admitted := mcpauth.RequireBearerToken(e.verify, &mcpauth.RequireBearerTokenOptions{
		AllowMissingExpiration: true})(e.bounded(plain(connections), plain(calls)))
	mux := http.NewServeMux()
	mux.Handle(Path, http.NewCrossOriginProtection().Handler(e.arrived(admitted)))
	e.handler = patience.Handler(mux, stallTime)
	return e
}

// Handler returns the handler of Path.
func (e *Endpoint) Handler() http.Handler { return e.handler }

// Serve answers callers of l until ctx ends, and closes l. Then running calls are cancelled, and the
// work in sandboxes is kept as turns, until now ends.
func (e *Endpoint) Serve(ctx, now context.Context, l net.Listener) error {
	s := &http.Server{Handler: e.handler, ReadHeaderTimeout: headTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHead, ErrorLog: log.New(discard{}, "", 0)}
	watching, unwatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { e.watch(watching, checkEvery) })
	defer watch.Wait()
	defer unwatch()
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	end, cancel := context.WithTimeout(now, closeTime)
	defer cancel()
	if closing := e.closeDoors(end); closing != nil {
		e.o.Log.Warn("connections of MCP clients did not end", "error", closing)
	}
	last, stop := context.WithTimeout(now, answerTime)
	defer stop()
	_ = s.Shutdown(last)
	_ = s.Close()
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return turnstone.NewError("mcp.serve", turnstone.KindUnavailable, l.Addr().String(), err)
	}
	return nil
}

// closeDoors ends all calls and connections at the same time.
func (e *Endpoint) closeDoors(ctx context.Context) error {
	parties := make(chan error, 1)
	go func() { parties <- e.parties.Close(ctx) }()
	return errors.Join(e.door.Close(ctx), <-parties)
}

// discard takes what net/http logs about callers.
type discard struct{}

// Write implements io.Writer.
func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A TokenInfo has these beside what the protocol's package knows: the token, and the connection that
// the request names, or that it belongs to none.
const (
	tokenKey      = "token"
	connectionKey = "connection"
	partyKey      = "party"
)

// versionHeader has the version of the protocol of a request, except of one that begins a connection.
const versionHeader = "Mcp-Protocol-Version"

// hasConnection reports whether a request is of a version of the protocol that has connections. The
// first one that has none is 2026-07-28.
func hasConnection(r *http.Request) bool { return r.Header.Get(versionHeader) < "2026-07-28" }

// arrived passes on what Options.Arrive admits.
func (e *Endpoint) arrived(next http.Handler) http.Handler {
	if e.o.Arrive == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := e.o.Arrive(r); err != nil {
			w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(api.RetryAfter(err).Seconds())))))
			http.Error(w, "too many requests from this address", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// verify verifies a token, as the gateway does, which verifies it again with each call to the server.
func (e *Endpoint) verify(ctx context.Context, token string, r *http.Request) (*mcpauth.TokenInfo, error) {
	p, err := e.o.Verifier.Verify(ctx, token)
	if turnstone.KindOf(err) == turnstone.KindUnavailable {
		return nil, errors.New("tokens cannot be verified now")
	}
	if err != nil || p.Sandbox != "" {
		return nil, mcpauth.ErrInvalidToken
	}
	extra := map[string]any{tokenKey: token, connectionKey: r.Header.Get(sessionHeader)}
	if !hasConnection(r) {
		sum := sha256.Sum256([]byte(token))
		extra = map[string]any{tokenKey: token, partyKey: hex.EncodeToString(sum[:])}
	}
	i := &mcpauth.TokenInfo{Expiration: p.Expires, UserID: callerOf(p), Extra: extra}
	e.callers.show(connectionOf(i), token)
	return i, nil
}

// connectionOf returns the connection of a verified request.
func connectionOf(i *mcpauth.TokenInfo) connection {
	id, _ := i.Extra[connectionKey].(string)
	party, _ := i.Extra[partyKey].(string)
	return connection{i.UserID, id, party}
}

// callerOf names the caller of a token: those of one subject of an issuer in a tenant are one.
func callerOf(p auth.Principal) string {
	var text strings.Builder
	for _, part := range []string{p.Tenant, p.Issuer, p.Subject} {
		text.WriteString(strconv.Quote(part))
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:])
}

// open opens the place of a new connection.
func (e *Endpoint) open(ctx context.Context, i *mcpauth.TokenInfo) (mcpdoor.Place, error) {
	if i == nil {
		return mcpdoor.Place{}, turnstone.Errorf("mcp.open", turnstone.KindDenied, "the caller",
			"has no token")
	}
	of := connectionOf(i)
	if token, _ := i.Extra[tokenKey].(string); of.party != "" {
		e.callers.add(of, token)
	}
	shown := e.callers.token(of)
	if shown == nil {
		return mcpdoor.Place{}, turnstone.Errorf("mcp.open", turnstone.KindInvalid, "the request",
			"names no connection")
	}
	p, err := e.o.Open(context.WithoutCancel(ctx), i.UserID, func() (string, error) {
		return *shown.Load(), nil
	})
	if err != nil {
		if of.party != "" {
			e.callers.forget(of)
		}
		return p, err
	}
	closing := p.Close
	p.Close = func() error {
		defer e.callers.forget(of)
		if closing == nil {
			return nil
		}
		return closing()
	}
	return p, nil
}
