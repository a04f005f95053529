package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// maxConfig bounds a kernel's unpacked configuration in bytes.
const maxConfig = 4 << 20

// Facts describe a kernel by its files.
type Facts struct {
	Format  string // "vmlinux" or "bzImage"
	Version string // "" if the image does not contain it
	// options without CONFIG_, such as "EROFS_FS" → "m"; nil if the image has none (IKCONFIG)
	Config  map[string]string
	Builtin map[string]bool // modules in modules.builtin; nil without a folder of modules
	Modules map[string]bool // modules with files; nil without a folder of modules
}

// An Inspected kernel is a temporary copy of a user's kernel. The caller must Close it.
type Inspected struct {
	Kernel Kernel
	Facts  Facts
	Dir    string // folder of its files, also for the caller's files; removed by Close
	lock   *statedir.Lock
}

// Close removes the copy.
func (i *Inspected) Close() error {
	err := os.RemoveAll(i.Dir)
	i.lock.Release()
	return err
}

// Inspect copies a user's kernel to a folder below dir and describes its files: image, a vmlinux or
// a bzImage, and modules, its folder lib/modules/<release>, which may be empty. Unlike Ensure, it
// accepts missing modules. Only one process runs it at a time. Errors are of kind Invalid if the
// files are not a bootable kernel.
func Inspect(ctx context.Context, dir, image, modules string) (*Inspected, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, turnstone.NewError(inspectOp, turnstone.KindUnavailable, dir, err)
	}
	content, err := readImage(image)
	if err != nil {
		return nil, notKernel(inspectOp, image, err)
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(dir, "inspect.lock"), nil)
	if err != nil {
		return nil, err
	}
	// a fixed name: the remains of a crash are removed
	i := &Inspected{Dir: filepath.Join(dir, "inspect.tmp"), lock: lock}
	if err = errors.Join(os.RemoveAll(i.Dir), os.Mkdir(i.Dir, 0o755)); err == nil {
		err = i.take(ctx, image, content, modules)
	}
	if err != nil {
		_ = i.Close()
		return nil, err
	}
	return i, nil
}

const inspectOp = "kernel.inspect"

func (i *Inspected) take(ctx context.Context, name string, image []byte, modules string) error {
	kept, err := keepImage(ctx, i.Dir, image)
	if err != nil {
		return turnstone.NewError(inspectOp, turnstone.KindUnavailable, name, err)
	}
	i.Kernel.Vmlinux, i.Kernel.Digest = filepath.Join(i.Dir, kept.Path), kept.Stamp.Digest
	i.Facts.Format = "vmlinux"
	if isBzImage(image) {
		i.Facts.Format = "bzImage"
		if image, err = os.ReadFile(i.Kernel.Vmlinux); err != nil {
			return err
		}
	}
	i.Facts.Version = bannerRelease(image)
	if i.Facts.Version == "" {
		i.Facts.Version = version(image)
	}
	i.Kernel.Version, i.Kernel.Release, i.Kernel.Own, i.Kernel.Test = i.Facts.Version,
		i.Facts.Version, true, IsTest(i.Facts.Version)
	i.Facts.Config = embeddedConfig(image)
	if modules == "" {
		return nil
	}
	if err := i.takeModules(modules); err != nil {
		return turnstone.NewError(inspectOp, turnstone.KindInvalid, modules, err).
			WithHint("pass the kernel's folder lib/modules/<release>")
	}
	return nil
}

// takeModules copies all wanted modules that exist.
func (i *Inspected) takeModules(from string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	t, err := openTree(root.FS())
	if err != nil {
		return err
	}
	want := wantedModules()
	for w := range want {
		want[w].optional = true
	}
	mods, err := t.resolve(want)
	if err != nil {
		return err
	}
	i.Facts.Builtin, i.Facts.Modules = maps.Clone(t.builtin), map[string]bool{}
	for name := range t.files {
		i.Facts.Modules[name] = true
	}
	i.Kernel.Modules, err = writeModules(filepath.Join(i.Dir, "modules"), 0, mods)
	return err
}

// notKernel returns the error for a file that is not a bootable kernel.
func notKernel(op turnstone.Op, subject string, err error) error {
	return turnstone.NewError(op, turnstone.KindInvalid, subject, err).
		WithHint("use a vmlinux with a PVH entry (CONFIG_PVH) or a bzImage of Linux for x86-64")
}

