// Package loopback protects a server on this machine that shows a person's data to programs of that
// person. A page of any web site can reach such a server. Each request is therefore checked three
// times before the server reveals anything: its Host (against DNS rebinding), its Origin (against web
// pages), and its token.
package loopback

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// A Guard admits requests.
type Guard struct {
	Token string // see NewToken; empty: no request is admitted
	Host  string // an additional host name for requests; may be empty
}

// NewToken returns 256 random bits in hexadecimal.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// Admit checks a request and returns the requested path without the token. A rejected request gets
// the same answer for every path.
func (g Guard) Admit(w http.ResponseWriter, r *http.Request) (path string, ok bool) {
	if !g.Local(w, r) {
		return "", false
	}
	path, ok = g.authorize(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "a token is required: the token that the server printed at its start",
			http.StatusUnauthorized)
		return "", false
	}
	return path, true
}

// Local checks only that a program of this machine made the request, and no page of a web site: for a
// server that has no token. A rejected request has got its answer.
func (g Guard) Local(w http.ResponseWriter, r *http.Request) bool {
	if !g.hostAllowed(r) {
		http.Error(w, "this server does not have that name", http.StatusForbidden)
		return false
	}
	for _, origin := range r.Header.Values("Origin") {
		if origin != "http://"+r.Host {
			http.Error(w, "web pages may not use this server", http.StatusForbidden)
			return false
		}
	}
	return true
}

// hostAllowed accepts the address on which the request arrived, localhost and the loopback
// addresses, with the right port. A name that an attacker points to this machine is not accepted.
func (g Guard) hostAllowed(r *http.Request) bool {
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
	if strings.EqualFold(host, "localhost") || g.Host != "" &&
		strings.EqualFold(host, g.Host) {
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
func (g Guard) authorize(r *http.Request) (path string, ok bool) {
	path = r.URL.Path
	for {
		first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !g.isToken(first) {
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
			ok = g.isToken(t) || ok
		}
	}
	if scheme, t, found := strings.Cut(r.Header.Get("Authorization"), " "); found &&
		strings.EqualFold(scheme, "Bearer") {
		ok = g.isToken(strings.TrimSpace(t)) || ok
	}
	return path, ok
}

func (g Guard) isToken(t string) bool {
	return g.Token != "" && subtle.ConstantTimeCompare([]byte(t), []byte(g.Token)) == 1
}
