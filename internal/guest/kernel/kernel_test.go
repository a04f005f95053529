package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cavaliergopher/cpio"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/testhome"
)

// debianKernel returns the real kernel, which is downloaded once per machine.
func debianKernel(t *testing.T) *Kernel {
	t.Helper()
	dir := filepath.Join(testhome.Dir(t), "kernel")
	k, err := Ensure(context.Background(), dir, Choice{}, func(s string) { t.Log(s) })
	if err != nil {
		t.Fatalf("%v\n%s", err, turnstone.HintOf(err))
	}
	return k
}

func TestDebianKernel(t *testing.T) {
	k := debianKernel(t)
	f, err := elf.Open(k.Vmlinux)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	image, err := os.Open(k.Vmlinux)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if f.Machine != elf.EM_X86_64 || !bootsByPVH(image) {
		t.Errorf("%s is no x86-64 kernel that boots by PVH", k.Vmlinux)
	}
	digest, err := turnstone.DigestReader(image)
	if err != nil || digest != k.Digest {
		t.Errorf("digest %s, said %s (%v)", digest, k.Digest, err)
	}
	if !strings.HasSuffix(k.Version, "-cloud-amd64") {
		t.Errorf("version %q", k.Version)
	}
	seen := map[string]bool{}
	for i, m := range k.Modules {
		content, err := os.ReadFile(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		needs, _, err := dependencies(content)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range needs {
			if !seen[n] {
				t.Errorf("%d: %s needs %s, which is not loaded before it", i, m.Name, n)
			}
		}
		seen[m.Name] = true
	}
	for _, w := range []string{"virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "erofs",
		"overlay"} {
		if !seen[w] {
			t.Errorf("module %s is missing", w)
		}
	}

	again, err := Ensure(context.Background(), filepath.Join(testhome.Dir(t), "kernel"), Choice{},
		func(s string) {
			t.Errorf("the second call works: %s", s)
		})
	if err != nil || again.Digest != k.Digest || again.Vmlinux != k.Vmlinux {
		t.Errorf("the second call: %+v, %v", again, err)
	}
}

func TestOverride(t *testing.T) {
	dir, own := t.TempDir(), t.TempDir()
	image := filepath.Join(own, "bzImage")
	vmlinux := append(pvhKernel(), "the kernel"...)
	write := func(path string, content []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var said []string
	var choice Choice
	ensure := func() (*Kernel, error) {
		said = nil
		return Ensure(context.Background(), dir, choice,
			func(what string) { said = append(said, what) })
	}
	write(image, bzImage(pack(t, "zstd", vmlinux)))
	choice.Image = image

	k, err := ensure()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(k.Vmlinux)
	if err != nil || !bytes.Equal(got, vmlinux) || k.Digest != turnstone.DigestBytes(vmlinux) ||
		k.Version != "6.1.0-test-amd64" || len(k.Modules) != 0 {
		t.Fatalf("%+v, %v", k, err)
	}

	// Another image with the same name is another kernel.
	write(image, bzImage([]byte("an unknown compression")))
	k, err = ensure()
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(k.Vmlinux); !isBzImage(got) {
		t.Error("an image that cannot be unpacked is not kept as it is")
	}
	all := strings.Join(said, "\n")
	if !strings.Contains(all, image+" has changed since it was prepared: ") ||
		strings.Contains(all, "whole") {
		t.Errorf("of an image that was changed it is said: %s", all)
	}
	write(image, vmlinux)
	if k, err = ensure(); err != nil || k.Digest != turnstone.DigestBytes(vmlinux) {
		t.Fatalf("an ELF image: %+v, %v", k, err)
	}

	modules := filepath.Join(own, "6.2.0-own")
	choice.Modules = own
	if _, err = ensure(); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), own+": contains no kernel modules") {
		t.Fatalf("a folder without modules: %v", err)
	}
	choice.Modules = modules
	write(filepath.Join(modules, "kernel", "virtio_pci.ko"), module("depends="))
	if _, err = ensure(); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "virtio_blk") {
		t.Fatalf("modules that are not complete: %v", err)
	}
	write(filepath.Join(modules, "modules.builtin"),
		[]byte("a/virtio_blk.ko\na/virtio_console.ko\na/virtio_net.ko\na/erofs.ko\na/ext4.ko\n"+
			"a/overlay.ko\n"))
	if k, err = ensure(); err != nil || len(k.Modules) != 1 || k.Version != "6.2.0-own" {
		t.Fatalf("%+v, %v", k, err)
	}

	for name, path := range map[string]string{"missing": filepath.Join(own, "nothing"),
		"a folder": own, "text": filepath.Join(modules, "modules.builtin")} {
		choice.Image = path
		if _, err := ensure(); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	choice.Image = ""
	if _, err := ensure(); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("modules without an image: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// counted is a source that counts calls of take.
type counted struct {
	taken atomic.Int32
	fail  error
}

func (*counted) key() string      { return "counted" }
func (*counted) describe() string { return "counting" }
func (c *counted) take(ctx context.Context, dir string, _ func(string)) (*manifest, error) {
	c.taken.Add(1)
	f, err := keepImage(ctx, dir, pvhKernel())
	if c.fail != nil {
		return nil, c.fail
	}
	return &manifest{Version: "1", Image: f}, err
}

func TestManyAtOnceTakeOnce(t *testing.T) {
	dir, src := t.TempDir(), &counted{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := ensure(context.Background(), dir, src, func(string) {}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := src.taken.Load(); n != 1 {
		t.Errorf("taken %d times", n)
	}
}

func TestDamageIsMended(t *testing.T) {
	dir, src := t.TempDir(), &counted{}
	ctx := context.Background()
	quiet := func(string) {}
	k, err := ensure(ctx, dir, src, quiet)
	if err != nil {
		t.Fatal(err)
	}
	manifestPath := filepath.Join(filepath.Dir(k.Vmlinux), "manifest.json")
	for i, damage := range []func() error{
		func() error { return replace(k.Vmlinux, bytes.Repeat([]byte("x"), len(pvhKernel()))) },
		func() error { return os.Remove(k.Vmlinux) },
		func() error { return replace(manifestPath, []byte("{half")) },
		func() error { return os.Remove(manifestPath) },
		func() error { return replace(manifestPath, []byte(`{"format": 99}`)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		mended, err := ensure(ctx, dir, src, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(mended.Vmlinux); !bytes.Equal(b, pvhKernel()) {
			t.Errorf("damage %d is not mended", i)
		}
		if n := int(src.taken.Load()); n != i+2 {
			t.Errorf("damage %d: taken %d times", i, n)
		}
	}

	// A copy of the folder has other inodes and times, and is the same kernel.
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	before := src.taken.Load()
	if _, err := ensure(ctx, other, src, quiet); err != nil || src.taken.Load() != before {
		t.Errorf("a copied kernel is taken again (%v)", err)
	}
}

func replace(path string, content []byte) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

func TestFailureLeavesNothing(t *testing.T) {
	dir, src := t.TempDir(), &counted{fail: errors.New("the network went away")}
	_, err := ensure(context.Background(), dir, src, func(string) {})
	if turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func program(b []byte) Program {
	return Program{turnstone.DigestBytes(b), func() ([]byte, error) { return b, nil }}
}

func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	k, err := ensure(context.Background(), dir, &counted{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	mods, err := writeModules(filepath.Join(dir, "m"), 0,
		[]loaded{{"virtio", module("depends=")}, {"erofs", module("depends=virtio")}})
	if err != nil {
		t.Fatal(err)
	}
	k.Modules = mods
	agent := elfFile(nil, []byte("agent"))
	ctx := context.Background()
	out := filepath.Join(dir, "initramfs")
	path, digest, err := k.Initramfs(ctx, out, program(agent))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || turnstone.DigestBytes(b) != digest {
		t.Fatalf("digest %s (%v)", digest, err)
	}
	checkArchive(t, b, agent, mods)

	fi, _ := os.Stat(path)
	path2, digest2, err := k.Initramfs(ctx, out, program(agent))
	if fi2, _ := os.Stat(path2); err != nil || path2 != path || digest2 != digest ||
		!os.SameFile(fi, fi2) {
		t.Errorf("the second call: %s %s %v", path2, digest2, err)
	}
	path3, digest3, err := k.Initramfs(ctx, t.TempDir(), program(agent))
	if err != nil || digest3 != digest || path3 == path {
		t.Errorf("the same content elsewhere has digest %s, not %s (%v)", digest3, digest, err)
	}
	if err := replace(path, bytes.Repeat([]byte("x"), len(b))); err != nil {
		t.Fatal(err)
	}
	if _, digest4, err := k.Initramfs(ctx, out, program(agent)); err != nil || digest4 != digest {
		t.Errorf("after damage: %s %v", digest4, err)
	}
	if b2, _ := os.ReadFile(path); !bytes.Equal(b, b2) {
		t.Error("the damage is not mended")
	}
	if _, other, err := k.Initramfs(ctx, out, program(elfFile(nil, []byte("other")))); err != nil ||
		other == digest {
		t.Errorf("another agent has the same initramfs (%v)", err)
	}
	_, _, err = k.Initramfs(ctx, out, program([]byte("#!/bin/sh\n")))
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a script as agent: %v", err)
	}
	if err := replace(mods[0].Path, []byte("bad")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.Initramfs(ctx, t.TempDir(), program(agent)); err == nil {
		t.Error("a damaged module is packed")
	}
}

func checkArchive(t *testing.T, archive, agent []byte, mods []Module) {
	t.Helper()
	found := map[string]string{}
	r := cpio.NewReader(bytes.NewReader(archive))
	var order []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.IsZero() && h.ModTime.Unix() != 0 || h.Uid != 0 || h.Guid != 0 {
			t.Errorf("%s: owner %d:%d, time %s", h.Name, h.Uid, h.Guid, h.ModTime)
		}
		found[h.Name] = h.Mode.String() + " " + string(turnstone.DigestBytes(content))
		order = append(order, h.Name)
	}
	want := map[string]string{
		"init": cpio.FileMode(cpio.TypeReg|0o755).String() + " " +
			string(turnstone.DigestBytes(agent)),
		"modules/00-virtio.ko": cpio.FileMode(cpio.TypeReg|0o444).String() + " " +
			string(mods[0].Digest),
		"modules/01-erofs.ko": cpio.FileMode(cpio.TypeReg|0o444).String() + " " +
			string(mods[1].Digest),
		"dev/console": cpio.FileMode(cpio.TypeChar|0o600).String() + " " +
			string(turnstone.DigestBytes(nil)),
		"dev": cpio.FileMode(cpio.TypeDir|0o755).String() + " " +
			string(turnstone.DigestBytes(nil)),
		"newroot": cpio.FileMode(cpio.TypeDir|0o755).String() + " " +
			string(turnstone.DigestBytes(nil)),
	}
	for name, w := range want {
		if found[name] != w {
			t.Errorf("%s: %q, want %q (there are %v)", name, found[name], w, order)
		}
	}
	at := bytes.Index(archive, []byte("dev/console\x00"))
	if at < 110 || string(archive[at-110+78:at-110+94]) != "0000000500000001" {
		t.Error("the console is not device 5:1")
	}
}

func TestInitramfsOfDebiansKernel(t *testing.T) {
	k := debianKernel(t)
	path, digest, err := k.Initramfs(context.Background(), t.TempDir(),
		program(elfFile(nil, []byte("agent"))))
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Size() > 8<<20 {
		t.Errorf("%s has %d bytes (%v)", digest, fi.Size(), err)
	}
}

// TestChangedWhileRead: the bytes that were read are not stored under the stamp of the changed
// file.
func TestChangedWhileRead(t *testing.T) {
	o := override{image: filepath.Join(t.TempDir(), "image")}
	if err := os.WriteFile(o.image, append(pvhKernel(), "now"...), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := o.keep(t.Context(), t.TempDir(), append(pvhKernel(), "before"...))
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "changed while it was read") {
		t.Error(err)
	}
	if _, err := o.keep(t.Context(), t.TempDir(), append(pvhKernel(), "now"...)); err != nil {
		t.Error(err)
	}
}

// TestChangingImage: a file that changes constantly is rejected, or stored as one of its contents:
// the name, the digest, the release and the verdict belong to the same content.
func TestChangingImage(t *testing.T) {
	dir, own := t.TempDir(), t.TempDir()
	image, next := filepath.Join(own, "image"), filepath.Join(own, "next")
	releases := map[turnstone.Digest]string{}
	var contents [][]byte
	for _, release := range []string{"6.9.0-own", "6.1.192-tpv"} {
		b := append(pvhKernel(), "Linux version "+release+" (a@b)"...)
		contents = append(contents, b)
		releases[turnstone.DigestBytes(b)] = release
	}
	put := func(b []byte) error {
		if err := os.WriteFile(next, b, 0o600); err != nil {
			return err
		}
		return os.Rename(next, image)
	}
	if err := put(contents[0]); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := put(contents[i%2]); err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 60 {
		k, err := Ensure(t.Context(), dir, Choice{Image: image}, nil)
		if err != nil { // it changed during reading or comparison
			continue
		}
		if want := releases[k.Digest]; want == "" || k.Release != want || k.Test != IsTest(want) {
			t.Fatalf("%+v is of %q", k, want)
		}
		if b, err := os.ReadFile(k.Vmlinux); err == nil && turnstone.DigestBytes(b) != k.Digest {
			t.Fatalf("%s has the content of another kernel", k.Vmlinux)
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}