// readImage reads a kernel image and rejects other files.
func readImage(name string) ([]byte, error) {
	fi, err := os.Stat(name) // before opening: opening a FIFO would block
	switch {
	case err != nil:
		return nil, err
	case fi.IsDir():
		return nil, errors.New("is a directory, not a kernel image")
	case !fi.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case fi.Size() == 0:
		return nil, errors.New("is empty")
	case fi.Size() > maxVmlinux:
		return nil, fmt.Errorf("is larger than any kernel (%d bytes)", fi.Size())
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	image, err := io.ReadAll(io.LimitReader(f, maxVmlinux+1))
	if err != nil {
		return nil, err
	}
	return image, checkImage(image)
}

// checkImage reports why a machine cannot boot image.
func checkImage(image []byte) error {
	if isELF(image) {
		return checkELF(image)
	}
	if isBzImage(image) {
		return checkBzImage(image)
	}
	// Documentation/arch/arm64/booting.rst
	if len(image) >= 64 && string(image[56:60]) == "ARM\x64" {
		return errors.New("is a kernel for aarch64, and machines are x86-64")
	}
	for _, f := range formats() {
		if bytes.HasPrefix(image, f.magic) {
			return fmt.Errorf("is compressed with %s: unpack it first", f.name)
		}
	}
	return errors.New("is neither a vmlinux (ELF) nor a bzImage")
}

func checkELF(image []byte) error {
	// before its headers, which may be missing
	if len(image) > elf.EI_CLASS && elf.Class(image[elf.EI_CLASS]) == elf.ELFCLASS32 {
		return errors.New("is a 32-bit ELF file, and machines are x86-64")
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("is a damaged ELF file: %w", err)
	}
	name := strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_"))
	switch {
	case f.Machine != elf.EM_X86_64:
		return fmt.Errorf("is for %s, and machines are x86-64", printableName(name))
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Filesz > p.Memsz {
			return errors.New("is a damaged ELF file: a segment is larger in the file than in " +
				"memory")
		}
		if p.Type == elf.PT_LOAD && (p.Off > uint64(len(image)) ||
			p.Filesz > uint64(len(image))-p.Off) {
			return fmt.Errorf("is truncated: it has %d bytes and declares more", len(image))
		}
	}
	switch {
	case bootsByPVH(bytes.NewReader(image)):
		return nil
	case f.Type == elf.ET_REL:
		return errors.New("is an object file or a module, not a kernel")
	case bannerRelease(image) != "":
		return errors.New("has no PVH entry (CONFIG_PVH)")
	}
	return errors.New("is an ELF program, not a kernel: it has no PVH entry")
}

// printableName bounds debug/elf's text for an unknown number.
func printableName(s string) string { return s[:min(len(s), 20)] }

// Further fields of bzImage's setup header.
const (
	setupSyssize  = 0x1f4 // u32: the size of the protected-mode code in units of 16 bytes
	setupXLoad    = 0x236 // u16
	xloadKernel64 = 1     // the kernel has a 64-bit entry
	xloadSince    = 0x020c
)

func checkBzImage(image []byte) error {
	sects := int64(image[setupSects])
	if sects == 0 {
		sects = 4
	}
	want := (sects+1)*512 + 16*int64(binary.LittleEndian.Uint32(image[setupSyssize:]))
	if want > int64(len(image))+16 { // the last 16 bytes may be missing
		return fmt.Errorf("is truncated: it has %d bytes of %d", len(image), want)
	}
	protocol, flags := binary.LittleEndian.Uint16(image[setupVersion:]),
		binary.LittleEndian.Uint16(image[setupXLoad:])
	if protocol >= xloadSince && flags&xloadKernel64 == 0 {
		return errors.New("is for 32-bit x86, and machines are x86-64")
	}
	return nil
}

// embeddedConfig returns the configuration in a kernel image (CONFIG_IKCONFIG): a gzip stream
// between two markers (kernel/configs.c); nil if there is none.
func embeddedConfig(image []byte) map[string]string {
	for {
		_, rest, found := bytes.Cut(image, []byte("IKCFG_ST"))
		if !found {
			return nil
		}
		if bytes.HasPrefix(rest, []byte{0x1f, 0x8b}) {
			if config := unpackConfig(rest); len(config) > 0 {
				return config
			}
		}
		image = rest
	}
}

func unpackConfig(packed []byte) map[string]string {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil
	}
	z.Multistream(false)
	text, err := io.ReadAll(io.LimitReader(z, maxConfig+1))
	if err != nil || len(text) > maxConfig {
		return nil
	}
	return parseConfig(text)
}

// parseConfig parses a configuration in the format of the kernel's build.
func parseConfig(text []byte) map[string]string {
	config := map[string]string{}
	for line := range bytes.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(string(line)), "=")
		if name, ok := strings.CutPrefix(name, "CONFIG_"); ok && found {
			config[name] = value
		}
	}
	return config
}
