// Package testbed runs a containerd of its own for tests, with the shim, crictl, critest, a network
// and a registry of small images.
package testbed

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// busybox is Debian's static program (package busybox-static).
const busybox = "/bin/busybox"

// A Registry serves the images of tests.
type Registry struct {
	Host string // HOST:PORT
	http *httptest.Server
	base v1.Layer
}

// Images are the names of the images in the registry, and their commands.
var Images = map[string]v1.Config{
	"busybox:latest": {Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}},
	"busybox:1":      {Cmd: []string{"sh"}, Env: []string{"PATH=/bin", "FROM_IMAGE=yes"}},
	"web:1":          web, "web:latest": web, "e2e-test-images/nginx:latest": web,
	"e2e-test-images/httpd:latest": web,
	"k8s-staging-cri-tools/hostnet-nginx:latest": {
		Cmd: []string{"httpd", "-f", "-p", "12003", "-h", "/www"}, Env: []string{"PATH=/bin"}},
	"k8s-staging-cri-tools/test-image-predefined-group:latest": {Cmd: []string{"sh"},
		User: "1002", Env: []string{"PATH=/bin"}},
}

var web = v1.Config{Cmd: []string{"httpd", "-f", "-h", "/www"}, Env: []string{"PATH=/bin"}}

// Serve starts a registry with all Images. Close it.
func Serve() (*Registry, error) {
	layer, err := busyboxLayer()
	if err != nil {
		return nil, err
	}
	r := &Registry{http: httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))}
	r.base = layer
	r.Host = strings.TrimPrefix(r.http.URL, "http://")
	for ref, config := range Images {
		if err := r.push(ref, config, layer); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

// Push adds an image whose layers are that of busybox and one with entries and with files that have
// texts. Files among the entries have the text "text".
func (r *Registry) Push(ref string, config v1.Config, entries []*tar.Header,
	texts map[string]string) error {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	add := func(h *tar.Header, text string) error {
		h.Size = int64(len(text))
		err := tw.WriteHeader(h)
		if err == nil {
			_, err = io.WriteString(tw, text)
		}
		return err
	}
	for _, h := range entries {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = "text"
		}
		if err := add(h, text); err != nil {
			return err
		}
	}
	for name, text := range texts {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
		if err := add(h, text); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	layer, err := layerOf(b.Bytes())
	if err != nil {
		return err
	}
	return r.push(ref, config, r.base, layer)
}

func layerOf(stream []byte) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(stream)), nil
	})
}

func (r *Registry) push(ref string, config v1.Config, layers ...v1.Layer) error {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", "amd64", config
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return err
	}
	to, err := name.ParseReference(r.Host+"/"+ref, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(to, img)
}

// Close ends the registry.
func (r *Registry) Close() { r.http.Close() }

// busyboxLayer returns a root file system with busybox under all its names.
func busyboxLayer() (v1.Layer, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, fmt.Errorf("%w: install Debian's package busybox-static", err)
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, d := range []struct {
		name string
		mode int64
	}{{"bin/", 0o755}, {"etc/", 0o755}, {"tmp/", 0o1777}, {"srv/", 0o755}, {"www/", 0o755},
		{"root/", 0o700}, {"var/", 0o755}} {
		err = errors.Join(err, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d.name,
			Mode: d.mode}))
	}
	file := func(name, text string, mode int64) {
		if err == nil {
			err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode,
				Size: int64(len(text))})
		}
		if err == nil {
			_, err = tw.Write([]byte(text))
		}
	}
	file("bin/busybox", string(program), 0o755)
	file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/www:/bin/sh\n"+
		"default-user:x:1000:1000::/tmp:/bin/sh\n"+
		"user-defined-in-image:x:1002:1002::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n", 0o644)
	file("etc/group", "root:x:0:\nwww-data:x:33:\ndefault:x:1002:\n"+
		"group-defined-in-image:x:50000:default-user\n", 0o644)
	file("www/index.html", "served from a pod\n", 0o644)
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" && err == nil {
			err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "bin/" + applet,
				Linkname: "bin/busybox", Mode: 0o755})
		}
	}
	if err = errors.Join(err, tw.Close()); err != nil {
		return nil, err
	}
	return layerOf(b.Bytes())
}
