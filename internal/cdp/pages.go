package cdp

import (
	"encoding/json"
	"net/http"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// Paths of the WebSockets, as in a browser.
const (
	browserPath = "/devtools/browser/"
	pagePath    = "/devtools/page/"
)

// handle is the server's only handler.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer") // an address may contain the token
	path, ok := loopback.Guard{Token: s.opt.Token, Host: s.opt.Host}.Admit(w, r)
	if !ok {
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are allowed", http.StatusMethodNotAllowed)
		return
	}
	if id, found := strings.CutPrefix(path, pagePath); found {
		s.servePage(w, r, turnstone.SandboxID(id))
		return
	}
	switch strings.TrimSuffix(path, "/") {
	case "/json/version":
		s.writeJSON(w, s.version(r))
	case "/json", "/json/list":
		s.serveList(w, r)
	case "/json/protocol":
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		_, _ = w.Write(wire.Descriptor())
	case browserPath + s.browser:
		s.serveBrowser(w, r)
	default:
		http.Error(w, "no such page; the pages are /json/version, /json/list and /json/protocol",
			http.StatusNotFound)
	}
}

// version is the content of /json/version, with the keys of a browser's answer.
func (s *Server) version(r *http.Request) map[string]string {
	return map[string]string{
		"Browser":              "turnstone/" + turnstone.Version,
		"Protocol-Version":     wire.ProtocolVersion,
		"webSocketDebuggerUrl": s.address(r, browserPath+s.browser),
	}
}

// address returns a WebSocket's address, including the token, for the client that sent r: stock
// clients connect to the address in the pages.
func (s *Server) address(r *http.Request, path string) string {
	return "ws://" + r.Host + "/" + s.opt.Token + path
}

// A page is an entry of /json/list.
type page struct {
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	URL         string          `json:"url"`
	State       sandboxes.State `json:"state"`
	// absent: the sandbox does not accept sessions
	Socket string `json:"webSocketDebuggerUrl,omitempty"`
}

func (s *Server) serveList(w http.ResponseWriter, r *http.Request) {
	all, err := s.opt.Backend.List(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	pages := []page{}
	for _, i := range all {
		p := page{ID: string(i.ID), Type: targetType, Title: i.Title(), Description: i.Reason,
			URL: targetURL(i.ID), State: i.State}
		if i.State == sandboxes.StateReady || i.State == sandboxes.StateRunning {
			p.Socket = s.address(r, pagePath+string(i.ID))
		}
		pages = append(pages, p)
	}
	s.writeJSON(w, pages)
}

func (s *Server) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // fails only if the client is gone
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	switch turnstone.KindOf(err) {
	case turnstone.KindNotFound:
		return http.StatusNotFound
	case turnstone.KindDead:
		return http.StatusGone
	case turnstone.KindUnavailable, turnstone.KindExhausted:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
