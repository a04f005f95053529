package kernel

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/template/debian"
)

// The source of Debian's kernel. The cloud flavour contains mainly the drivers of virtual machines.
const (
	debianSuite   = "bookworm"
	debianPackage = "linux-image-cloud-amd64"
)

// maxImage bounds a kernel image in bytes.
const maxImage = 256 << 20

// source returns the kernel's source.
func (c Choice) source() (source, error) {
	if c.Image == "" {
		if c.Modules != "" {
			return nil, turnstone.Errorf("kernel.ensure", turnstone.KindInvalid,
				"TURN_KERNEL_MODULES",
				"is set without TURN_KERNEL").
				WithHint("set TURN_KERNEL to the image that the modules belong to, or unset both")
		}
		return debianSource{c.Mirrors}, nil
	}
	o := override{}
	var err error
	if o.image, err = filepath.Abs(c.Image); err == nil && c.Modules != "" {
		o.modules, err = filepath.Abs(c.Modules)
	}
	return o, err
}

// debianSource extracts the kernel from Debian's package.
type debianSource struct{ mirrors debian.Mirrors }

// debianGeneration is part of the stored kernel's name. It changes with wantedModules, so that an
// older program continues to use its own kernel.
const debianGeneration = "3"

func (debianSource) key() string { return "debian-" + debianSuite + "-" + debianGeneration }

func (debianSource) describe() string {
	return "downloading the guest kernel from Debian (about 70 MB, only this time)"
}

func (s debianSource) take(ctx context.Context, dir string,
	progress func(string)) (*manifest, error) {
	unpacked := filepath.Join(dir, "package")
	if err := os.Mkdir(unpacked, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(unpacked)
	req := debian.Request{Suite: debianSuite, Variant: "extract", Include: []string{debianPackage},
		Mirrors:  s.mirrors,
		Progress: func(s string) { progress("guest kernel: " + s) }}
	err := debian.Fetch(ctx, req, func(r io.Reader) error { return extract(r, unpacked) })
	if err != nil {
		return nil, err
	}
	images, err := filepath.Glob(filepath.Join(unpacked, "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("package %s has %d kernel images instead of one", debianPackage,
			len(images))
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	progress("guest kernel: unpacking " + release)
	image, err := os.ReadFile(images[0])
	if err != nil {
		return nil, err
	}
	m := &manifest{Version: release}
	if m.Image, err = keepImage(ctx, dir, image); err != nil {
		return nil, err
	}
	err = m.keepModules(ctx, dir, filepath.Join(unpacked, "modules", release))
	return m, err
}

// extract writes the kernel image, as vmlinuz-<release>, and its modules, below modules/<release>,
// from the tar stream of a root to dir.
func extract(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir) // no path of the stream can leave the folder
	if err != nil {
		return err
	}
	defer root.Close()
	var total int64
	for tr := tar.NewReader(r); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean("/" + hdr.Name)
		to := ""
		if rest, ok := strings.CutPrefix(name, "/boot/vmlinuz-"); ok && isRelease(rest) {
			to = "vmlinuz-" + rest
		}
		for _, prefix := range []string{"/lib/modules/", "/usr/lib/modules/"} {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				if _, module := moduleName(rest); module || path.Base(rest) == "modules.builtin" {
					to = "modules/" + rest
				}
			}
		}
		if to == "" || hdr.Typeflag != tar.TypeReg {
			continue
		}
		if total += hdr.Size; hdr.Size > maxImage || total > 4<<30 {
			return fmt.Errorf("%s: the kernel package is larger than any kernel", hdr.Name)
		}
		if err := writeInto(root, to, tr); err != nil {
			return err
		}
	}
}

func writeInto(root *os.Root, name string, r io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// keepImage writes the kernel that boots fastest to dir: the ELF file inside image, which QEMU
// starts without unpacking in the guest, or else image itself.
func keepImage(ctx context.Context, dir string, image []byte) (keptFile, error) {
	name := "vmlinux"
	err := writeVmlinux(filepath.Join(dir, name), image)
	if errors.Is(err, errKeep) {
		name = "bzImage"
		err = os.WriteFile(filepath.Join(dir, name), image, 0o444)
	}
	if err != nil {
		return keptFile{}, err
	}
	return keep(ctx, dir, name)
}

// writeVmlinux writes the ELF kernel inside image, or image itself if it is an ELF kernel.
func writeVmlinux(name string, image []byte) (err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			_ = os.Remove(name)
		}
	}()
	if isELF(image) {
		_, err = f.Write(image)
	} else {
		err = unpack(f, image)
	}
	if err != nil {
		return err
	}
	if !bootsByPVH(f) {
		return errKeep
	}
	return f.Sync()
}

