package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// A fault is in front of a registry and answers some requests itself.
type fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

func (f fault) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f(w, r, next) })
}

func isBlob(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:")
}
func isManifest(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/")
}

// random returns n bytes of incompressible content.
func random(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// TestFaults checks the reports of a registry's faults, and that nothing of their data is kept.
func TestFaults(t *testing.T) {
	big := ocitest.File("big", random(300_000))
	for _, c := range []struct {
		name  string
		fault fault
		kind  turnstone.Kind // "": it succeeds nevertheless
		says  string
	}{
		{"500 for ever", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			http.Error(w, "no", http.StatusInternalServerError)
		}, turnstone.KindUnavailable, "answers 500"},
		{"500 for blobs", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				http.Error(w, "no", http.StatusBadGateway)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindUnavailable, "answers 502"},
		{"500 at first", every(3,
			func(w http.ResponseWriter) { http.Error(w, "no", http.StatusServiceUnavailable) }), "",
			""},
		{"no login", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"go away"}]}`,
				http.StatusUnauthorized)
		}, turnstone.KindNotFound, "answers 401"},
		{"not there", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isManifest(r) {
				http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"none"}]}`,
					http.StatusNotFound)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindNotFound, "answers 404"},
		{"too many requests", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}`,
				http.StatusTooManyRequests)
		}, turnstone.KindExhausted, "answers 429"},
		{"a web page", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			_, _ = io.WriteString(w, "<html>sign in to the hotel's network</html>")
		}, turnstone.KindInvalid, "which is not an image"},
		{"wrong blob", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				b := rec.Body.Bytes()
				b[len(b)/2] ^= 1
				_, _ = w.Write(b)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindIntegrity, "came with the digest"},
		{"blob that is too long", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(w, r)
			if isBlob(r) {
				_, _ = io.WriteString(w, strings.Repeat("more", 100))
			}
		}, "", ""}, // HTTP truncates it: its length was announced
		{"endless blob", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				for range 10_000 {
					if _, err := w.Write(make([]byte, 100_000)); err != nil {
						return
					}
				}
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindIntegrity, ""},
		{"truncated blob", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				w.Header().Set("Content-Length", fmt.Sprint(rec.Body.Len()))
				_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindUnavailable, "unexpected EOF"},
		{"silence", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				w.Header().Set("Content-Length", "100000")
				_, _ = io.WriteString(w, "x")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindTimeout, "sends nothing"},
		{"drops", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				for {
					if _, err := io.WriteString(w, "x"); err != nil {
						return
					}
					w.(http.Flusher).Flush()
					select {
					case <-r.Context().Done():
						return
					case <-time.After(20 * time.Millisecond): //wait: the loop sends until it is cut off
					}
				}
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindTimeout, "next to nothing"},
		{"no answer", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Minute):
			}
		}, turnstone.KindTimeout, ""},
		{"a manifest of 100 MB", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isManifest(r) {
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				for range 1000 {
					if _, err := w.Write(bytes.Repeat([]byte(" "), 100_000)); err != nil {
						return
					}
				}
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindInvalid, ""},
		{"leads to another port here", redirect("http://127.0.0.1:1/x"), turnstone.KindInvalid,
			"127.0.0.1:1"},
		{"leads to localhost", redirect("https://localhost/x"), turnstone.KindInvalid,
			"this machine"},
		{"leads to the cloud's metadata", redirect("https://169.254.169.254/latest"),
			turnstone.KindInvalid, "169.254.169.254"},
		{"leads out without TLS", redirect("http://example.org/x"), turnstone.KindInvalid,
			"without TLS"},
		{"leads to a file", redirect("file:///etc/passwd"), turnstone.KindInvalid, ""},
		{"leads in circles", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if isBlob(r) {
				http.Redirect(w, r, r.URL.Path, http.StatusFound)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindUnavailable, "circles"},
		{"tokens from the cloud's metadata",
			func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				w.Header().Set("WWW-Authenticate",
					`Bearer realm="http://169.254.169.254/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			}, turnstone.KindUnavailable, "169.254.169.254"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var on atomic.Bool
			reg := ocitest.Serve(t,
				fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if on.Load() {
						c.fault(w, r, next)
					} else {
						next.ServeHTTP(w, r)
					}
				}).wrap)
			reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, bash, big)))
			on.Store(true)
			cl := client(t)
			if c.kind == turnstone.KindTimeout {
				cl.opts.Stall = 300 * time.Millisecond
			} else {
				cl.opts.Stall = 5 * time.Minute // a busy machine is not a silent registry
			}
			_, err := unpackAt(t, cl, reg.Host+"/x:1")
			if c.kind == "" {
				if err != nil {
					t.Fatalf("%v; %s", err, turnstone.HintOf(err))
				}
				return
			}
			if turnstone.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) ||
				turnstone.HintOf(err) == "" && c.kind != turnstone.KindInvalid {
				t.Errorf("kind %s, want %s: %v; hint %q", turnstone.KindOf(err), c.kind, err,
					turnstone.HintOf(err))
			}
			if c.kind == turnstone.KindIntegrity {
				nothingKept(t, cl)
			}
		})
	}
}

