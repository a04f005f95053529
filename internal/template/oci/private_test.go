package oci

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// stranger returns an anonymous client with the folder of c. Its guard is off, because the test's
// registries are on this machine.
func stranger(c *Client) *Client {
	opts := c.opts
	opts.Anonymous = true
	s := New(opts)
	s.opts.Anonymous = false
	return s
}

// lacks returns a registry whose manifests name blobs that it does not have.
func lacks(missing ...v1.Hash) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		for _, h := range missing {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/blobs/"+h.String()) {
				http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"none"}]}`,
					http.StatusNotFound)
				return
			}
		}
		next.ServeHTTP(w, r)
	}
}

// TestPrivateLayers checks that a stranger whose manifest names the digest of a layer that was
// pulled with the user's credentials does not get it, neither as a whole nor in parts.
func TestPrivateLayers(t *testing.T) {
	img := ocitest.Image(t, ocitest.Config{},
		ocitest.Tar(t, bash, ocitest.File("private", random(100_000))))
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	private := ocitest.Serve(t, nil)
	private.Push(t, "priv/x:1", img)
	for name, missing := range map[string][]v1.Hash{"the layer": {layer}, "the config": {config},
		"both": {layer, config}} {
		for _, sub := range []string{"blobs", "partial"} {
			c := client(t)
			if _, err := unpackAt(t, c, private.Host+"/priv/x:1"); err != nil {
				t.Fatal(err)
			}
			if sub == "partial" {
				for _, h := range missing {
					if err := os.Rename(c.path("blobs", h.Hex),
						c.path("partial", h.Hex)); err != nil {
						t.Fatal(err)
					}
				}
			}
			evil := ocitest.Serve(t, lacks(missing...).wrap)
			evil.Push(t, "evil/x:1", img)
			if _, err := unpackAt(t, stranger(c),
				evil.Host+"/evil/x:1"); turnstone.KindOf(err) != turnstone.KindNotFound {
				t.Errorf("a stranger got %s out of %s: %v", name, sub, err)
			}
		}
	}
}

// TestAnonymousKeeps checks that an anonymous download is kept for the next anonymous pull, and is
// pruned with the rest.
func TestAnonymousKeeps(t *testing.T) {
	c := client(t)
	var gone fault = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "no", http.StatusNotFound)
	}
	off := false
	reg := ocitest.Serve(t, fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if off && isBlob(r) {
			gone(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}).wrap)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{},
		ocitest.Tar(t, bash, ocitest.File("big", random(100_000)))))
	if _, err := unpackAt(t, stranger(c), reg.Host+"/x:1"); err != nil {
		t.Fatal(err)
	}
	off = true
	if _, err := unpackAt(t, stranger(c), reg.Host+"/x:1"); err != nil {
		t.Errorf("it was not kept: %v", err)
	}
	freed, err := c.Prune(0, time.Time{}, false)
	if left, _ := filepath.Glob(stranger(c).path("blobs", "*")); err != nil || freed < 100_000 ||
		len(left) > 0 {
		t.Errorf("%d bytes are freed, %v are left, %v", freed, left, err)
	}
}
