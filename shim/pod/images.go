package pod

import (
	"context"
	"fmt"
	"path"
	"sync"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/rootfs"
	"turnstone.dev/turnstone/wire"
)

// images are the host's images that are mounted in the sandbox. They stay mounted until the sandbox ends, for containers
// that are made again.
type images struct {
	onHost  rootfs.Images
	mounted names // images that are being mounted

	mu    sync.Mutex
	at    map[string]string // folders in the sandbox, by images on the host
	tried int               // folders that were made
}

// addRoot brings the container's root file system into the sandbox: as an image that the sandbox's kernel reads, where
// the substrate mounts images while it runs, or as a copy.
func (c *Container) addRoot(ctx context.Context, root rootfs.Root) error {
	p := c.pod
	var layers []string
	if root.Layers != nil && p.sb.Mounts() {
		layers = root.Layers()
	}
	if len(layers) > 0 {
		image, err := p.images.onHost.Of(ctx, layers)
		if err == nil {
			c.spec.Image, err = p.mount(ctx, image)
		}
		if err == nil || ctx.Err() != nil || p.sb.Ended() {
			return p.sb.CauseOf(err)
		}
		p.say("the root file system is copied: " + err.Error())
	}
	limits := rootfs.Limits{Bytes: int64(p.asked.Shape.Disk), Entries: maxRootFiles}
	err := root.With(func(dir string) error {
		return p.copyIn(ctx, guest.CmdUnpack, dir, "", guest.File(c.ID, "", guest.FileRoot), limits)
	})
	if err != nil {
		return fmt.Errorf("copying the root file system: %w", err)
	}
	return nil
}

// mount returns the folder of the sandbox at which an image of the host is mounted.
func (p *Pod) mount(ctx context.Context, image string) (string, error) {
	x := &p.images
	release, err := x.mounted.take(ctx, image)
	if err != nil {
		return "", err
	}
	defer release()
	x.mu.Lock()
	dir, has := x.at[image]
	x.tried++
	next := path.Join(guest.Images, fmt.Sprint(x.tried))
	x.mu.Unlock()
	if has {
		return dir, nil
	}
	if _, err = bounded(ctx, func() (struct{}, error) {
		return struct{}{}, p.sb.Client().FileSystemMkdir(ctx, &wire.FileSystemMkdirParams{Path: next})
	}); err == nil {
		_, err = bounded(ctx, func() (struct{}, error) { return struct{}{}, p.sb.Mount(ctx, image, next) })
	}
	if err != nil {
		return "", err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.at == nil {
		x.at = map[string]string{}
	}
	x.at[image] = next
	return next, nil
}
