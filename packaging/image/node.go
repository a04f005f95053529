package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"turnstone.dev/turnstone/internal/template/debian"
)

// suite is the release of Debian below the programs of a node.
const suite = "bookworm"

// packages are what a node needs beside its programs: what builds templates, makes disks, and runs
// microVMs where the machine has KVM.
var packages = []string{"ca-certificates", "debian-archive-keyring", "e2fsprogs", "mmdebstrap", "mount",
	"qemu-system-x86", "uidmap"}

// BuildNode returns the image of a node: Debian with packages, and the programs in the folder bin. It
// needs what builds templates (debian.Fetch). scratch is a folder for a temporary file, which the
// image reads until it is closed. The digest depends on the versions of the packages, too.
func BuildNode(ctx context.Context, bin, scratch string, mirrors debian.Mirrors, log io.Writer) (
	image v1.Image, closed func() error, err error) {
	f, err := os.CreateTemp(scratch, "turnstone-node-*.tar")
	if err != nil {
		return nil, nil, err
	}
	closed = func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }
	defer func() {
		if err != nil {
			err = errors.Join(err, closed())
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	err = debian.Fetch(ctx, debian.Request{Suite: suite, Variant: "minbase", Include: packages, Slim: true,
		Mirrors: mirrors, Log: log}, func(r io.Reader) error { return system(w, r) })
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return nil, nil, err
	}
	base, err := tarball.LayerFromFile(f.Name(), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, nil, err
	}
	programs, err := programLayer(bin)
	if err != nil {
		return nil, nil, err
	}
	image = mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, base, programs); err != nil {
		return nil, nil, err
	}
	image, err = configure(image, v1.Config{
		User: "0:0", // in a pod, the root of its user namespace
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
			"TURN_HOME=" + home + "/home"},
		WorkingDir: "/",
	})
	return image, closed, err
}

// system copies Debian's files without what only this build needed: devices, caches, lists and logs.
// The folders stay.
func system(w io.Writer, r io.Reader) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if left(h) {
			continue
		}
		h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	return out.Close()
}

// left reports whether an entry stays out of the image.
func left(h *tar.Header) bool {
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		return true
	}
	name := path.Clean("/" + h.Name)
	return h.Typeflag != tar.TypeDir && slices.ContainsFunc([]string{"/dev/", "/var/cache/",
		"/var/lib/apt/lists/", "/var/log/"}, func(below string) bool { return strings.HasPrefix(name, below) })
}
