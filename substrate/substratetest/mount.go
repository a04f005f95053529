package substratetest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// withDisk restores a machine with layers, with a folder of its disk at /srv/disk.
func (c Config) withDisk(t *testing.T, s substrate.Substrate, layers int) (substrate.Sandbox, *wire.Client) {
	t.Helper()
	m := c.Machine
	m.Layers = Layers(t, layers)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	return vm, configure(t, vm, m, &c.Network, func(p *wire.SandboxConfigureParams) { p.Disk = "/srv/disk" })
}

// testShownDisk: an overlay can have its upper directory in a folder of the disk, above the template and above layers.
func testShownDisk(t *testing.T, s substrate.Substrate, c Config) {
	for _, layers := range []int{0, 1} {
		_, client := c.withDisk(t, s, layers)
		want(t, client, "cd /srv; mkdir low new; echo 1 > low/kept; echo 2 > low/gone; cd disk; mkdir up work; "+
			"mount -t overlay o -o lowerdir=/srv/low,upperdir=/srv/disk/up,workdir=/srv/disk/work /srv/new && cd /srv/new && "+
			"rm gone && echo 3 >> kept && mkdir d && ls && cat kept && cat /srv/low/kept && ls /srv/disk/up",
			"d\nkept\n1\n3\n1\nd\ngone\nkept\n")
	}
	vm, err := s.Restore(t.Context(), c.Machine)
	check(t, err)
	defer func() { _ = vm.Close() }()
	if _, _, err := Configure(t.Context(), vm, c.Machine, &c.Network,
		func(p *wire.SandboxConfigureParams) { p.Disk = "../disk" }); err == nil {
		t.Error("a path that is not absolute is taken")
	}
}

// testMount: an image that is mounted while the machine runs is there for processes that ran before, cannot be written,
// and can be below an overlay.
func testMount(t *testing.T, s substrate.Substrate, c Config) {
	vm, client := c.withDisk(t, s, 1)
	m, ok := vm.(substrate.Mounter)
	if !ok {
		t.Skip("the substrate mounts no images while a machine runs")
	}
	images := t.TempDir()
	for _, name := range []string{"one", "two"} {
		writeImage(t, filepath.Join(images, name), func(w *erofs.Writer) {
			put(t, w, "/name", name+"\n")
			put(t, w, "/gone", "")
		})
	}
	want(t, client, "mkdir /srv/one /srv/two /srv/new; sleep 1000 & cd /srv/disk; mkdir up work", "")
	for _, name := range []string{"one", "two"} {
		check(t, m.Mount(t.Context(), filepath.Join(images, name), "/srv/"+name))
	}
	want(t, client, "cat /srv/*/name; touch /srv/one/x 2>/dev/null || echo read-only", "one\ntwo\nread-only\n")
	want(t, client, "mount -t overlay o -o lowerdir=/srv/one,upperdir=/srv/disk/up,workdir=/srv/disk/work /srv/new && "+
		"cd /srv/new && rm gone && echo more >> name && cat name && ls && ls /srv/one", "one\nmore\nname\ngone\nname\n")
	if err := m.Mount(t.Context(), filepath.Join(images, "one"), "/srv/missing"); err == nil {
		t.Error("an image was mounted at a folder that is not there")
	}
	if err := m.Mount(t.Context(), filepath.Join(images, "missing"), "/srv/two"); err == nil {
		t.Error("an image was mounted that is not there")
	}
	want(t, client, "umount /srv/new /srv/one /srv/two && ls /srv/one", "")
}
