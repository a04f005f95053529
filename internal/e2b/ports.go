package e2b

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/internal/duplex"
	"turnstone.dev/turnstone/internal/e2b/envd"
)

// servePort passes a request on to a port of a sandbox.
func (d *Door) servePort(w http.ResponseWriter, r *http.Request, f Found, port uint16) {
	t := &http.Transport{DisableCompression: true, DisableKeepAlives: true,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return f.Dial(ctx, port) }}
	defer t.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Transport: t,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "sandbox"
			p.Out.Host = p.In.Host
			for _, name := range []string{daemonHeader, trafficHeader, idHeader, portHeader, apiHeader} {
				p.Out.Header.Del(name) // the guest is not trusted with them
			}
		},
		ModifyResponse: func(r *http.Response) error {
			hostOnly(r.Header)
			for _, name := range beyond {
				r.Header.Del(name)
			}
			return nil
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, context.Canceled) {
				return
			}
			if f.gone != nil && f.gone(r.Context()) {
				notFound(w, f.Info.ID)
				return
			}
			envd.Refuse(w, http.StatusBadGateway, "The sandbox is running but port is not open: "+
				strconv.Itoa(int(port)))
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	defer func() { // clients whose answer is cut off ask at once whether the sandbox runs
		if cut := recover(); cut != nil {
			if f.gone != nil {
				f.gone(r.Context())
			}
			panic(cut)
		}
	}()
	duplex.Handler(proxy).ServeHTTP(&finalWriter{ResponseWriter: w, own: w.Header().Clone()}, r)
}

// beyond are fields of an answer that speak for more than the answer: for the host's other ports, for
// what a browser keeps of the whole domain, or for later connections. A guest speaks for its port.
var beyond = []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins",
	"Expect-Ct", "Nel", "Report-To", "Reporting-Endpoints", "Proxy-Status"}

// A finalWriter drops informational answers: nobody has looked at the fields of a guest's, and
// httputil.ReverseProxy removes the door's own fields with them.
type finalWriter struct {
	http.ResponseWriter
	own http.Header
}

// Unwrap is for http.ResponseController.
func (w *finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *finalWriter) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	for name, values := range w.own {
		if len(w.Header()[name]) == 0 {
			w.Header()[name] = values
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// hostOnly makes the cookies of a guest those of its own host: the domain of the door has the sandboxes
// of other tenants too.
func hostOnly(h http.Header) {
	for i, cookie := range h["Set-Cookie"] {
		parts := strings.Split(cookie, ";")
		kept := slices.DeleteFunc(parts[1:], func(attribute string) bool {
			name, _, _ := strings.Cut(attribute, "=")
			return strings.EqualFold(strings.TrimSpace(name), "Domain")
		})
		h["Set-Cookie"][i] = strings.Join(append(parts[:1:1], kept...), ";")
	}
}
