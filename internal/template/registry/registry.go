// Package registry serves a template's build instead of the package registries: a small server on
// this host that fetches from them as the host does. It caches files, verifies them by the
// registries' own digests, records the files that a build used, and with a lock offers only the
// files in the lock. It speaks pip's index (PEP 503 and 691), npm's registry, and HTTP as a proxy
// for apt.
//
// Its clients are guests: it serves clients that know its token, reads no request bodies, and
// connects only to the registries in its options.
package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"turnstone.dev/turnstone"
)

// The registries, unless Options name others.
const (
	defaultPip = "https://pypi.org/simple"
	defaultNpm = "https://registry.npmjs.org"
)

// Options configure a Server. Cache is required.
type Options struct {
	Cache string // folder of downloads; created if missing
	Limit int64  // size limit of the cache after Close, in bytes; default DefaultLimit
	Most  int64  // limit for the downloads of one build, in bytes; default defaultMost

	Pip string   // address of an index, as in pip's --index-url; default defaultPip
	Npm string   // address of a registry; default defaultNpm
	Apt []string // addresses of archives for the proxy, such as http://deb.debian.org/debian

	Locked bool // offer only the files below
	Pips   []PipFile
	Npms   []NpmPackage

	Log io.Writer // a line for each download and each failure; may be nil
	// Fetched reports downloads in progress, several times a second; may be nil. It must not block.
	Fetched func(Fetch)

	Transport http.RoundTripper // default: a separate one, with the host's proxies
	Idle      time.Duration     // time without a byte after which a fetch fails; default a minute
	Retries   int               // after the first attempt; default 3; negative: none
	Backoff   time.Duration     // before the first retry, doubled for each; default a second
}

// A Fetch is a download from a registry.
type Fetch struct {
	Name string // the file's name
	Done int64  // bytes
	Size int64  // bytes; -1 if unknown
	Rate int64  // bytes per second, of all current downloads
}

// A Server answers a build. It is safe for concurrent use; Close it.
type Server struct {
	opts    Options
	pip     *url.URL
	npm     *url.URL
	apt     []*url.URL
	token   string
	client  *http.Client
	http    *http.Server
	slots   chan struct{} // of concurrent downloads
	indexes chan struct{} // of concurrent reads of indexes, which are kept in memory
	taken   atomic.Int64  // bytes that were fetched into the cache
	rate    meter
	ctx     context.Context // ends with Close
	end     context.CancelFunc

	mu      sync.Mutex
	files   map[string]pipUpstream // by id: files in the index
	debs    map[string]bool        // requested addresses
	flights singleflight.Group     // of the cache, by file
	pips    map[PipFile]bool
	npms    map[string]NpmPackage
	docs    map[string]*npmDocument // requested packages, without fields that only npm needs
	missing []string
	problem error
}

// parallel is the number of concurrent downloads, and readers the number of concurrent reads of
// indexes.
const (
	parallel = 16
	readers  = 3
)

