package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// TestBombs checks layers with an excessive compression ratio, in every format.
func TestBombs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var gz, zs bytes.Buffer
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	zeros := &bomb{size: 1 << 30}
	if _, err := zeros.WriteTo(z); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := gzip.NewWriterLevel(&gz, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	zeros.size = 600 << 20
	if _, err := zeros.WriteTo(g); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	sparse := sparseTar(1 << 40)
	for name, l := range map[string]v1.Layer{
		"gzip":   ocitest.Raw(gz.Bytes(), nil, types.OCILayer),
		"zstd":   ocitest.Raw(zs.Bytes(), nil, types.OCILayerZStd),
		"sparse": ocitest.Raw(sparse, sparse, types.OCIUncompressedLayer),
	} {
		reg := ocitest.Serve(t, nil)
		reg.Push(t, "x:1", ocitest.ImageOf(t, ocitest.Config{}, l))
		start := time.Now()
		_, err := unpackAt(t, client(t), reg.Host+"/x:1")
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), "bomb") {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: refused after %s", name, time.Since(start))
	}
}

// bomb writes a tar stream with one file of zeros.
type bomb struct{ size int64 }

func (b *bomb) WriteTo(w io.Writer) (int64, error) {
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Name: "zeros", Size: b.size, Mode: 0o644,
		Typeflag: tar.TypeReg}); err != nil {
		return 0, err
	}
	n, err := io.CopyN(tw, zeroReader{}, b.size)
	return n, errors.Join(err, tw.Close())
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// sparseTar returns a stream with one file that is a hole of that size (GNU, old format).
func sparseTar(size int64) []byte {
	h := make([]byte, 512)
	copy(h, "hole")
	copy(h[100:], "0000644\x00")
	copy(h[108:], "0000000\x00")
	copy(h[116:], "0000000\x00")
	copy(h[124:], "00000000000\x00")
	copy(h[136:], "00000000000\x00")
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	// The first sparse part: at size, with no bytes; then the real size, both in base 256.
	put := func(b []byte, n int64) {
		b[0] = 0x80
		for i := range 8 {
			b[11-i] = byte(n >> (8 * i))
		}
	}
	put(h[386:], size)
	copy(h[398:], "00000000000\x00")
	put(h[483:], size)
	sum := 8 * int(' ')
	for i, b := range h {
		if i < 148 || i >= 156 {
			sum += int(b)
		}
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(h, make([]byte, 1024)...)
}

// TestBadLayers checks blobs with correct digests that are not layers.
func TestBadLayers(t *testing.T) {
	good := ocitest.Tar(t, bash)
	for name, c := range map[string]struct {
		packed, plain []byte
		kind          turnstone.Kind
	}{
		"other content": {ocitest.Gzip(t, good), []byte("other"), turnstone.KindIntegrity},
		"cut gzip":      {ocitest.Gzip(t, good)[:40], good, turnstone.KindInvalid},
		"no gzip":       {[]byte{0x1f, 0x8b, 1, 2, 3}, good, turnstone.KindInvalid},
		"no zstd": {[]byte{0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3}, good,
			turnstone.KindInvalid},
		"text":    {[]byte(random(3000)), []byte(random(3000)), turnstone.KindInvalid},
		"cut tar": {good[:300], good[:300], turnstone.KindInvalid},
		"nothing": {nil, nil, ""},
		"plain":   {good, good, ""},
		"two gzip streams": {append(ocitest.Gzip(t, good[:512]), ocitest.Gzip(t, good[512:])...),
			good, ""},
		"data behind the end": {append(good, "more"...), append(good, "more"...), ""},
	} {
		reg := ocitest.Serve(t, nil)
		reg.Push(t, "x:1", ocitest.ImageOf(t, ocitest.Config{},
			ocitest.Raw(c.packed, c.plain, types.OCILayer)))
		_, err := unpackAt(t, client(t), reg.Host+"/x:1")
		if turnstone.KindOf(err) != c.kind && !(c.kind == "" && err == nil) {
			t.Errorf("%s: %v, want kind %q", name, err, c.kind)
		}
	}
}
