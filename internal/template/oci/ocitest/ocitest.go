// Package ocitest provides a registry and images for tests.
package ocitest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone"
)

// A Registry is a registry that listens on a port of this machine.
type Registry struct {
	Host string // including its port
	URL  string
}

// Handler returns a registry that keeps everything in memory.
func Handler() http.Handler { return registry.New(registry.Logger(log.New(io.Discard, "", 0))) }

// Serve starts a registry. wrap, which may be nil, wraps its handler.
func Serve(t testing.TB, wrap func(http.Handler) http.Handler) *Registry {
	t.Helper()
	h := Handler()
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &Registry{Host: strings.TrimPrefix(srv.URL, "http://"), URL: srv.URL}
}

// Push puts an image into the registry as name, and returns its digest.
func (r *Registry) Push(t testing.TB, as string, img v1.Image) turnstone.Digest {
	t.Helper()
	ref, err := name.ParseReference(r.Host + "/" + as)
	if err == nil {
		err = remote.Write(ref, img)
	}
	return Digest(t, img, err)
}

// PushAs is Push with a name and a password.
func (r *Registry) PushAs(t testing.TB, as string, img v1.Image, user,
	password string) turnstone.Digest {
	t.Helper()
	ref, err := name.ParseReference(r.Host + "/" + as)
	if err == nil {
		err = remote.Write(ref, img,
			remote.WithAuth(&authn.Basic{Username: user, Password: password}))
	}
	return Digest(t, img, err)
}

// PushIndex puts an index into the registry as name, and returns its digest.
func (r *Registry) PushIndex(t testing.TB, as string, index v1.ImageIndex) turnstone.Digest {
	t.Helper()
	ref, err := name.ParseReference(r.Host + "/" + as)
	if err == nil {
		err = remote.WriteIndex(ref, index)
	}
	return Digest(t, index, err)
}

// Digest returns the digest of an image or an index.
func Digest(t testing.TB, of interface{ Digest() (v1.Hash, error) }, err error) turnstone.Digest {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	h, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return turnstone.Digest(h.String())
}

// Config is the content of an image's config for Image.
type Config struct {
	Architecture string // "": amd64
	Env          []string
	User         string
	Workdir      string
	Entrypoint   []string
	Cmd          []string
}

// Image makes an image of layers, each a tar stream.
func Image(t testing.TB, c Config, layers ...[]byte) v1.Image {
	t.Helper()
	var all []v1.Layer
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser,
			error) {
			return io.NopCloser(bytes.NewReader(b)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return ImageOf(t, c, all...)
}

// ImageOf makes an image of layers.
func ImageOf(t testing.TB, c Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	if c.Architecture != "" {
		cf.Architecture = c.Architecture
	}
	cf.Config = v1.Config{Env: c.Env, User: c.User, WorkingDir: c.Workdir,
		Entrypoint: c.Entrypoint, Cmd: c.Cmd}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

// Raw returns a layer of exactly these bytes, valid or not; its config names the digest of plain.
func Raw(packed, plain []byte, mt types.MediaType) v1.Layer {
	return &raw{static.NewLayer(packed, mt), plain}
}

type raw struct {
	v1.Layer
	plain []byte
}

func (r *raw) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(r.plain))
	return h, err
}

// Tar makes a tar stream of entries. Those without a time have one of 2020.
func Tar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1577836800, 0)
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(e.Content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// An Entry is an entry of a tar stream.
type Entry struct {
	tar.Header
	Content string
}

// File is a regular file.
func File(name, content string) Entry { return Entry{tar.Header{Name: name}, content} }

// Program is an executable regular file.
func Program(name, content string) Entry {
	return Entry{tar.Header{Name: name, Mode: 0o755}, content}
}

// Dir is a folder.
func Dir(name string) Entry { return Entry{tar.Header{Typeflag: tar.TypeDir, Name: name}, ""} }

// Symlink is a symbolic link.
func Symlink(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, ""}
}

// Link is a hard link.
func Link(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

// Copies returns the files and links of an EROFS image whose names match the patterns, such as a
// template's programs and their libraries.
func Copies(image string, patterns ...string) (all []Entry, err error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	fsys, err := erofs.Open(f)
	if err != nil {
		return nil, err
	}
	for _, pattern := range patterns {
		names, err := fs.Glob(fsys, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			e, err := copyOf(fsys, name)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
	}
	return all, nil
}

func copyOf(fsys fs.FS, name string) (Entry, error) {
	info, err := fs.Lstat(fsys, name)
	if err != nil {
		return Entry{}, err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		target, err := fs.ReadLink(fsys, name)
		return Symlink(name, target), err
	}
	content, err := fs.ReadFile(fsys, name)
	return Entry{tar.Header{Name: name, Mode: int64(info.Mode().Perm())}, string(content)}, err
}

// Gzip compresses b.
func Gzip(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Put puts a manifest of exactly these bytes, and blobs, into the registry under repository:tag, and
// returns the manifest's digest.
func (r *Registry) Put(t testing.TB, repository, tag, mediaType string, manifest []byte,
	blobs ...[]byte) turnstone.Digest {
	t.Helper()
	send := func(method, path, mediaType string, b []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.URL+"/v2/"+repository+path,
			bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, path, resp.Status)
		}
	}
	for _, b := range blobs {
		send(http.MethodPost, "/blobs/uploads/?digest="+string(turnstone.DigestBytes(b)),
			"application/octet-stream", b)
	}
	send(http.MethodPut, "/manifests/"+tag, mediaType, manifest)
	return turnstone.DigestBytes(manifest)
}
