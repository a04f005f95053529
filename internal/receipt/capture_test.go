package receipt

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// TestCapture checks for any writes that the output has the whole stream's size, lines and digest,
// that it keeps both ends, and that the file has all of it.
func TestCapture(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(headLimit-2, headLimit+2),
			rapid.IntRange(headLimit+tailLimit-2, headLimit+tailLimit+2),
			rapid.IntRange(0, 1<<20)).Draw(t, "size")
		whole := make([]byte, size)
		rng := rand.New(rand.NewPCG(1, uint64(size)))
		for i := range whole {
			whole[i] = "abcdefg \n"[rng.IntN(9)]
		}
		var live bytes.Buffer
		c := newCapture(dir, "turns/t_x", "step-1.stdout", func(p []byte) { live.Write(p) })
		for rest := whole; len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 100_000).Draw(t, "write"))
			if _, err := c.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		out := c.finish()
		if out.Size != int64(size) || out.Lines != int64(bytes.Count(whole, []byte("\n"))) ||
			out.Digest != turnstone.DigestBytes(whole) {
			t.Fatalf("size %d, lines %d, digest %s of %d bytes", out.Size, out.Lines,
				out.Digest, size)
		}
		if !bytes.HasPrefix(whole, out.Head) || !bytes.HasSuffix(whole, out.Tail) ||
			len(out.Head)+len(out.Tail) > size {
			t.Fatalf("head of %d and tail of %d bytes are not the ends of %d", len(out.Head),
				len(out.Tail), size)
		}
		if !bytes.Equal(live.Bytes(), whole) {
			t.Fatal("the live stream differs")
		}
		_, cut := out.Text()
		if cut != (out.File != "") {
			t.Fatalf("cut %v, file %q", cut, out.File)
		}
		if cut {
			b, err := os.ReadFile(filepath.Join(dir, "step-1.stdout"))
			if err != nil || !bytes.Equal(b, whole) {
				t.Fatalf("the file has %d bytes of %d (%v)", len(b), size, err)
			}
		}
	})
}

func TestCaptureBinaryIsKept(t *testing.T) {
	c := newCapture(t.TempDir(), "turns/t_x", "step-1.stdout", nil)
	_, _ = c.Write([]byte{0, 1, 2, 0xff})
	if out := c.finish(); out.File == "" {
		t.Error("binary output is shown by digest only, and is not in a file")
	}
}

// TestCaptureFullDisk: /dev/full answers every write with ENOSPC.
func TestCaptureFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, "step-1.stdout")); err != nil {
		t.Fatal(err)
	}
	c := newCapture(dir, "turns/t_x", "step-1.stdout", nil)
	for range 10 {
		if n, err := c.Write(make([]byte, 100_000)); n != 100_000 || err != nil {
			t.Fatalf("%d, %v: a full disk must not end the step", n, err)
		}
	}
	out := c.finish()
	if out.Size != 1_000_000 || out.File != "" || !strings.Contains(out.Note, "no space left") {
		t.Errorf("size %d, file %q, note %q", out.Size, out.File, out.Note)
	}
}

func TestCaptureNowhere(t *testing.T) {
	c := newCapture("", "", "step-1.stdout", nil)
	_, _ = c.Write(make([]byte, 1<<20))
	if out := c.finish(); out.Size != 1<<20 || out.File != "" {
		t.Errorf("size %d, file %q", out.Size, out.File)
	}
}
