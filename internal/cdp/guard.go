package cdp

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// admit checks a request and returns the requested path without the token. A rejected request gets
// the same answer for every path.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) (path string, ok bool) {
	if !s.hostAllowed(r) {
		http.Error(w, "this server does not have that name", http.StatusForbidden)
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
		http.Error(w, "a token is required: the token that the server printed at its start",
			http.StatusUnauthorized)
		return "", false
	}
	return path, true
}

// hostAllowed accepts the address on which the request arrived, localhost and the loopback
// addresses, with the right port. A name that an attacker points to this machine is not accepted.
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
	if strings.EqualFold(host, "localhost") || s.opt.Host != "" &&
		strings.EqualFold(host, s.opt.Host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	own, err := netip.ParseAddr(localIP)
	return ip.IsLoopback() || err == nil && ip.WithZone("").Unmap() == own.WithZone("").Unmap()
}

// authorize searches for the token in the three places where clients can put it: the Authorization
// header, the query, and the beginning of the path. A client that adds the token to each path
// (chrome-remote-interface, alterPath) also adds it to a path that has the token already, and the
// question mark of a query in a path arrives escaped.
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
	if scheme, t, found := strings.Cut(r.Header.Get("Authorization"), " "); found &&
		strings.EqualFold(scheme, "Bearer") {
		ok = s.isToken(strings.TrimSpace(t)) || ok
	}
	return path, ok
}

func (s *Server) isToken(t string) bool {
	return s.opt.Token != "" && subtle.ConstantTimeCompare([]byte(t), []byte(s.opt.Token)) == 1
}
