// Command image builds the OCI images of the server from built programs, without a container engine:
// as an archive for "docker load" and "podman load", and, with --push, in a registry. It prints the
// image's digest, which is the same for the same programs. With --node it is the image of a node.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/debian"
)

func main() {
	bin := flag.String("bin", "bin", "folder with the built programs")
	out := flag.String("out", "", "write an archive to this file")
	push := flag.String("push", "", "push to this name in a registry, such as "+
		"registry.example.org/turnstone:1.0; credentials are those of docker login")
	node := flag.Bool("node", false, "the image of a node: Debian, and what builds templates and starts "+
		"sandboxes")
	var mirrors debian.Mirrors
	flag.StringVar(&mirrors.Main, "mirror", "", "where --node gets Debian's packages")
	flag.StringVar(&mirrors.Security, "security-mirror", "", "where --node gets their security updates")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *node, mirrors, *bin, *out, *push); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, node bool, mirrors debian.Mirrors, bin, out, push string) error {
	image, title, err := v1.Image(nil), "turnstone", error(nil)
	if node {
		title += "-node"
		var closed func() error
		image, closed, err = BuildNode(ctx, bin, "", mirrors, os.Stderr)
		if err == nil {
			defer func() { _ = closed() }()
		}
	} else {
		image, err = Build(bin)
	}
	if err != nil {
		return err
	}
	if out != "" {
		if err := archive(out, title, image); err != nil {
			return err
		}
	}
	if push != "" {
		ref, err := name.ParseReference(push)
		if err != nil {
			return err
		}
		if err := remote.Write(ref, image, remote.WithContext(ctx),
			remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return err
		}
	}
	digest, err := image.Digest()
	if err == nil {
		fmt.Println(digest)
	}
	return err
}

// archive writes the image under the name TITLE:VERSION.
func archive(path, title string, image v1.Image) error {
	tag, err := name.NewTag(title + ":" + turnstone.Version)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, image)
}
