package api_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/api"
)

// TestGunzip: a decompressor gives whole messages, and of a bomb no more than shows that it is one.
func TestGunzip(t *testing.T) {
	d := api.Gunzip(1000)()
	for n, whole := range map[int]bool{0: true, 1: true, 999: true, 1000: true, 1001: false,
		64 << 20: false} {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := io.Copy(w, io.LimitReader(zeros{}, int64(n))); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		size := b.Len()
		if err := d.Reset(&b); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(d)
		if whole && (err != nil || len(got) != n) {
			t.Errorf("%d bytes became %d, %v", n, len(got), err)
		}
		if !whole && (len(got) != 1001 ||
			n > 1001 && !strings.Contains(fmt.Sprint(err), "1000")) {
			t.Errorf("%d bytes became %d, %v", n, len(got), err)
		}
		if n > 1<<20 && b.Len() < size/2 {
			t.Errorf("%d of %d bytes of a bomb were read", size-b.Len(), size)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
