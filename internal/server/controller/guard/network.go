package guard

import (
	"context"
	"net"
	"net/http"
	"strconv"
)

type networkKey struct{}

// FromNetwork marks the requests of roles that come over TCP. The address of such a node is on the
// network: by another one, its certificate would open sockets of this machine's user, or stand for
// the node of this process.
func FromNetwork(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), networkKey{}, true)))
	})
}

// IsFromNetwork reports whether a request has that mark.
func IsFromNetwork(ctx context.Context) bool { return ctx.Value(networkKey{}) != nil }

// IsNetwork reports whether an address is HOST:PORT.
func IsNetwork(address string) bool {
	host, port, err := net.SplitHostPort(address)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && host != "" && host != "unix" && n != 0
}
