package store_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone/internal/store"
)

// cpu returns the used processor time, which is more reliable than wall time on a busy machine.
func cpu(b *testing.B, before syscall.Rusage, n int64) {
	var now syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &now)
	sec := time.Duration(now.Utime.Nano() - before.Utime.Nano() +
		now.Stime.Nano() - before.Stime.Nano()).Seconds()
	b.ReportMetric(sec*1e3/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(n)*float64(b.N)/1e6/sec, "MB/cpu-s")
}

func usage() (r syscall.Rusage) {
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return r
}

// sources returns the files of a real source tree, up to n of them, repeated in variations if there
// are fewer.
func sources(b *testing.B, n int) (files [][]byte, sum int64) {
	b.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Skip("the go command is needed: ", err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && len(files) < n {
			if c, err := os.ReadFile(p); err == nil && len(c) < 64<<10 {
				files = append(files, c)
			}
		}
		return nil
	})
	check(b, err)
	for i := 0; len(files) < n; i++ {
		files = append(files, append([]byte(strconv.Itoa(i)), files[i]...))
	}
	for _, f := range files {
		sum += int64(len(f))
	}
	return files, sum
}

// BenchmarkPutSmall puts 20,000 files of a source tree from two goroutines, and compares with the
// cost of hashing and compressing them.
func BenchmarkPutSmall(b *testing.B) {
	files, sum := sources(b, 20_000)
	putAndHash(b, files, sum)
	b.Run("floor-zstd", func(b *testing.B) {
		b.SetBytes(sum)
		enc, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithEncoderCRC(false))
		before := usage()
		var buf []byte
		for b.Loop() {
			for _, f := range files {
				buf = enc.EncodeAll(f, buf[:0])
			}
		}
		cpu(b, before, sum)
	})
}

// putAndHash measures a commit of files of sum bytes, and their SHA-256 alone.
func putAndHash(b *testing.B, files [][]byte, sum int64) {
	b.Run("store", func(b *testing.B) {
		b.SetBytes(sum)
		before := usage()
		for b.Loop() {
			b.StopTimer()
			s := open(b, b.TempDir())
			b.StartTimer()
			batch, err := s.Begin(b.Context())
			check(b, err)
			putAll(b, batch, files)
			check(b, batch.Flush(b.Context()))
			check(b, batch.Close())
		}
		cpu(b, before, sum)
	})
	b.Run("floor-sha256", func(b *testing.B) {
		b.SetBytes(sum)
		before := usage()
		for b.Loop() {
			for _, f := range files {
				sha256.Sum256(f)
			}
		}
		cpu(b, before, sum)
	})
}

func putAll(b *testing.B, batch *store.Batch, files [][]byte) {
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for i := g; i < len(files); i += 2 {
				if _, err := batch.PutContent(b.Context(), bytes.NewReader(files[i]),
					int64(len(files[i]))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkPutLarge puts 1 GiB in 16 files: half noise, half text.
func BenchmarkPutLarge(b *testing.B) {
	const size = 64 << 20
	lines := text(size, 1)
	file := func(i int) []byte {
		if i%2 == 0 {
			return noise(size, i)
		}
		p := bytes.Clone(lines)
		for at := 0; at+8 < size; at += 5000 { // different from the other files
			copy(p[at:], strconv.Itoa(i*1000+at))
		}
		return p
	}
	files := make([][]byte, 16)
	for i := range files {
		files[i] = file(i)
	}
	putAndHash(b, files, size*16)
}

// BenchmarkHoles puts and reads a sparse file of 1 GiB, whose floor is its own digest: one hash each.
func BenchmarkHoles(b *testing.B) {
	const size = 1 << 30
	s := open(b, b.TempDir())
	batch := begin(b, s)
	c, err := batch.PutContent(b.Context(), io.LimitReader(zeros{}, size), size)
	check(b, err)
	check(b, batch.Flush(b.Context()))
	b.Run("put", func(b *testing.B) {
		b.SetBytes(size)
		before := usage()
		for b.Loop() {
			_, err := batch.PutContent(b.Context(), io.LimitReader(zeros{}, size), size)
			check(b, err)
		}
		cpu(b, before, size)
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		before := usage()
		for b.Loop() {
			r, err := s.OpenContent(b.Context(), c)
			check(b, err)
			_, err = io.Copy(io.Discard, r)
			check(b, err)
			check(b, r.Close())
		}
		cpu(b, before, size)
	})
}

// BenchmarkCommit opens a store with 100 packs and 100,000 objects in its index, and commits
// nothing, or a single object.
func BenchmarkCommit(b *testing.B) {
	root := b.TempDir()
	fill := open(b, root)
	for p := range 100 {
		batch := begin(b, fill)
		for i := range 1000 {
			put(b, batch, []byte(strconv.Itoa(p*1000+i)))
		}
		check(b, batch.Flush(b.Context()))
		check(b, batch.Close())
	}
	for name, object := range map[string]func(i int) []byte{
		"nothing-new": func(i int) []byte { return []byte(strconv.Itoa(i)) },
		"one-object": func(i int) []byte {
			return []byte("new " + strconv.Itoa(i) + b.Name() + strconv.Itoa(b.N))
		},
	} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				s := open(b, root)
				batch, err := s.Begin(b.Context())
				check(b, err)
				put(b, batch, object(i))
				check(b, batch.Flush(b.Context()))
				check(b, batch.Close())
				_ = s.Close()
			}
		})
	}
}
