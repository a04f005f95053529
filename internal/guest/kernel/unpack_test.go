package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// pack returns content compressed like the kernel's build does for a format.
func pack(t testing.TB, name string, content []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch name {
	case "lz4":
		z := lz4.NewWriter(&buf)
		err = z.Apply(lz4.LegacyOption(true))
		w = z
	case "gzip":
		w = gzip.NewWriter(&buf)
	case "zstd":
		w, err = zstd.NewWriter(&buf)
	case "xz":
		w, err = xz.NewWriter(&buf)
	default:
		t.Fatalf("no format %s", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if name != "gzip" {
		buf.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(content))))
	}
	return buf.Bytes()
}

// bzImage wraps a payload in the boot protocol's setup.
func bzImage(payload []byte) []byte {
	image := make([]byte, 5*512)
	image[setupSects] = 4
	copy(image[setupMagic:], "HdrS")
	binary.LittleEndian.PutUint16(image[setupVersion:], 0x20f)
	binary.LittleEndian.PutUint16(image[setupKernel:], 0x100)
	image[setupXLoad] = xloadKernel64
	copy(image[0x300:], "6.1.0-test-amd64 (builder@host) #1\x00")
	binary.LittleEndian.PutUint32(image[setupPayload:], 64)
	binary.LittleEndian.PutUint32(image[setupPayload+4:], uint32(len(payload)))
	image = append(image, make([]byte, 64)...)
	image = append(image, payload...)
	return append(image, "what follows the payload"...)
}

// pvhKernel is the smallest ELF file with the note by which QEMU starts a kernel.
func pvhKernel() []byte {
	note := binary.LittleEndian.AppendUint32(nil, 4)
	note = binary.LittleEndian.AppendUint32(note, 4)
	note = binary.LittleEndian.AppendUint32(note, 18)
	note = append(note, "Xen\x00\x00\x00\x00\x01"...)
	return elfFile(nil, note)
}

func TestUnpack(t *testing.T) {
	content := append(pvhKernel(), bytes.Repeat([]byte("kernel text "), 100_000)...)
	for _, f := range formats() {
		t.Run(f.name, func(t *testing.T) {
			image := bzImage(pack(t, f.name, content))
			var out bytes.Buffer
			if err := unpack(&out, image); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), content) {
				t.Fatalf("%d bytes came out, not the %d that went in", out.Len(), len(content))
			}
			if got := version(image); got != "6.1.0-test-amd64" {
				t.Errorf("version %q", got)
			}
		})
	}
}

