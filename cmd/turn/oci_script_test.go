package main

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// registries are the registries that scripts have started, by the folder of the script.
var registries sync.Map

// registry starts a registry with the images x:1 and bare:1 for the script, and puts its address
// into REGISTRY: "registry start". "registry move" puts another image under x:1, "registry stop"
// ends it. The images contain programs of the template base.
func registry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: registry start|move|stop")
	}
	key := ts.Getenv("WORK")
	switch args[0] {
	case "start":
		srv := httptest.NewServer(ocitest.Handler())
		registries.Store(key, srv)
		ts.Defer(srv.Close)
		ts.Setenv("REGISTRY", strings.TrimPrefix(srv.URL, "http://"))
		pushImage(ts, "one")
		img, err := mutate.AppendLayers(empty.Image, tarLayer(ts, func(w *tar.Writer) {
			ts.Check(w.WriteHeader(&tar.Header{Name: "alone", Typeflag: tar.TypeReg, Mode: 0o644}))
		}))
		ts.Check(err)
		push(ts, "bare:1", img, v1.Config{})
	case "move":
		pushImage(ts, "two")
	case "stop":
		srv, ok := registries.LoadAndDelete(key)
		if !ok {
			ts.Fatalf("there is no registry")
		}
		srv.(*httptest.Server).Close()
	default:
		ts.Fatalf("usage: registry start|move|stop")
	}
}

// pushImage puts an image under x:1 whose file /content has the given content.
func pushImage(ts *testscript.TestScript, content string) {
	base, err := template.NewStore(filepath.Join(ts.Getenv("SHARED"), "templates")).Ensure(
		context.Background(), "base", nil)
	ts.Check(err)
	layers := []v1.Layer{smallRoot(ts, base.Root), tarLayer(ts, func(w *tar.Writer) {
		write := func(name, text string, mode int64, uid int) {
			ts.Check(w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode,
				Size: int64(len(text)), Uid: uid, Gid: uid}))
			_, err := io.WriteString(w, text)
			ts.Check(err)
		}
		write("etc/passwd", "root:x:0:0::/root:/bin/bash\nana:x:1000:1000::/home/ana:/bin/bash\n",
			0o644, 0)
		write("etc/group", "root:x:0:\nana:x:1000:\n", 0o644, 0)
		write("content", content+"\n", 0o644, 0)
		write("usr/bin/.wh.dash", "", 0o644, 0)
		ts.Check(w.WriteHeader(&tar.Header{Name: "home/ana/", Typeflag: tar.TypeDir, Mode: 0o755,
			Uid: 1000, Gid: 1000}))
	})}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	ts.Check(err)
	push(ts, "x:1", img, v1.Config{Env: []string{"PATH=/usr/bin:/bin",
		"GREETING=hello from the image"}, User: "ana", WorkingDir: "/home/ana/work",
		Entrypoint: []string{"/none"}, Cmd: []string{"none"}})
}

// push puts an image with that config into the script's registry.
func push(ts *testscript.TestScript, as string, img v1.Image, config v1.Config) {
	cf, err := img.ConfigFile()
	ts.Check(err)
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	cf.Config = config
	img, err = mutate.ConfigFile(img, cf)
	ts.Check(err)
	ref, err := name.ParseReference(ts.Getenv("REGISTRY") + "/" + as)
	ts.Check(err)
	ts.Check(remote.Write(ref, img))
}

func tarLayer(ts *testscript.TestScript, fill func(*tar.Writer)) v1.Layer {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	fill(w)
	ts.Check(w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	ts.Check(err)
	return l
}

// smallRoot returns a layer with bash, some programs and their libraries.
func smallRoot(ts *testscript.TestScript, image string) v1.Layer {
	files, err := ocitest.Copies(image, "bin", "lib", "lib64", "usr/bin/bash", "usr/bin/sh",
		"usr/bin/dash", "usr/bin/cat", "usr/bin/id", "usr/bin/ls", "usr/bin/mkdir", "usr/bin/rm",
		"usr/bin/chmod", "usr/bin/dirname",
		"usr/lib64/ld-linux-*", "usr/lib/x86_64-linux-gnu/ld-linux-*",
		"usr/lib/x86_64-linux-gnu/libc.so.*", "usr/lib/x86_64-linux-gnu/libtinfo.so.*",
		"usr/lib/x86_64-linux-gnu/libselinux.so.*", "usr/lib/x86_64-linux-gnu/libpcre2-8.so.*",
		"usr/lib/x86_64-linux-gnu/libdl.so.*")
	ts.Check(err)
	return tarLayer(ts, func(w *tar.Writer) {
		for _, f := range files {
			f.Size = int64(len(f.Content))
			ts.Check(w.WriteHeader(&f.Header))
			_, err := io.WriteString(w, f.Content)
			ts.Check(err)
		}
	})
}