// nothingKept checks that all kept files match their digests.
func nothingKept(t *testing.T, c *Client) {
	t.Helper()
	for _, sub := range []string{"blobs", "partial"} {
		entries, err := os.ReadDir(c.path(sub))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(c.path(sub, e.Name()))
			if err != nil || turnstone.DigestBytes(b).Hex() != e.Name() {
				t.Errorf("%s/%s was kept with %d bytes of something else, %v", sub, e.Name(),
					len(b), err)
			}
		}
	}
}

// every answers every nth request correctly, and all others wrongly.
func every(n int32, wrong func(http.ResponseWriter)) fault {
	var seen atomic.Int32
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if seen.Add(1)%n != 0 {
			wrong(w)
			return
		}
		next.ServeHTTP(w, r)
	}
}

func redirect(to string) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r) {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// TestOthers checks images that sandboxes cannot use.
func TestOthers(t *testing.T) {
	reg := ocitest.Serve(t, nil)
	layer := ocitest.Tar(t, bash)
	arm := ocitest.Image(t, ocitest.Config{Architecture: "arm64"}, layer)
	amd := ocitest.Image(t, ocitest.Config{}, layer)
	index := func(of ...mutate.IndexAddendum) v1.ImageIndex {
		return mutate.AppendManifests(empty.Index, of...)
	}
	on := func(img mutate.Appendable, os, arch, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: arch,
				Variant: variant}}}
	}
	reg.Push(t, "arm:1", arm)
	reg.PushIndex(t, "arms:1", index(on(arm, "linux", "arm64", "v8"),
		on(arm, "windows", "amd64", ""), on(arm, "unknown", "unknown", "")))
	reg.PushIndex(t, "none:1", index())
	reg.PushIndex(t, "liar:1", index(on(arm, "linux", "amd64", "")))
	reg.PushIndex(t, "good:1", index(on(arm, "linux", "arm64", ""), on(arm, "linux", "amd64", "v3"),
		on(amd, "linux", "amd64", "")))
	reg.PushIndex(t, "nested:1",
		index(mutate.IndexAddendum{Add: index(on(amd, "linux", "amd64", ""))}))
	artifact := mutate.ConfigMediaType(amd, "application/vnd.cncf.helm.config.v1+json")
	reg.Push(t, "chart:1", artifact)
	var many []v1.Layer
	one, err := amd.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for range maxLayers + 1 {
		many = append(many, one[0])
	}
	reg.Push(t, "many:1", ocitest.ImageOf(t, ocitest.Config{}, many...))
	fewer, err := amd.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	fewer = fewer.DeepCopy()
	fewer.RootFS.DiffIDs = nil
	short, err := mutate.ConfigFile(amd, fewer)
	if err != nil {
		t.Fatal(err)
	}
	reg.Push(t, "short:1", short)
	nameless, err := amd.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	nameless = nameless.DeepCopy()
	nameless.OS, nameless.Architecture = "", ""
	anywhere, err := mutate.ConfigFile(amd, nameless)
	if err != nil {
		t.Fatal(err)
	}
	reg.Push(t, "anywhere:1", anywhere)
	for name, want := range map[string]string{"arm": "linux/arm64, and not for linux/amd64",
		"arms": "it is for linux/arm64/v8, windows/amd64, and not", "none": "it is for nothing",
		"liar": "linux/arm64, and not", "chart": "helm", "many": "513 layers", "short": "lists 0",
		"good": "", "nested": "", "anywhere": ""} {
		r, err := unpackAt(t, client(t), reg.Host+"/"+name+":1")
		if want == "" {
			if err != nil || r.res.Files == 0 {
				t.Errorf("%s: %v", name, err)
			}
		} else if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestNotSpokenTo checks addresses to which no request is sent.
func TestNotSpokenTo(t *testing.T) {
	for address, open := range map[string]bool{"8.8.8.8": true, "2606:4700::1": true,
		"127.0.0.1": false, "::1": false, "10.1.2.3": false, "192.168.1.1": false,
		"169.254.169.254": false, "fe80::1": false, "fd00:ec2::254": false,
		"100.100.100.200": false, "0.0.0.0": false, "::": false, "224.0.0.1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::808:808": true, "2002:a00:1::": false,
		"::127.0.0.1": false} {
		if why := closed(netip.MustParseAddr(address).Unmap()); (why == "") != open {
			t.Errorf("%s: %q", address, why)
		}
	}
	for _, ref := range []string{"10.255.255.1:5000/x:1", "registry.local:5000/x:1"} {
		r, err := ParseReference(ref)
		if err != nil {
			t.Fatal(err)
		}
		g := newGuard(r, time.Second, false)
		req := httptest.NewRequest(http.MethodGet, "http://"+r.Registry()+"/v2/", nil)
		if _, err := g.RoundTrip(req); err == nil || !strings.Contains(err.Error(), "without TLS") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// TestCredentials checks that the Docker config's credentials are sent to their registry only, and
// are in no error.
func TestCredentials(t *testing.T) {
	const secret = "hunter2-correct-horse"
	var elsewhere, logged atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
	}))
	defer other.Close()
	var wrong atomic.Bool
	reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		user, password, ok := r.BasicAuth()
		switch {
		case !ok:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case user != "me" || password != secret:
			http.Error(w, "who?", http.StatusForbidden)
		case wrong.Load() && isBlob(r):
			http.Redirect(w, r, other.URL+"/?X-Amz-Signature=topsecret", http.StatusFound)
		default:
			logged.Add(1)
			next.ServeHTTP(w, r)
		}
	}).wrap)
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	config, err := json.Marshal(
		map[string]any{"auths": map[string]any{reg.Host: map[string]string{"username": "me",
			"password": secret}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	reg.PushAs(t, "x:1", ocitest.Image(t, ocitest.Config{}, ocitest.Tar(t, bash)), "me", secret)
	c := client(t)
	if _, err := unpackAt(t, c, reg.Host+"/x:1"); turnstone.KindOf(err) != turnstone.KindNotFound ||
		!strings.Contains(turnstone.HintOf(err), "docker login "+reg.Host) {
		t.Errorf("without credentials: %v; %s", err, turnstone.HintOf(err))
	}
	c.opts.Keychain = nil
	c = New(c.opts)
	if _, err := unpackAt(t, c, reg.Host+"/x:1"); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	wrong.Store(true)
	c.opts.Dir = t.TempDir()
	_, err = unpackAt(t, New(c.opts), reg.Host+"/x:1")
	if turnstone.KindOf(err) != turnstone.KindInvalid || strings.Contains(err.Error(), secret) ||
		strings.Contains(err.Error(), "topsecret") {
		t.Errorf("%v", err)
	}
	if elsewhere.Load() != 0 || logged.Load() == 0 {
		t.Errorf("%d requests went elsewhere", elsewhere.Load())
	}
}
