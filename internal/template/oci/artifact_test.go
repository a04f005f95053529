package oci

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// someTemplate returns a valid template.
func someTemplate() Artifact {
	d := turnstone.DigestBytes([]byte("x"))
	return Artifact{Name: "mine", Description: "for tests", Digest: d, FSHash: d,
		Env: map[string]string{"A": "1", "B": "two"}, Workdir: "/work", User: "7:8",
		Specs: []json.RawMessage{[]byte(`{"name":"mine"}`)}}
}

func packed(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layerFile returns a layer with this tar stream.
func layerFile(t testing.TB, plain []byte) LayerFile {
	t.Helper()
	b := packed(t, plain)
	return LayerFile{Layer{turnstone.DigestBytes(b), turnstone.DigestBytes(plain), int64(len(b))},
		bytes.NewReader(b)}
}

func parse(t testing.TB, s string) Reference {
	t.Helper()
	ref, err := ParseReference(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// TestPush checks that a pushed template is pulled by its tag and by its digest, that the same
// template has the same digest, and that blobs are sent once.
func TestPush(t *testing.T) {
	var sent atomic.Int32
	reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodPatch || r.Method == http.MethodPut &&
			strings.Contains(r.URL.Path, "/blobs/") {
			sent.Add(1)
		}
		next.ServeHTTP(w, r)
	}).wrap)
	c := client(t)
	layer := layerFile(t, ocitest.Tar(t, bash, ocitest.File("one", "1")))
	ref := parse(t, reg.Host+"/org/mine:1")
	d, err := c.Push(t.Context(), ref, someTemplate(), []LayerFile{layer})
	if err != nil {
		t.Fatal(err)
	}
	first := sent.Load()
	again, err := c.Push(t.Context(), parse(t, reg.Host+"/org/mine:2"), someTemplate(),
		[]LayerFile{layer})
	if err != nil || again != d || sent.Load() != first || first == 0 {
		t.Errorf("%s and %s, after %d and %d requests, %v", d, again, first, sent.Load(), err)
	}
	for _, name := range []string{ref.String(), ref.Repository() + "@" + string(d)} {
		img, err := client(t).Resolve(t.Context(), parse(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if img.Digest != d || img.Manifest != d || img.Artifact == nil ||
			img.Artifact.Name != "mine" || img.User != "7:8" || img.Workdir != "/work" ||
			len(img.Env) != 2 || img.Env[1] != "B=two" || img.Layers[0] != layer.Layer {
			t.Errorf("%s: %+v", name, img)
		}
		from := img.Origin(parse(t, name))
		if from.Registry != reg.Host || from.Digest != d ||
			!strings.HasSuffix(from.Reference, "@"+string(d)) {
			t.Errorf("%+v", from)
		}
	}
	r, err := unpackAt(t, c, ref.String())
	if err != nil || !strings.Contains(r.list(t), "one") {
		t.Errorf("%v", err)
	}
	if _, err := c.Push(t.Context(), ref.WithDigest(d), someTemplate(),
		nil); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("to a digest: %v", err)
	}
}

// secretKeys has a password for every registry.
type secretKeys struct{}

const secret = "hunter2-password"

func (secretKeys) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "ana", Password: secret}, nil
}

