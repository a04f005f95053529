package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
)

// program64 returns the start of an ELF file of this type for this machine.
func program64(kind elf.Type, machine elf.Machine, more string) []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type: uint16(kind), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
		Phentsize: 56, Shentsize: 64,
	})
	b.WriteString(more)
	return b.Bytes()
}

// program32 is program64 with 32 bits.
func program32() []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, elf.Header32{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT),
		Ehsize: 52, Phentsize: 32, Shentsize: 40,
	})
	return b.Bytes()
}

// segment returns an ELF kernel with a single segment.
func segment(p64 elf.Prog64) []byte {
	b := program64(elf.ET_EXEC, elf.EM_X86_64, "")
	binary.LittleEndian.PutUint64(b[32:], 64) // e_phoff
	binary.LittleEndian.PutUint16(b[56:], 1)  // e_phnum
	var p bytes.Buffer
	p64.Type = uint32(elf.PT_LOAD)
	_ = binary.Write(&p, binary.LittleEndian, p64)
	return append(b, p.Bytes()...)
}

// refused are files other than kernels, with the expected error for each.
func refused(t testing.TB) map[string]struct {
	image []byte
	says  string
} {
	arm := make([]byte, 128)
	copy(arm[56:], "ARM\x64")
	good := bzImage(pack(t, "zstd", pvhKernel()))
	change := func(at int, b ...byte) []byte {
		image := append([]byte(nil), good...)
		copy(image[at:], b)
		return image
	}
	return map[string]struct {
		image []byte
		says  string
	}{
		"empty":               {nil, "is empty"},
		"text":                {[]byte("#!/bin/sh\n"), "neither a vmlinux"},
		"an ELF header alone": {[]byte("\x7fELF"), "damaged ELF file"},
		"an ELF program": {program64(elf.ET_DYN, elf.EM_X86_64, "usage:"),
			"is an ELF program, not a kernel"},
		"an object file": {program64(elf.ET_REL, elf.EM_X86_64, ""),
			"object file or a module"},
		"a vmlinux for aarch64": {program64(elf.ET_EXEC, elf.EM_AARCH64,
			"Linux version 6.1.0 (a@b)"), "is for aarch64"},
		"an unknown machine":   {program64(elf.ET_EXEC, 60000, ""), "x86-64"},
		"a vmlinux of 32 bits": {program32(), "is a 32-bit ELF file"},
		"the start of one":     {program32()[:32], "is a 32-bit ELF file"},
		"no PVH entry": {program64(elf.ET_EXEC, elf.EM_X86_64,
			"Linux version 6.1.0 (a@b) #1"), "no PVH entry (CONFIG_PVH)"},
		"a truncated vmlinux": {segment(
			elf.Prog64{Off: 4096, Filesz: 1 << 20, Memsz: 1 << 20}), "is truncated"},
		"a segment that overflows": {segment(
			elf.Prog64{Off: 1 << 62, Filesz: 3 << 62, Memsz: 3 << 62}), ""},
		"a segment larger in the file": {segment(elf.Prog64{Filesz: 100, Memsz: 8}),
			"is a damaged ELF file"},
		"an Image for aarch64": {arm, "aarch64"},
		"a truncated bzImage": {change(setupSyssize, 0xff, 0xff, 0xff, 0x00),
			"is truncated"},
		"a bzImage of 32 bits": {change(setupXLoad, 0), "32-bit x86"},
		"a packed vmlinux":     {pack(t, "gzip", pvhKernel()), "compressed with gzip"},
	}
}

// TestRefusedImages: doctor and TURN_KERNEL reject each of these files by name and keep nothing.
func TestRefusedImages(t *testing.T) {
	own := t.TempDir()
	try := func(name, path, says string) {
		t.Helper()
		dir := t.TempDir()
		_, err := Inspect(t.Context(), dir, path, "")
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: Inspect: %v", name, err)
		}
		_, err = Ensure(t.Context(), dir, Choice{Image: path}, nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: Ensure: %v", name, err)
		}
		left, _ := os.ReadDir(dir)
		for _, e := range left {
			if !strings.HasSuffix(e.Name(), ".lock") {
				t.Errorf("%s: left behind: %s", name, e.Name())
			}
		}
	}
	for name, tt := range refused(t) {
		path := filepath.Join(own, "image")
		if err := os.WriteFile(path, tt.image, 0o644); err != nil {
			t.Fatal(err)
		}
		try(name, path, tt.says)
	}
	fifo := filepath.Join(own, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	try("a FIFO", fifo, "not a regular file")
	try("a directory", own, "is a directory")
	try("a device", "/dev/zero", "not a regular file")
	try("nothing", filepath.Join(own, "nothing"), "no such file")
	large := filepath.Join(own, "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxVmlinux+1); err != nil {
		t.Fatal(err)
	}
	try("a large file", large, "larger than any kernel")
}

