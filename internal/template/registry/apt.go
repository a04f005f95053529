package registry

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

var byHash = lazyregexp.New(`/by-hash/SHA256/([0-9a-f]{64})$`)

// serveProxy fetches from an archive of packages. apt also verifies the cached files by the
// archive's signatures.
func (s *Server) serveProxy(w http.ResponseWriter, r *http.Request) {
	user, password, ok := proxyPassword(r)
	if !ok || user != "turn" || !s.knows(password) {
		w.Header().Set("Proxy-Authenticate", `Basic realm="turn"`)
		http.Error(w, "no such place", http.StatusProxyAuthRequired)
		return
	}
	if !s.archive(r.URL) {
		http.Error(w, "this is not one of the host's archives of Debian packages",
			http.StatusForbidden)
		return
	}
	address := r.URL.String()
	if hash := byHash.FindStringSubmatch(r.URL.Path); hash != nil {
		d := want("sha256:" + hash[1])
		s.serveCached(w, r, address, d.key(), d)
		return
	}
	if strings.HasSuffix(r.URL.Path, ".deb") && strings.Contains(path.Clean(r.URL.Path), "/pool/") {
		s.serveDeb(w, r, address)
		return
	}
	s.pass(w, r, address)
}

func proxyPassword(r *http.Request) (user, password string, ok bool) {
	text, ok := strings.CutPrefix(r.Header.Get("Proxy-Authorization"), "Basic ")
	if !ok {
		return "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(b), ":")
}

// archive reports whether u is in one of the archives.
func (s *Server) archive(u *url.URL) bool {
	clean := path.Clean("/" + u.Path)
	for _, a := range s.apt {
		if u.Scheme == a.Scheme && u.Host == a.Host && strings.HasPrefix(clean+"/",
			strings.TrimRight(a.Path, "/")+"/") && u.User == nil && clean == u.Path {
			return true
		}
	}
	return false
}

// serveDeb serves a package, which never changes under its name. A second request in one build
// means that apt rejected the first response: the package is then fetched again.
func (s *Server) serveDeb(w http.ResponseWriter, r *http.Request, address string) {
	key := "deb-" + turnstone.DigestBytes([]byte(address)).Hex()
	s.mu.Lock()
	again := s.debs[address]
	s.debs[address] = true
	s.mu.Unlock()
	if again {
		s.pass(w, r, address)
		return
	}
	if kept, d, ok := s.noted(key); ok {
		s.send(w, r, path.Base(r.URL.Path), kept, d)
		return
	}
	at, err := s.file(r.Context(), address, key, "")
	if err != nil {
		s.fail(w, "package "+path.Base(r.URL.Path), err)
		return
	}
	s.send(w, r, path.Base(r.URL.Path), s.note(at, key), "")
}

func (s *Server) serveCached(w http.ResponseWriter, r *http.Request, address, key string, d want) {
	at, err := s.file(r.Context(), address, key, d)
	if err != nil {
		s.fail(w, path.Base(r.URL.Path), err)
		return
	}
	s.send(w, r, path.Base(r.URL.Path), at, d)
}

// pass forwards a request, and caches nothing.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, address string) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, address, nil)
	if err != nil {
		http.Error(w, "no such place", http.StatusBadRequest)
		return
	}
	for _, h := range []string{"If-Modified-Since", "Range", "If-Range", "Accept"} {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.fail(w, path.Base(r.URL.Path), s.explain(address, err))
		return
	}
	defer res.Body.Close()
	if res.StatusCode >= 500 {
		s.fail(w, path.Base(r.URL.Path), s.explain(address, &errStatus{res.StatusCode, res.Status}))
		return
	}
	for _, h := range []string{"Content-Type", "Content-Length", "Content-Range", "Last-Modified",
		"ETag", "Accept-Ranges"} {
		if v := res.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(res.StatusCode)
	p := &progressReader{s: s, r: res.Body, name: path.Base(r.URL.Path), size: res.ContentLength,
		alive: func() {}}
	if _, err := io.Copy(w, io.LimitReader(p, maxFile)); err != nil {
		fmt.Fprintf(s.opts.Log, "registry: %s: %v\n", place(address), withoutAddress(err))
	}
}