// keepModules copies the guest's modules from a folder lib/modules/<release>, and adds them to m.
func (m *manifest) keepModules(ctx context.Context, dir, from string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	t, err := openTree(root.FS())
	if err != nil {
		return err
	}
	mods, err := t.resolve(wantedModules())
	if err != nil {
		return err
	}
	if m.Modules, err = writeKept(ctx, dir, 0, mods); err != nil {
		return err
	}
	more, err := t.resolve(memoryModules(), mods...)
	if err != nil {
		return err
	}
	m.Memory, err = writeKept(ctx, dir, len(mods), more)
	return err
}

// writeKept writes mods to dir, counted from first.
func writeKept(ctx context.Context, dir string, first int, mods []loaded) ([]keptModule, error) {
	written, err := writeModules(filepath.Join(dir, "modules"), first, mods)
	if err != nil {
		return nil, err
	}
	kept := make([]keptModule, 0, len(written))
	for _, m := range written {
		f, err := keep(ctx, dir, filepath.Join("modules", filepath.Base(m.Path)))
		if err != nil {
			return nil, err
		}
		kept = append(kept, keptModule{Name: m.Name, keptFile: f})
	}
	return kept, nil
}

func keep(ctx context.Context, dir, name string) (keptFile, error) {
	s, err := filestamp.Of(ctx, filepath.Join(dir, name))
	return keptFile{Path: name, Stamp: s}, err
}

// override is a kernel of the user.
type override struct{ image, modules string }

// ownGeneration is part of the stored kernel's name. It changes with the manifest's content.
const ownGeneration = "4"

func (o override) key() string {
	return "own-" + ownGeneration + "-" +
		turnstone.DigestBytes([]byte(o.image+"\x00"+o.modules)).Short()
}

func (o override) describe() string { return "preparing the guest kernel " + o.image }

func (o override) take(ctx context.Context, dir string, _ func(string)) (*manifest, error) {
	image, err := readImage(o.image)
	if err != nil {
		return nil, invalidOverride("guest kernel", fmt.Errorf("%s: %w", o.image, err))
	}
	return o.keep(ctx, dir, image)
}

func invalidOverride(subject string, err error) error {
	return turnstone.NewError("kernel.ensure", turnstone.KindInvalid, subject, err).
		WithHint("set TURN_KERNEL, or kernel in config.toml, to a vmlinux or bzImage for x86-64, " +
			"and TURN_KERNEL_MODULES or kernel_modules to its folder lib/modules/<release>")
}

// keep stores image, which was read from o's file, and the modules. It is an error if the file has
// changed meanwhile.
func (o override) keep(ctx context.Context, dir string, image []byte) (_ *manifest, err error) {
	m := new(manifest)
	if m.Image, err = keepImage(ctx, dir, image); err != nil {
		return nil, err
	}
	if m.Image, err = nameByDigest(ctx, dir, m.Image); err != nil {
		return nil, err
	}
	kept, err := os.ReadFile(filepath.Join(dir, m.Image.Path))
	if err != nil {
		return nil, err
	}
	// The banner comes from the kernel itself; a bzImage's header can contain anything.
	if m.Version = bannerRelease(kept); m.Version == "" {
		m.Version = version(image)
	}
	m.Release = m.Version
	source, err := resolvedSource(ctx, o.image)
	if err != nil {
		return nil, err
	}
	if source.Stamp.Digest != turnstone.DigestBytes(image) {
		return nil, turnstone.Errorf("kernel.ensure", turnstone.KindUnavailable, o.image,
			"the file changed while it was read").WithHint(
			"run the command again when the file is complete")
	}
	m.Sources = []keptFile{source}
	if o.modules == "" {
		return m, nil
	}
	if m.Version == "" && isRelease(filepath.Base(o.modules)) {
		m.Version = filepath.Base(o.modules)
	}
	if err = m.keepModules(ctx, dir, o.modules); err != nil {
		return nil, invalidOverride("guest kernel's modules", fmt.Errorf("%s: %w", o.modules, err))
	}
	return m, nil
}

// nameByDigest renames the image to a name that no other content has. A process that is about to
// boot the image finds it, or no file if the user's file has changed and another image is stored.
func nameByDigest(ctx context.Context, dir string, f keptFile) (keptFile, error) {
	name := f.Path + "-" + f.Stamp.Digest.Short()
	if err := os.Rename(filepath.Join(dir, f.Path), filepath.Join(dir, name)); err != nil {
		return keptFile{}, err
	}
	return keep(ctx, dir, name)
}

// resolvedSource stamps the file that a user named, with links resolved.
func resolvedSource(ctx context.Context, path string) (keptFile, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return keptFile{}, err
	}
	s, err := filestamp.Of(ctx, real)
	return keptFile{Path: real, Stamp: s}, err
}
