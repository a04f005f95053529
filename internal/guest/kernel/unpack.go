package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// maxVmlinux bounds the unpacked size of a kernel image in bytes.
const maxVmlinux = 512 << 20

// errKeep reports that an image must be booted unchanged.
var errKeep = errors.New("contains no ELF kernel that boots directly")

// A format is a compression format of a kernel's payload.
type format struct {
	name  string
	magic []byte
	// sized reports that the payload ends with its unpacked size. The kernel's build appends the
	// size for formats without it.
	sized bool
	open  func(io.Reader) (io.Reader, error)
}

func formats() []format {
	return []format{
		{"lz4", []byte{0x02, 0x21, 0x4c, 0x18}, true,
			func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil }},
		{"gzip", []byte{0x1f, 0x8b}, false, func(r io.Reader) (io.Reader, error) {
			z, err := gzip.NewReader(r)
			if err == nil {
				z.Multistream(false)
			}
			return z, err
		}},
		{"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd}, true, openZstd},
		{"xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, true, openXZ},
	}
}

// openZstd allows the 128 MiB window that kernels use.
func openZstd(r io.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
}

func openXZ(r io.Reader) (io.Reader, error) {
	return xz.ReaderConfig{SingleStream: true, DictCap: 128 << 20}.NewReader(r)
}

// bzImage's setup header: Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".
const (
	setupSects    = 0x1f1 // u8
	setupMagic    = 0x202 // "HdrS"
	setupVersion  = 0x206 // u16
	setupKernel   = 0x20e // u16: offset of the version text, minus 0x200
	setupPayload  = 0x248 // u32 offset from the protected-mode code, u32 length
	setupEnd      = 0x250
	payloadAbsent = 0x0208 // protocol versions before this version do not describe the payload
)

// unpack writes the ELF kernel inside a bzImage to w. The error is errKeep if there is none or its
// format is unknown.
func unpack(w io.Writer, image []byte) error {
	payload, err := payload(image)
	if err != nil {
		return err
	}
	for _, f := range formats() {
		if !bytes.HasPrefix(payload, f.magic) {
			continue
		}
		body, size := payload, int64(-1)
		if f.sized {
			if len(payload) < 4 {
				return errKeep
			}
			size = int64(binary.LittleEndian.Uint32(payload[len(payload)-4:]))
			body = payload[:len(payload)-4]
		}
		return inflate(w, f, body, size)
	}
	return errKeep
}

// inflate unpacks body, which must result in size bytes, or any number if size is negative.
func inflate(w io.Writer, f format, body []byte, size int64) error {
	r, err := f.open(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errKeep, f.name, err)
	}
	if z, ok := r.(*zstd.Decoder); ok {
		defer z.Close()
	}
	n, err := io.Copy(w, io.LimitReader(r, maxVmlinux+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", errKeep, f.name, err)
	case n > maxVmlinux:
		return fmt.Errorf("%w: %s: unpacks to more than %d bytes", errKeep, f.name, maxVmlinux)
	case size >= 0 && n != size:
		return fmt.Errorf("%w: %s: unpacks to %d bytes instead of %d", errKeep, f.name, n, size)
	}
	return nil
}

// payload returns the compressed kernel in a bzImage.
func payload(image []byte) ([]byte, error) {
	if !isBzImage(image) || binary.LittleEndian.Uint16(image[setupVersion:]) < payloadAbsent {
		return nil, errKeep
	}
	sects := int64(image[setupSects])
	if sects == 0 {
		sects = 4 // required by the boot protocol
	}
	offset := (sects+1)*512 + int64(binary.LittleEndian.Uint32(image[setupPayload:]))
	length := int64(binary.LittleEndian.Uint32(image[setupPayload+4:]))
	if length == 0 || offset+length > int64(len(image)) {
		return nil, errKeep
	}
	return image[offset : offset+length], nil
}

func isBzImage(image []byte) bool {
	return len(image) >= setupEnd && string(image[setupMagic:setupMagic+4]) == "HdrS"
}

func isELF(image []byte) bool { return bytes.HasPrefix(image, []byte(elf.ELFMAG)) }

// version returns the release in a bzImage's header, such as "6.1.0-50-cloud-amd64", or "".
func version(image []byte) string {
	if !isBzImage(image) {
		return ""
	}
	at := int(binary.LittleEndian.Uint16(image[setupKernel:])) + 0x200
	if at == 0x200 || at >= len(image) {
		return ""
	}
	text := image[at:min(at+256, len(image))]
	if i := bytes.IndexAny(text, " \x00"); i > 0 && isRelease(string(text[:i])) {
		return string(text[:i])
	}
	return ""
}

// banner is the prefix of a kernel's first line of output (init/version.c).
const banner = "Linux version "

// bannerRelease returns the release in an unpacked kernel's banner, such as "6.1.0-50-cloud-amd64",
// or "". If there are several banners, the banner of a test kernel counts: an earlier banner that
// the kernel never prints must not hide it.
func bannerRelease(vmlinux []byte) (release string) {
	for {
		at := bytes.Index(vmlinux, []byte(banner))
		if at < 0 {
			return release
		}
		vmlinux = vmlinux[at+len(banner):]
		text := vmlinux[:min(129, len(vmlinux))]
		if i := bytes.Index(text, []byte(" (")); i > 0 && isRelease(string(text[:i])) {
			if found := string(text[:i]); release == "" || IsTest(found) {
				release = found
			}
			if IsTest(release) {
				return release
			}
		}
	}
}

// testVersion is the local version (CONFIG_LOCALVERSION) of kernels for testing drivers on hosts
// whose KVM emulates ring 0. These kernels run completely at ring 3.
const testVersion = "tpv"

// IsTest reports whether a kernel of this release is a test kernel.
func IsTest(release string) bool {
	return slices.Contains(strings.FieldsFunc(release,
		func(r rune) bool { return strings.ContainsRune("-+_~", r) }), testVersion)
}

// isRelease reports whether s is a valid kernel release and file name.
func isRelease(s string) bool {
	for _, c := range s {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' ||
			c == '-' || c == '_' || c == '+' || c == '~') {
			return false
		}
	}
	return s != "" && s[0] != '.' && len(s) <= 128
}

// bootsByPVH reports whether an ELF kernel has QEMU's entry point: the Xen note
// XEN_ELFNOTE_PHYS32_ENTRY (xen/include/public/elfnote.h).
func bootsByPVH(r io.ReaderAt) bool {
	const phys32Entry = 18
	f, err := elf.NewFile(r)
	if err != nil || f.Machine != elf.EM_X86_64 {
		return false
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > 1<<20 {
			continue
		}
		notes, err := io.ReadAll(p.Open())
		if err != nil {
			return false
		}
		for len(notes) >= 12 {
			nameSize, descSize := binary.LittleEndian.Uint32(notes),
				binary.LittleEndian.Uint32(notes[4:])
			kind := binary.LittleEndian.Uint32(notes[8:])
			end := 12 + (int64(nameSize)+3)&^3 + (int64(descSize)+3)&^3
			if end > int64(len(notes)) {
				break
			}
			if kind == phys32Entry && bytes.HasPrefix(notes[12:], []byte("Xen\x00")) {
				return true
			}
			notes = notes[end:]
		}
	}
	return false
}
