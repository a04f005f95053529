package router

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"turnstone.dev/turnstone"
)

// A Reviewer says whether the bearer of a token may use a sandbox. An error of kind Denied is about the
// caller; it is ErrUnknown if the token is nobody's, and nothing is told about what exists.
type Reviewer interface {
	Review(ctx context.Context, token, namespace, name string) error
}

// ErrUnknown says that a token is nobody's, or has ended.
var ErrUnknown = errors.New("the token is not valid")

// maxToken bounds a token, which is in a head of at most maxHead.
const maxToken = 16 << 10

// admit answers a request whose caller may not use a sandbox, and reports the others. The token of a
// caller is for the router alone: no sandbox sees it.
func (h *handler) admit(w http.ResponseWriter, r *http.Request, namespace, id string) bool {
	if h.o.Review == nil || h.o.Forwarded && forwarded(r) {
		return true
	}
	token, ok := bearer(r.Header)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="sandboxes"`)
		refuse(w, http.StatusUnauthorized, "Authorization: Bearer TOKEN of the cluster is missing")
		return false
	}
	err := h.o.Review.Review(r.Context(), token, namespace, id)
	switch {
	case err == nil:
		r.Header.Del("Authorization")
		return true
	case errors.Is(err, ErrUnknown):
		w.Header().Set("WWW-Authenticate", `Bearer realm="sandboxes", error="invalid_token"`)
		refuse(w, http.StatusUnauthorized, "the token is not valid")
	case turnstone.KindOf(err) == turnstone.KindDenied:
		refuse(w, http.StatusForbidden, "you may not get the sandbox "+id+" in the namespace "+namespace+
			", and create sandboxes there")
	case r.Context().Err() != nil: // its caller has left
	default:
		h.o.Log.Warn("a caller was not reviewed", "namespace", namespace, "name", id, "error", err)
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "the API server does not say who you are")
	}
	return false
}

// bearer returns the token of a request's one Authorization header.
func bearer(h http.Header) (string, bool) {
	all := h.Values("Authorization")
	if len(all) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(all[0], " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != "" && len(token) <= maxToken
}

// forwarded reports whether a request came through a port-forward of the API server, which has asked
// whether its caller may do that: from and to loopback, not through a proxy, and from no web page.
func forwarded(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if at == nil || !isLoopback(at.String()) || !isLoopback(r.RemoteAddr) {
		return false
	}
	for _, name := range []string{"Origin", "Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Envoy-Peer-Metadata-Id"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	return strings.EqualFold(hostOf(r.Host), "localhost") || isLoopback(r.Host)
}

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}

func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(hostOf(address))
	return err == nil && ip.Unmap().IsLoopback()
}
