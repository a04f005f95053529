package lowerdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// BenchmarkWrite writes the image of a turn with many small files, and of a turn with a large file,
// from memory to the disk of the temporary directory.
func BenchmarkWrite(b *testing.B) {
	b.Run("20000 files", func(b *testing.B) {
		m := treetest.NewStore()
		src, total := manyFiles()
		write(b, m, src.put(b, m), total)
		b.ReportMetric(float64(20000*b.N)/b.Elapsed().Seconds(), "files/s")
	})
	b.Run("1 GiB", func(b *testing.B) {
		const size = 1 << 30
		r := pattern{Store: treetest.NewStore(), size: size}
		file := &model{attr: tree.Attr{Type: tree.File, Mode: 0o644, Size: size},
			digest: "of the pattern"}
		root := dirModel(0o755, map[string]*model{"big": file})
		ref := root.put(b, r)
		write(b, r, ref, size)
	})
}

// manyFiles is a source tree of 20,000 files.
func manyFiles() (src *model, total int64) {
	text := randomText(16 << 20)
	src = dirModel(0o755, nil)
	for i := range 200 {
		dir := dirModel(0o755, nil)
		for j := range 100 {
			size := 500 + (i*j*7919)%9000
			total += int64(size)
			dir.children[fmt.Sprint("file", j, ".go")] = fileModel(text[(i*100+j)*100:][:size])
		}
		src.children[fmt.Sprint("pkg", i)] = dir
	}
	return src, total
}

// randomText has six bits in each byte.
func randomText(size int) string {
	r := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, size)
	for i := 0; i < size; i += 8 {
		v := r.Uint64()
		for k := i; k < min(i+8, size); k++ {
			b[k] = ' ' + byte(v&63)
			v >>= 8
		}
	}
	return string(b)
}

func write(b *testing.B, r tree.Reader, ref turnstone.TreeRef, size int64) {
	b.Helper()
	f, err := os.CreateTemp(b.TempDir(), "image")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b.SetBytes(size)
	for b.Loop() {
		if err := errors.Join(f.Truncate(0),
			writeImage(b.Context(), r, turnstone.TreeRef{}, ref, uuid("test"), nil,
				f)); err != nil {
			b.Fatal(err)
		}
	}
}

// pattern has a single large content.
type pattern struct {
	*treetest.Store
	size int64
}

func (p pattern) PutContent(context.Context, io.Reader, int64) (turnstone.Content, error) {
	return turnstone.Content{Digest: turnstone.DigestBytes([]byte("large")), Size: p.size}, nil
}

func (p pattern) OpenContent(context.Context, turnstone.Content) (io.ReadCloser, error) {
	return &patternReader{left: p.size, block: []byte(fmt.Sprintf("%0100000d", 7))}, nil
}

type patternReader struct {
	left  int64
	block []byte
}

func (p *patternReader) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(int64(len(b)), p.left)], p.block)
	p.left -= int64(n)
	return n, nil
}

func (p *patternReader) Close() error { return nil }

// BenchmarkStack requests the known stack of a long history.
func BenchmarkStack(b *testing.B) {
	m := treetest.NewStore()
	cache := New(filepath.Join(b.TempDir(), "images"), m, Options{})
	now := dirModel(0o755, nil)
	var items []Item
	for i := range 5 {
		now = now.clone(map[*model]*model{})
		now.children[fmt.Sprint("f", i)] = fileModel("x")
		items = append([]Item{{Key: turnstone.DigestBytes(fmt.Append(nil, i)), Number: i + 1,
			Tree: now.put(b, m), Context: contextOf(i + 1)}}, items...)
		_, release, err := cache.Stack(b.Context(), turnstone.TreeRef{}, historyOf(items))
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
	for b.Loop() {
		_, release, err := cache.Stack(b.Context(), turnstone.TreeRef{}, historyOf(items))
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
}