// New returns a server that does not listen yet.
func New(o Options) (*Server, error) {
	o.Pip, o.Npm = cmp.Or(o.Pip, defaultPip), cmp.Or(o.Npm, defaultNpm)
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	if o.Most == 0 {
		o.Most = defaultMost
	}
	if o.Idle == 0 {
		o.Idle = time.Minute
	}
	if o.Retries == 0 {
		o.Retries = 3
	}
	if o.Backoff == 0 {
		o.Backoff = time.Second
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	s := &Server{opts: o, token: strings.ToLower(rand.Text()), slots: make(chan struct{}, parallel),
		indexes: make(chan struct{}, readers), docs: map[string]*npmDocument{},
		files: map[string]pipUpstream{}, debs: map[string]bool{},
		pips: map[PipFile]bool{}, npms: map[string]NpmPackage{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	var err error
	if s.pip, err = upstream("PIP_INDEX_URL", o.Pip); err != nil {
		return nil, err
	}
	if s.npm, err = upstream("npm_config_registry", o.Npm); err != nil {
		return nil, err
	}
	for _, a := range o.Apt {
		u, err := upstream("TURN_DEBIAN_MIRROR", a)
		if err != nil {
			return nil, err
		}
		s.apt = append(s.apt, u)
	}
	if err := os.MkdirAll(o.Cache, 0o700); err != nil {
		return nil, storeError(o.Cache, err)
	}
	s.client = &http.Client{Transport: o.Transport}
	if o.Transport == nil {
		s.client.Transport = newGuard(o.Idle, append([]*url.URL{s.pip, s.npm}, s.apt...)...)
	}
	return s, nil
}

// upstream checks the address of a registry.
func upstream(what, address string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(address, "/"))
	if err == nil && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		err = errors.New("want an address that begins with http:// or https://")
	}
	if err != nil {
		return nil, turnstone.NewError("registry.new", turnstone.KindInvalid, what,
			withoutAddress(err)).WithHint("set " + what + " to an address as " + defaultPip)
	}
	return u, nil
}

// withoutAddress removes the address from an error of net/url or net/http, because it may contain a
// password.
func withoutAddress(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Listen starts to serve on a port of this host's loopback and returns its address.
func (s *Server) Listen() (net.Addr, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, turnstone.NewError("registry.listen", turnstone.KindUnavailable, "127.0.0.1",
			err)
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 64 << 10}
	go func() { _ = s.http.Serve(l) }() // ends with Close
	return l.Addr(), nil
}

// Close stops serving and fetching, and trims the cache to its limit.
func (s *Server) Close() error {
	s.end()
	if s.http != nil {
		_ = s.http.Close()
	}
	s.client.CloseIdleConnections()
	_, err := Trim(s.opts.Cache, s.opts.Limit, 0, false)
	return err
}

// PipIndex returns the address for pip's --index-url, for clients that reach the server at host.
func (s *Server) PipIndex(host string) string {
	return "http://" + host + "/" + s.token + "/pip/simple/"
}

// NpmRegistry returns the address for npm's --registry.
func (s *Server) NpmRegistry(host string) string {
	return "http://" + host + "/" +
		s.token + "/npm/"
}

// Proxy returns the address for apt's Acquire::http::Proxy.
func (s *Server) Proxy(host string) string { return "http://turn:" + s.token + "@" + host }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.IsAbs() {
		s.serveProxy(w, r)
		return
	}
	token, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if !s.knows(token) {
		http.Error(w, "no such place", http.StatusNotFound)
		return
	}
	kind, rest, _ := strings.Cut(rest, "/")
	switch kind {
	case "pip":
		s.servePip(w, r, rest)
	case "npm":
		s.serveNpm(w, r, rest)
	default:
		http.Error(w, "no such place", http.StatusNotFound)
	}
}

func (s *Server) knows(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// Pips returns the files that pip received, sorted.
func (s *Server) Pips() []PipFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []PipFile
	for f := range s.pips {
		all = append(all, f)
	}
	slices.SortFunc(all,
		func(a, b PipFile) int { return strings.Compare(a.Name+"\n"+a.File, b.Name+"\n"+b.File) })
	return all
}

// Npms returns the packages that npm received, sorted.
func (s *Server) Npms() []NpmPackage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []NpmPackage
	for _, p := range s.npms {
		all = append(all, p)
	}
	slices.SortFunc(all,
		func(a, b NpmPackage) int {
			return strings.Compare(a.Name+"\n"+a.Version,
				b.Name+"\n"+b.Version)
		})
	return all
}

// Problem returns the reason why a download failed: the first failure of a registry, otherwise a
// missing package. It is nil without a failure, and explains a failed step.
func (s *Server) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem != nil || len(s.missing) == 0 {
		return s.problem
	}
	hint := "check the name; the registries are set with PIP_INDEX_URL and npm_config_registry"
	kind := turnstone.KindInvalid
	if s.opts.Locked {
		hint, kind = "update template.lock, which does not contain it, with turn template build "+
			"--lock", turnstone.KindIntegrity
	}
	return turnstone.Errorf("registry.find", kind,
		strings.Join(s.missing[:min(len(s.missing), 5)], ", "),
		"there is no such package").WithHint(hint)
}

// lacks records a missing package.
func (s *Server) lacks(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.missing) < 100 && !slices.Contains(s.missing, what) {
		s.missing = append(s.missing, what)
	}
}

// fail answers a request with an error, and records it.
func (s *Server) fail(w http.ResponseWriter, what string, err error) {
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		s.lacks(what)
		http.Error(w, "there is no "+what, http.StatusNotFound)
		return
	}
	s.mu.Lock()
	if s.problem == nil && !errors.Is(err, context.Canceled) {
		s.problem = err
	}
	s.mu.Unlock()
	fmt.Fprintf(s.opts.Log, "registry: %v\n", err)
	http.Error(w, err.Error(), http.StatusBadGateway)
}