// TestPushFaults checks what registries do to a push, and that no error has a password.
func TestPushFaults(t *testing.T) {
	upload := func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/blobs/uploads/")
	}
	at := func(location string) fault {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if upload(r) {
				w.Header().Set("Location", location)
				w.WriteHeader(http.StatusAccepted)
				return
			}
			next.ServeHTTP(w, r)
		}
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a host that the registry named was asked")
	}))
	defer elsewhere.Close()
	for name, c := range map[string]struct {
		fault fault
		kind  turnstone.Kind
	}{
		"no login": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if _, password, _ := r.BasicAuth(); r.Method != http.MethodGet || password != secret {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"go away"}]}`,
					http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindDenied},
		"read only": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if upload(r) {
				http.Error(w, `{"errors":[{"code":"DENIED","message":"no"}]}`, http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindDenied},
		"another port of this machine": {at(elsewhere.URL + "/up"), turnstone.KindInvalid},
		"metadata":                     {at("https://169.254.169.254/up"), turnstone.KindUnavailable},
		"no TLS":                       {at("http://registry.example/up"), turnstone.KindInvalid},
		"500": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == http.MethodPut {
				http.Error(w, "no", http.StatusInternalServerError)
				return
			}
			next.ServeHTTP(w, r)
		}, turnstone.KindUnavailable},
		"another digest for the manifest": {func(w http.ResponseWriter, r *http.Request,
			next http.Handler) {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
			}
			next.ServeHTTP(w, r)
		}, ""},
	} {
		reg := ocitest.Serve(t, c.fault.wrap)
		cl := New(Options{Dir: t.TempDir(), Keychain: secretKeys{}, Stall: 5 * time.Second,
			Pause: time.Millisecond, Retries: 1})
		d, err := cl.Push(t.Context(), parse(t, reg.Host+"/mine:1"), someTemplate(),
			[]LayerFile{layerFile(t, ocitest.Tar(t, bash))})
		if (c.kind == "") != (err == nil) || err != nil && turnstone.KindOf(err) != c.kind ||
			err == nil && d == "" {
			t.Errorf("%s: %v, %q", name, err, turnstone.KindOf(err))
		}
		if err != nil && strings.Contains(err.Error()+turnstone.HintOf(err), secret) {
			t.Errorf("%s: the error has the password: %v", name, err)
		}
	}
}

// An art is an artifact whose parts a test changes.
type art struct {
	t     Artifact
	m     v1.Manifest
	blob  []byte // stored for the layer
	raw   []byte // instead of t
	extra string // at the end of the config's JSON
}

// layer replaces the layer, in the blob, the manifest and the config.
func (a *art) layer(t testing.TB, plain []byte) {
	t.Helper()
	a.blob = packed(t, plain)
	h, err := v1.NewHash(string(turnstone.DigestBytes(a.blob)))
	if err != nil {
		t.Fatal(err)
	}
	a.m.Layers[0].Digest, a.m.Layers[0].Size = h, int64(len(a.blob))
	a.t.DiffIDs[0] = turnstone.DigestBytes(plain)
}

// TestHostileTemplates checks artifacts whose parts do not fit together.
func TestHostileTemplates(t *testing.T) {
	plain := ocitest.Tar(t, bash)
	good := packed(t, plain)
	bomb := make([]byte, 300<<20)
	for _, c := range []struct {
		name   string
		change func(a *art)
		says   string
		kind   turnstone.Kind
	}{
		{"good", func(*art) {}, "", ""},
		{"image's artifact type", func(a *art) { a.m.ArtifactType = "" }, "neither an image nor",
			turnstone.KindInvalid},
		{"another artifact type", func(a *art) { a.m.ArtifactType = "application/x" },
			"neither an image nor", turnstone.KindInvalid},
		{"image's config type", func(a *art) { a.m.Config.MediaType = types.OCIConfigJSON },
			"neither an image nor", turnstone.KindInvalid},
		{"image's layer", func(a *art) { a.m.Layers[0].MediaType = types.OCILayer },
			"no layer of a template", turnstone.KindInvalid},
		{"layer elsewhere", func(a *art) { a.m.Layers[0].URLs = []string{"http://127.0.0.1/x"} },
			"somewhere else", turnstone.KindInvalid},
		{"layer of another size", func(a *art) { a.m.Layers[0].Size-- }, "longer",
			turnstone.KindIntegrity},
		{"negative size", func(a *art) { a.m.Layers[0].Size = -1 }, "layers have more",
			turnstone.KindInvalid},
		{"huge layer", func(a *art) { a.m.Layers[0].Size = 1 << 50 }, "layers have more",
			turnstone.KindInvalid},
		{"huge config", func(a *art) { a.m.Config.Size = 1 << 40 }, "its config is named",
			turnstone.KindInvalid},
		{"no layer in the config", func(a *art) { a.t.DiffIDs = nil }, "its config lists 0",
			turnstone.KindInvalid},
		{"another content", func(a *art) { a.t.DiffIDs[0] = turnstone.DigestBytes(nil) },
			"", turnstone.KindIntegrity},
		{"no digest", func(a *art) { a.t.DiffIDs[0] = "sha256:../../etc/passwd" }, "not a SHA-256",
			turnstone.KindInvalid},
		{"later format", func(a *art) { a.t.Format = 2; a.extra = `,"new":1` }, "reads format 1",
			turnstone.KindInvalid},
		{"unknown field", func(a *art) { a.extra = `,"grants":["all"]` }, "unknown field",
			turnstone.KindInvalid},
		{"another machine", func(a *art) { a.t.Architecture = "arm64" }, "linux/arm64",
			turnstone.KindInvalid},
		{"no name", func(a *art) { a.t.Name = "" }, "its name", turnstone.KindInvalid},
		{"name of a terminal", func(a *art) { a.t.Name = "a\x1b[2J" }, "its name",
			turnstone.KindInvalid},
		{"description of lines", func(a *art) { a.t.Description = "a\nb" }, "its description",
			turnstone.KindInvalid},
		{"directory above", func(a *art) { a.t.Workdir = "/a/../../x" }, "working directory",
			turnstone.KindInvalid},
		{"specs of another kind", func(a *art) { a.t.Specs = []json.RawMessage{[]byte("7")} },
			"its specs", turnstone.KindInvalid},
		{"user of lines", func(a *art) { a.t.User = "a\nroot" }, "its user",
			turnstone.KindInvalid},
		{"huge machine", func(a *art) { a.t.Machine.Memory = 1 << 60 }, "out of bounds",
			turnstone.KindInvalid},
		{"negative machine", func(a *art) { a.t.Machine.CPUs = -1 }, "out of bounds",
			turnstone.KindInvalid},
		{"config of another kind", func(a *art) { a.raw = []byte(`[1]`) }, "cannot be read",
			turnstone.KindInvalid},
		{"two configs", func(a *art) { a.extra = `}{"format":1` }, "behind its end",
			turnstone.KindInvalid},
		{"path above", func(a *art) {
			a.layer(t, ocitest.Tar(t, bash, ocitest.File("../../etc/passwd", "x")))
		}, "leaves the image's root", turnstone.KindInvalid},
		{"a file system, and no tar stream", func(a *art) {
			a.layer(t, []byte(random(1<<20)))
		}, "", turnstone.KindInvalid},
		{"bomb", func(a *art) {
			a.layer(t, bomb)
		}, "", turnstone.KindInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			up, err := newUpload(someTemplate(), []LayerFile{layerFile(t, plain)})
			if err != nil {
				t.Fatal(err)
			}
			a := &art{blob: good}
			if err := json.Unmarshal(up.manifest, &a.m); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(up.config, &a.t); err != nil {
				t.Fatal(err)
			}
			size := a.m.Config.Size
			c.change(a)
			config, err := json.Marshal(a.t)
			if err != nil {
				t.Fatal(err)
			}
			config = append(config[:len(config)-1], a.extra+"}"...)
			if a.raw != nil {
				config = a.raw
			}
			if a.m.Config.Size == size {
				a.m.Config.Size = int64(len(config))
			}
			a.m.Config.Digest, err = v1.NewHash(string(turnstone.DigestBytes(config)))
			if err != nil {
				t.Fatal(err)
			}
			manifest, err := json.Marshal(a.m)
			if err != nil {
				t.Fatal(err)
			}
			reg := ocitest.Serve(t, nil)
			reg.Put(t, "x", "1", string(types.OCIManifestSchema1), manifest, config, a.blob)
			_, err = unpackAt(t, client(t), reg.Host+"/x:1")
			if (c.kind == "") != (err == nil) || err != nil && (turnstone.KindOf(err) != c.kind ||
				!strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v (%q)", err, turnstone.KindOf(err))
			}
		})
	}
}

// TestHostilePulls checks registries that lie about a template's manifest and blobs.
func TestHostilePulls(t *testing.T) {
	lie := func(is func(*http.Request) bool) fault {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !is(r) {
				next.ServeHTTP(w, r)
				return
			}
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			b := rec.Body.Bytes()
			b[len(b)-2] ^= 1
			w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
			_, _ = w.Write(b)
		}
	}
	endless := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !isManifest(r) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		_, _ = io.Copy(w, io.LimitReader(zeroReader{}, 1<<30))
	}
	for name, c := range map[string]struct {
		fault fault
		kind  turnstone.Kind
	}{
		"another manifest": {lie(isManifest), turnstone.KindIntegrity},
		"other blobs":      {lie(isBlob), turnstone.KindIntegrity},
		"endless manifest": {endless, turnstone.KindInvalid},
	} {
		h := ocitest.Handler()
		honest := httptest.NewServer(h)
		defer honest.Close()
		d, err := client(t).Push(t.Context(),
			parse(t, strings.TrimPrefix(honest.URL, "http://")+"/mine:1"), someTemplate(),
			[]LayerFile{layerFile(t, ocitest.Tar(t, bash))})
		if err != nil {
			t.Fatal(err)
		}
		liar := httptest.NewServer(c.fault.wrap(h))
		defer liar.Close()
		_, err = unpackAt(t, client(t),
			strings.TrimPrefix(liar.URL, "http://")+"/mine@"+string(d))
		if err == nil || turnstone.KindOf(err) != c.kind {
			t.Errorf("%s: %v (%q)", name, err, turnstone.KindOf(err))
		}
	}
}

// FuzzTemplate checks that a config is either rejected, or valid and the same after another round.
func FuzzTemplate(f *testing.F) {
	up, err := newUpload(someTemplate(), []LayerFile{layerFile(f, []byte("x"))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(up.config)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"os":"linux","architecture":"amd64","name":"x","diff_ids":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, err := ParseTemplate(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		two, err := ParseTemplate(again)
		if err != nil {
			t.Fatalf("%q became %q: %v", b, again, err)
		}
		if strings.ContainsAny(one.Name+one.Description+one.Workdir+one.User, "\x00\n\x1b") ||
			one.Workdir != "" && one.Workdir[0] != '/' || one.Name != two.Name ||
			len(one.DiffIDs) != len(two.DiffIDs) {
			t.Fatalf("%+v", one)
		}
	})
}
