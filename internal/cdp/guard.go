package cdp

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// admit checks a request and returns the path that it asks for, without the
// token. It answers a request that it refuses, alike for every path.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) (path string, ok bool) {
	if !s.hostAllowed(r) {
		http.Error(w, "this server is not called by that name", http.StatusForbidden)
		return "", false
	}
	for _, origin := range r.Header.Values("Origin") {
		if origin != "http://"+r.Host {
			http.Error(w, "web pages may not use this server", http.StatusForbidden)
			return "", false
		}
	}
	path, ok = s.authorize(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "a token is needed: the one that the server printed when it started", http.StatusUnauthorized)
		return "", false
	}
	return path, true
}

// hostAllowed takes the address that the request came in at, localhost and the
// loopback addresses, with the right port: a name that an attacker has made point
// to this machine is none of them.
func (s *Server) hostAllowed(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return false
	}
	localIP, localPort, err := net.SplitHostPort(local.String())
	if err != nil {
		return false
	}
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = strings.Trim(r.Host, "[]"), "80"
	}
	if port != localPort {
		return false
	}
	if strings.EqualFold(host, "localhost") || s.opt.Host != "" && strings.EqualFold(host, s.opt.Host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	own, err := netip.ParseAddr(localIP)
	return ip.IsLoopback() || err == nil && ip.WithZone("").Unmap() == own.WithZone("").Unmap()
}

// authorize looks for the token in the three places where clients can put it: the
// Authorization header, the query, and the beginning of the path. A client that
// alters each path by adding the token (chrome-remote-interface, alterPath) does so
// to a path that has it already, and one that adds a query to a path finds its
// question mark escaped.
func (s *Server) authorize(r *http.Request) (path string, ok bool) {
	path = r.URL.Path
	for {
		first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !s.isToken(first) {
			break
		}
		path, ok = "/"+rest, true
	}
	queries := []string{r.URL.RawQuery}
	if p, q, found := strings.Cut(path, "?"); found {
		path = p
		queries = append(queries, q)
	}
	for _, q := range queries {
		values, _ := url.ParseQuery(q)
		for _, t := range values["token"] {
			ok = s.isToken(t) || ok
		}
	}
	if scheme, t, found := strings.Cut(r.Header.Get("Authorization"), " "); found && strings.EqualFold(scheme, "Bearer") {
		ok = s.isToken(strings.TrimSpace(t)) || ok
	}
	return path, ok
}

func (s *Server) isToken(t string) bool {
	return s.opt.Token != "" && subtle.ConstantTimeCompare([]byte(t), []byte(s.opt.Token)) == 1
}
