package gateway

import (
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
)

const (
	// channelProtocol is the subprotocol of channels, which nodes select: websocket.Protocol.
	channelProtocol = "turnstone.v1"
	// tokenProtocol begins the subprotocol that has the token of a page: a browser cannot set headers
	// on a WebSocket. The page asks for channelProtocol, too.
	tokenProtocol = "turnstone.token."
)

// answerTime is how long a browser keeps the answer about an origin, in seconds.
const answerTime = "600"

// page takes the token of a page out of the subprotocols of an upgrade, before anything else sees the
// request, and makes it the request's authorization. Pages of other origins than Origins are refused.
func (g *Gateway) page(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, found := cutTokens(r.Header)
		if len(found) > 0 && !slices.Contains(g.o.Origins, r.Header.Get("Origin")) {
			g.refuser.refuse(w, r, &api.Status{Code: connect.CodePermissionDenied,
				Err: turnstone.Errorf("gateway.page", turnstone.KindDenied, "the page",
					"is of an origin that this server does not allow").
					WithHint("set listen.origins of the server to the page's origin")})
			return
		}
		if found != nil {
			r.Header.Del("Sec-Websocket-Protocol")
			if len(asked) > 0 {
				r.Header.Set("Sec-Websocket-Protocol", strings.Join(asked, ", "))
			}
		}
		for _, token := range found { // two of them, or one beside a header, are no authorization
			r.Header.Add("Authorization", "Bearer "+token)
		}
		next.ServeHTTP(w, r)
	})
}

// cutTokens returns the subprotocols that a client asks for, and the tokens that were among them.
func cutTokens(h http.Header) (asked, tokens []string) {
	for _, field := range h["Sec-Websocket-Protocol"] {
		for one := range strings.SplitSeq(field, ",") {
			one = strings.TrimSpace(one)
			if token, is := strings.CutPrefix(one, tokenProtocol); is {
				tokens = append(tokens, token)
			} else if one != "" {
				asked = append(asked, one)
			}
		}
	}
	return asked, tokens
}

// crossOrigin lets pages of Origins make calls with a token, and read the answers. Of all others a
// browser keeps the answers from its page.
func (g *Gateway) crossOrigin(next http.Handler) http.Handler {
	if len(g.o.Origins) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin, h := r.Header.Get("Origin"), w.Header()
		h.Add("Vary", "Origin")
		allowed := origin != "" && slices.Contains(g.o.Origins, origin)
		if allowed {
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", "Retry-After, Connect-Content-Encoding")
		}
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		if allowed {
			h.Set("Access-Control-Allow-Methods", "POST, GET")
			h.Set("Access-Control-Allow-Headers",
				"Authorization, Content-Type, Connect-Protocol-Version, Connect-Timeout-Ms")
			h.Set("Access-Control-Max-Age", answerTime)
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// subprotocols are those of channels.
var subprotocols = []string{channelProtocol}