// withConfig returns a kernel that contains this configuration.
func withConfig(t testing.TB, config string) []byte {
	image := append(pvhKernel(),
		"%s version %s (\x00Linux version 6.9.1-own (a@b) #1\x00IKCFG_ST is a mark\x00IKCFG_ST"...)
	image = append(image, pack(t, "gzip", []byte(config))...)
	return append(image, "IKCFG_ED and more"...)
}

func TestInspect(t *testing.T) {
	dir, own := t.TempDir(), t.TempDir()
	image, modules := filepath.Join(own, "bzImage"), filepath.Join(own, "6.9.1-own")
	content := withConfig(t,
		"# CONFIG_SMP is not set\nCONFIG_EXT4_FS=y\nCONFIG_EROFS_FS=m\n"+
			"CONFIG_DEFAULT_HOSTNAME=\"a=b\"\n")
	for name, b := range map[string][]byte{
		image:                                 bzImage(pack(t, "zstd", content)),
		filepath.Join(modules, "fs/erofs.ko"): module("depends=libcrc32c"),
		filepath.Join(modules, "lib/libcrc32c.ko"): module("depends="),
		filepath.Join(modules, "modules.builtin"):  []byte("kernel/fs/ext4/ext4.ko\n"),
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	i, err := Inspect(t.Context(), dir, image, modules)
	if err != nil {
		t.Fatal(err)
	}
	f := i.Facts
	if f.Format != "bzImage" || f.Version != "6.9.1-own" || len(f.Config) != 3 ||
		f.Config["EROFS_FS"] != "m" || f.Config["DEFAULT_HOSTNAME"] != `"a=b"` {
		t.Errorf("facts: %+v", f)
	}
	if !f.Builtin["ext4"] || !f.Modules["erofs"] || f.Modules["ext4"] {
		t.Errorf("modules: %v, built in: %v", f.Modules, f.Builtin)
	}
	if len(i.Kernel.Modules) != 2 || i.Kernel.Modules[0].Name != "libcrc32c" ||
		i.Kernel.Digest != turnstone.DigestBytes(content) {
		t.Errorf("kernel: %+v", i.Kernel)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err = Inspect(t.Context(), dir, image, image)
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a file as the folder of modules: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestUnreadableModules: a folder of invalid entries is rejected at once.
func TestUnreadableModules(t *testing.T) {
	image := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(image, pvhKernel(), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(dir string) error{
		"a FIFO as the list": func(dir string) error {
			return syscall.Mkfifo(filepath.Join(dir, "modules.builtin"), 0o600)
		},
		"a folder as the list": func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "modules.builtin"), 0o700)
		},
		"text as a module": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "erofs.ko"), []byte("text"), 0o600)
		},
		"a FIFO as a module": func(dir string) error {
			return syscall.Mkfifo(filepath.Join(dir, "erofs.ko"), 0o600)
		},
		"nothing": func(string) error { return nil },
		"an empty list": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("\n"), 0o600)
		},
		"a list that leads out": func(dir string) error {
			return os.Symlink("/etc/passwd", filepath.Join(dir, "modules.builtin"))
		},
	} {
		modules := t.TempDir()
		if err := put(modules); err != nil {
			t.Fatal(err)
		}
		i, err := Inspect(t.Context(), t.TempDir(), image, modules)
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(turnstone.HintOf(err), "lib/modules/<release>") {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
}

// FuzzInspect: any image is rejected, or read within bounds.
func FuzzInspect(f *testing.F) {
	f.Add(withConfig(f, "CONFIG_A=y\n"))
	f.Add([]byte("IKCFG_STIKCFG_ST\x1f\x8b"))
	for _, r := range refused(f) {
		f.Add(r.image)
	}
	f.Fuzz(func(t *testing.T, image []byte) {
		if err := checkImage(image); err != nil && len(err.Error()) > 400 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		for name := range embeddedConfig(image) {
			if strings.Contains(name, "\n") {
				t.Errorf("the option %q", name)
			}
		}
		if r := bannerRelease(image); r != "" && !isRelease(r) {
			t.Errorf("the release %q", r)
		}
	})
}
