package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"turnstone.dev/turnstone"
)

// The user of the image, who owns its state directory. Kubernetes checks that the number is not 0.
const (
	user = 65532
	home = "/var/lib/turnstone"
)

// programs are the files of the image from the folder of built programs, and operator is one more if it
// is built: it takes minutes.
var programs = []string{"turn", "turn-server", "runsc"}

const operator = "turn-operator"

// Build returns the image with the programs in the folder bin. Its digest depends on their content,
// on the version, and on the roots that are compiled in, and on nothing else.
func Build(bin string) (v1.Image, error) {
	system, err := layer(base())
	if err != nil {
		return nil, err
	}
	program, err := programLayer(bin)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, system, program)
	if err != nil {
		return nil, err
	}
	return configure(image, v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Env:        []string{"PATH=/usr/bin", "TURN_HOME=" + home},
		WorkingDir: home,
	})
}

// programLayer returns the layer with the programs in the folder bin.
func programLayer(bin string) (v1.Layer, error) {
	var files []file
	for _, name := range append(slices.Clone(programs), operator) {
		b, err := os.ReadFile(filepath.Join(bin, name))
		if name == operator && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: "usr/bin/" + name, mode: 0o755, content: b})
	}
	return layer(files)
}

// configure gives the image its configuration: c, and what all images of the project have.
func configure(image v1.Image, c v1.Config) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	c.Entrypoint, c.Cmd, c.StopSignal = []string{"/usr/bin/turn"}, []string{"serve"}, "SIGTERM"
	c.Volumes = map[string]struct{}{home: {}}
	c.Labels = map[string]string{
		"org.opencontainers.image.title":   "turnstone",
		"org.opencontainers.image.version": turnstone.Version,
	}
	config.Config = c
	return mutate.ConfigFile(image, config)
}

// A file is an entry of a layer.
type file struct {
	path    string // without a leading slash; a folder's ends with one
	mode    int64
	owner   int
	content []byte
}

// base is everything except the programs.
func base() []file {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file cannot say what it is trusted for
		}
		_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
	}
	return []file{
		{path: "etc/", mode: 0o755},
		{path: "etc/group", mode: 0o644,
			content: fmt.Appendf(nil, "root:x:0:\nturnstone:x:%d:\n", user)},
		{path: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil,
			"root:x:0:0:root:/:/nologin\nturnstone:x:%d:%d:turnstone:%s:/nologin\n", user, user,
			home)},
		{path: "etc/ssl/", mode: 0o755},
		{path: "etc/ssl/certs/", mode: 0o755},
		{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{path: "etc/turnstone/", mode: 0o755},
		{path: "tmp/", mode: 0o1777},
		{path: "usr/", mode: 0o755},
		{path: "usr/bin/", mode: 0o755},
		{path: "var/", mode: 0o755},
		{path: "var/lib/", mode: 0o755},
		{path: home[1:] + "/", mode: 0o700, owner: user},
	}
}

// layer returns files as a layer, with the time 1970.
func layer(files []file) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Uid: f.owner,
			Gid: f.owner, Size: int64(len(f.content)), ModTime: time.Unix(0, 0).UTC(),
			Format: tar.FormatUSTAR}
		if f.path[len(f.path)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}
