package lowerdir

import (
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/local"
)

// BenchmarkWriteFromStore reads the files from packs, where they are compressed, and verifies their
// digests.
func BenchmarkWriteFromStore(b *testing.B) {
	blobs, err := local.Open(filepath.Join(b.TempDir(), "blobs"), local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "store"), blobs, store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	put := func(m *model) turnstone.TreeRef {
		batch, err := s.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = batch.Close() }()
		ref := m.put(b, batch)
		if err := batch.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		return ref
	}
	b.Run("20000 files", func(b *testing.B) {
		src, total := manyFiles()
		write(b, s, put(src), total)
		b.ReportMetric(float64(20000*b.N)/b.Elapsed().Seconds(), "files/s")
	})
	b.Run("256 MiB", func(b *testing.B) {
		write(b, s,
			put(dirModel(0o755, map[string]*model{"big": fileModel(randomText(256 << 20))})),
			256<<20)
	})
}
