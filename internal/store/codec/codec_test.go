package codec_test

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"turnstone.dev/turnstone/internal/store/codec"
)

// TestBomb checks that data that decompresses to more than the recorded size is rejected.
func TestBomb(t *testing.T) {
	c := codec.New(1)
	defer c.Close()
	raw := make([]byte, 64<<20)
	stored, err := c.Compress(nil, raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{100_000, len(stored) - 1, len(raw) - 1, len(raw) + 1,
		codec.MaxObject + 1} {
		if _, _, err := c.Expand(stored, size); err == nil {
			t.Errorf("64 MiB are taken for %d bytes", size)
		}
	}
	b, digest, err := c.Expand(stored, len(raw))
	if err != nil || !bytes.Equal(b, raw) || digest != sha256.Sum256(raw) {
		t.Errorf("what it is is not taken: %v", err)
	}
}
