// Command image builds the OCI image of the server from built programs, without a container engine:
// as an archive for "docker load" and "podman load", and, with --push, in a registry. It prints the
// image's digest, which is the same for the same programs.
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
)

func main() {
	bin := flag.String("bin", "bin", "folder with the built programs")
	out := flag.String("out", "", "write an archive to this file")
	push := flag.String("push", "", "push to this name in a registry, such as "+
		"registry.example.org/turnstone:1.0; credentials are those of docker login")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *bin, *out, *push); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin, out, push string) error {
	image, err := Build(bin)
	if err != nil {
		return err
	}
	if out != "" {
		if err := archive(out, image); err != nil {
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

// archive writes the image under the name turnstone:VERSION.
func archive(path string, image v1.Image) error {
	tag, err := name.NewTag("turnstone:" + turnstone.Version)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, image)
}
