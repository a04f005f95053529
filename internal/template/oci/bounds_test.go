package oci

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// TestEndlessAnswers checks that each answer that is not a blob is read up to a bound, also those
// whose content nobody needs, and that no request ends by its time alone.
func TestEndlessAnswers(t *testing.T) {
	const most = 64 << 20 // what fits into the buffers of a connection, and more
	flood := func(w http.ResponseWriter, sent *atomic.Int64) {
		for part := make([]byte, 1<<20); sent.Load() < 10*most; sent.Add(int64(len(part))) {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}
	isPing := func(r *http.Request) bool { return r.URL.Path == "/v2/" }
	isToken := func(r *http.Request) bool { return r.URL.Path == "/token" }
	for name, c := range map[string]struct {
		is    func(*http.Request) bool
		works bool
	}{
		"greeting": {isPing, true},
		"manifest": {isManifest, false},
		"token":    {isToken, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			var on atomic.Bool
			reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				switch {
				case on.Load() && c.is(r):
					flood(w, &sent)
				case on.Load() && name == "token" && isPing(r):
					w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
				default:
					next.ServeHTTP(w, r)
				}
			}).wrap)
			reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, bash)))
			on.Store(true)
			cl := client(t)
			cl.opts.Stall, cl.opts.Retries = 5*time.Minute, -1
			_, err := unpackAt(t, cl, reg.Host+"/x:1")
			if c.works != (err == nil) {
				t.Errorf("%v", err)
			}
			if n := sent.Load(); n > most {
				t.Errorf("%d bytes were read", n)
			}
		})
	}
}

// TestForeignText checks that a registry's words in errors are short, and without control characters.
func TestForeignText(t *testing.T) {
	long := strings.Repeat("\x1b]52;c;x\a\u009b2J\u202e", 20_000)
	quoted, err := json.Marshal(map[string]string{"refresh": long})
	if err != nil {
		t.Fatal(err)
	}
	challenge := func(text string) fault {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			w.Header().Set("WWW-Authenticate", strings.ReplaceAll(text, "HOST", r.Host))
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	for name, f := range map[string]fault{
		"no realm":    challenge(`Bearer service="` + strings.Repeat("x", 100_000) + `"`),
		"other realm": challenge(`Bearer realm="gopher:` + strings.Repeat("x", 100_000) + `"`),
		"no scheme":   challenge(strings.Repeat("x", 100_000)),
		"no token": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Path == "/token" {
				_, _ = w.Write(quoted)
				_, _ = io.WriteString(w, strings.Repeat(" ", 10))
				return
			}
			challenge(`Bearer realm="http://HOST/token",service="x"`)(w, r, next)
		},
		"digest in a manifest": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isManifest(r) {
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				text, _ := json.Marshal(long)
				_, _ = io.WriteString(w, `{"schemaVersion":2,"config":{"digest":`+string(text)+`}}`)
				return
			}
			next.ServeHTTP(w, r)
		},
		"redirect": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isManifest(r) {
				http.Redirect(w, r, "http://example.org/"+strings.Repeat("x", 100_000), http.StatusFound)
				return
			}
			next.ServeHTTP(w, r)
		},
	} {
		reg := ocitest.Serve(t, f.wrap)
		cl := client(t)
		cl.opts.Retries = -1
		_, err := unpackAt(t, cl, reg.Host+"/x:1")
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if text := err.Error(); len(text) > maxForeign+1000 || strings.ContainsAny(text, "\x1b\a\u009b\u202e\n") {
			t.Errorf("%s: %d bytes: %.300q", name, len(text), text)
		}
	}
}

// TestDocumentsOfTwoKinds checks that a digest stands for one image, whatever the Content-Type says.
func TestDocumentsOfTwoKinds(t *testing.T) {
	reg := ocitest.Serve(t, nil)
	img := ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, bash))
	reg.Push(t, "x:image", img)
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	m["manifests"] = []v1.Descriptor{{MediaType: types.OCIManifestSchema1, Digest: d, Size: int64(len(manifest)),
		Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}}
	both, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	delete(m, "config")
	delete(m, "layers")
	m["mediaType"] = types.OCIManifestSchema1
	index, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for tag, c := range map[string]struct {
		doc  []byte
		kind types.MediaType
	}{
		"both-manifest": {both, types.OCIManifestSchema1},
		"both-index":    {both, types.OCIImageIndex},
		"other-name":    {index, types.OCIImageIndex},
	} {
		reg.Put(t, "x", tag, string(c.kind), c.doc)
		if _, err := unpackAt(t, client(t), reg.Host+"/x:"+tag); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", tag, err)
		}
	}
}

// TestRealmsOfRedirects checks that storage to which a registry redirects gets neither the user's
// credentials nor the registry's token, also if it asks for them, and that a push gives them to no
// other host.
func TestRealmsOfRedirects(t *testing.T) {
	const password, token = "hunter2-correct-horse", "token-of-the-registry"
	var asked, leaks atomic.Int32
	looksFor := func(r *http.Request) {
		asked.Add(1)
		_, got, _ := r.BasicAuth()
		if auth := r.Header.Get("Authorization"); got == password || strings.Contains(auth, token) {
			leaks.Add(1)
		}
	}
	storage := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		looksFor(r)
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="s",scope="all"`)
		w.WriteHeader(http.StatusUnauthorized)
	}).wrap)
	var on atomic.Bool
	reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case !on.Load():
			next.ServeHTTP(w, r)
		case r.URL.Path == "/token":
			_, _ = io.WriteString(w, `{"token":"`+token+`"}`)
		case r.Header.Get("Authorization") != "Bearer "+token:
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="r"`)
			w.WriteHeader(http.StatusUnauthorized)
		case isBlob(r):
			http.Redirect(w, r, storage.URL+r.URL.Path, http.StatusTemporaryRedirect)
		case r.Method == http.MethodPost:
			w.Header().Set("Location", storage.URL+"/upload")
			w.WriteHeader(http.StatusAccepted)
		default:
			next.ServeHTTP(w, r)
		}
	}).wrap)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, bash)))
	on.Store(true)
	cl := client(t)
	cl.opts.Keychain = authn.NewKeychainFromHelper(fixed{password})
	if _, err := unpackAt(t, cl, reg.Host+"/x:1"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("pull: %v", err)
	}
	_, err := cl.Push(t.Context(), parse(t, reg.Host+"/mine:1"), someTemplate(),
		[]LayerFile{layerFile(t, ocitest.Tar(t, bash))})
	if err == nil || strings.Contains(err.Error(), password) || strings.Contains(err.Error(), token) {
		t.Errorf("push: %v", err)
	}
	// The guard has let nothing through. Without it, the library decides what another host gets.
	ref := parse(t, reg.Host+"/x:1")
	trans, err := transport.NewWithContext(t.Context(), ref.repo.Registry,
		&authn.Basic{Username: "me", Password: password}, http.DefaultTransport,
		[]string{ref.repo.Scope(transport.PullScope)})
	if err != nil {
		t.Fatal(err)
	}
	asked.Store(0)
	resp, err := (&http.Client{Transport: trans}).Get(reg.URL + "/v2/x/blobs/sha256:" + strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if asked.Load() == 0 || leaks.Load() != 0 {
		t.Errorf("%d of %d requests gave credentials to another host", leaks.Load(), asked.Load())
	}
}

// fixed is a helper with one password for all registries.
type fixed struct{ password string }

func (f fixed) Get(string) (string, string, error) { return "me", f.password, nil }