func TestUnpackKeepsWhatItDoesNotKnow(t *testing.T) {
	good := bzImage(pack(t, "lz4", []byte(strings.Repeat("x", 9999))))
	change := func(at int, b ...byte) []byte {
		image := append([]byte(nil), good...)
		copy(image[at:], b)
		return image
	}
	wrongSize := pack(t, "lz4", []byte("content"))
	wrongSize[len(wrongSize)-4]++
	for name, image := range map[string][]byte{
		"empty":               nil,
		"no header":           make([]byte, 4096),
		"too short":           good[:0x240],
		"an old protocol":     change(setupVersion, 0x07, 0x02),
		"payload outside":     change(setupPayload, 0xff, 0xff, 0xff, 0xff),
		"length outside":      change(setupPayload+4, 0xff, 0xff, 0xff, 0xff),
		"no payload":          change(setupPayload+4, 0, 0, 0, 0),
		"an unknown format":   bzImage([]byte("BZh9 and so on")),
		"a damaged payload":   change(5*512+64+4, 0xff, 0xff, 0xff, 0x7f),
		"a wrong size":        bzImage(wrongSize),
		"a magic and no more": bzImage([]byte{0x28, 0xb5, 0x2f, 0xfd}),
	} {
		if err := unpack(io.Discard, image); !errors.Is(err, errKeep) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBootsByPVH(t *testing.T) {
	if !bootsByPVH(bytes.NewReader(pvhKernel())) {
		t.Error("a kernel with the note does not boot")
	}
	other := binary.LittleEndian.AppendUint32(nil, 4)
	other = binary.LittleEndian.AppendUint32(other, 4)
	other = binary.LittleEndian.AppendUint32(other, 18)
	other = append(other, "GNU\x00\x00\x00\x00\x01"...)
	for name, image := range map[string][]byte{
		"no note":        elfFile(nil, nil),
		"another's note": elfFile(nil, other),
		"endless note":   elfFile(nil, bytes.Repeat([]byte{0xff}, 64)),
		"no ELF":         []byte("text"),
	} {
		if bootsByPVH(bytes.NewReader(image)) {
			t.Errorf("%s: boots", name)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	content := append(pvhKernel(), bytes.Repeat([]byte("text "), 100)...)
	for _, z := range formats() {
		f.Add(bzImage(pack(f, z.name, content)))
	}
	f.Add(pvhKernel())
	f.Fuzz(func(t *testing.T, image []byte) {
		var out limited
		if err := unpack(&out, image); err != nil && !errors.Is(err, errKeep) &&
			!errors.Is(err, errFull) {
			t.Fatalf("an error that says neither: %v", err)
		}
		_ = version(image)
		_ = bootsByPVH(bytes.NewReader(image))
		_, _, _ = dependencies(image)
	})
}

var errFull = errors.New("more than the test takes")

// limited allows 8 MiB because a bomb must not fill the memory of the fuzzer.
type limited struct{ n int }

func (l *limited) Write(p []byte) (int, error) {
	if l.n += len(p); l.n > 8<<20 {
		return 0, errFull
	}
	return len(p), nil
}

// TestKernelNamesItself: the banner of the booted kernel counts, not a bzImage's header.
func TestKernelNamesItself(t *testing.T) {
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	elf := func(banner string) []byte { return append(pvhKernel(), banner...) }
	for _, tt := range []struct {
		what    string
		image   []byte
		version string
		test    bool
	}{
		{"an ELF image", elf("Linux version 6.1.192-tpv (tpv@tpv) (gcc) #1"), "6.1.192-tpv", true},
		{"a kernel inside a bzImage",
			bzImage(pack(t, "zstd",
				elf("%s version %s (x)\x00Linux version 6.1.192-tpv+ (a@b) #1"))),
			"6.1.192-tpv+", true},
		{"another kernel", elf("Linux version is what it says\x00Linux version 6.9.0-tpvx (a@b)"),
			"6.9.0-tpvx", false},
		{"no banner", elf("Linux version "), "", false},
		{"a packed kernel that cannot be unpacked", bzImage([]byte("unknown")),
			"6.1.0-test-amd64", false},
	} {
		if err := os.WriteFile(image, tt.image, 0o644); err != nil {
			t.Fatal(err)
		}
		k, err := Ensure(t.Context(), dir, Choice{Image: image}, nil)
		if err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		if k.Version != tt.version || k.Test != tt.test || !k.Own {
			t.Errorf("%s: %+v", tt.what, k)
		}
	}
}

// TestChoice: the upper choice takes precedence, without modules of another image.
func TestChoice(t *testing.T) {
	config := Choice{Image: "/config/image", Modules: "/config/modules"}
	for _, tt := range []struct {
		image, modules string
		given, want    Choice
	}{
		{"", "", Choice{}, Choice{}},
		{"", "", config, config},
		{"/env/image", "", config, Choice{Image: "/env/image"}},
		{"", "/env/modules", config, Choice{Image: "/config/image", Modules: "/env/modules"}},
		{"/env/image", "/env/modules", config,
			Choice{Image: "/env/image", Modules: "/env/modules"}},
	} {
		if got := (Choice{Image: tt.image, Modules: tt.modules}).Over(tt.given); got != tt.want {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
}

func FuzzBannerRelease(f *testing.F) {
	f.Add([]byte("Linux version 6.1.192-tpv (tpv@tpv) (gcc)"))
	f.Fuzz(func(t *testing.T, image []byte) {
		if r := bannerRelease(image); r != "" && !isRelease(r) {
			t.Errorf("%q", r)
		}
	})
}

// TestDecoyBanner: a banner that the kernel never prints does not hide the banner of a test kernel.
func TestDecoyBanner(t *testing.T) {
	const stock, test = "Linux version 6.1.0-50-cloud-amd64 (x)\x00",
		"Linux version 6.1.192-tpv (y)\x00"
	for image, want := range map[string]string{stock + test: "6.1.192-tpv",
		test + stock: "6.1.192-tpv", stock: "6.1.0-50-cloud-amd64",
		stock + "Linux version 5.0 (z)": "6.1.0-50-cloud-amd64"} {
		if got := bannerRelease([]byte(image)); got != want {
			t.Errorf("%q: %q, want %q", image, got, want)
		}
	}
}
