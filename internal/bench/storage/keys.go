package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/local"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/store/tree"
)

// keyRuns is the number of pairs of measurements; the median of the pairs' ratios counts.
const keyRuns = 5

// MeasureKeys prints the cost of sealing: commits and reads of the same files in a domain and
// publicly, alternately in one run. It works in a folder of parent.
func MeasureKeys(ctx context.Context, parent string, d size.Divisor) error {
	fmt.Printf("## Keys at rest\n\n")
	both := fileSets(d)
	slices.Reverse(both)
	for _, set := range both {
		dir := filepath.Join(parent, "keys")
		err := keySet(ctx, dir, set, d.Of(keyRuns))
		if rerr := removeAll(dir); err == nil {
			err = rerr
		}
		if err != nil {
			return fmt.Errorf("%s: %w", set.title, err)
		}
	}
	return sealedFiles(d)
}

// A cost is what an operation took.
type cost struct{ wall, cpu time.Duration }

// measured runs f and syncs the file system of dir.
func measured(dir string, f func() error) (cost, error) {
	d, err := os.Open(dir)
	if err != nil {
		return cost{}, err
	}
	defer func() { _ = d.Close() }()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return cost{}, err
	}
	began, used := time.Now(), cpuTime()
	if err := f(); err != nil {
		return cost{}, err
	}
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return cost{}, err
	}
	return cost{time.Since(began), cpuTime() - used}, nil
}

func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // fails for other arguments only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// keyRow has the costs of an operation, by pairs: public and sealed.
type keyRow struct {
	name  string
	costs [][2]cost
}

func keySet(ctx context.Context, dir string, set fileSet, runs int) error {
	src := filepath.Join(dir, "disk", "upper")
	if err := os.MkdirAll(src, 0o755); err != nil {
		return err
	}
	if err := set.make(ctx, src); err != nil {
		return err
	}
	count, size, err := measureFiles(src)
	if err != nil {
		return err
	}
	c, err := newCommitter(ctx, filepath.Dir(src), filepath.Join(dir, "scratch.ext4"), size)
	if err != nil {
		return err
	}
	key, err := seal.New(seal.NewKey())
	if err != nil {
		return err
	}
	rows := []*keyRow{{name: "commit"}, {name: "read all"}}
	var stored [2]int64
	for range runs {
		var commit, read [2]cost
		for i, d := range []*seal.Domain{nil, key} {
			c.domain = d
			repo := filepath.Join(dir, "repo")
			if err := c.prepare(ctx, repo); err != nil {
				return err
			}
			if commit[i], err = measured(repo, func() error { return c.commit(ctx, repo) }); err != nil {
				return err
			}
			if read[i], err = measured(repo, func() error { return c.read(ctx, repo) }); err != nil {
				return err
			}
			if _, stored[i], err = measureFiles(repo); err != nil {
				return err
			}
			if err := removeAll(repo); err != nil {
				return err
			}
		}
		rows[0].costs = append(rows[0].costs, commit)
		rows[1].costs = append(rows[1].costs, read)
	}
	fmt.Printf("%s: %d files, %.0f MB; stored: %.0f MB public, %.0f MB sealed.\n\n", set.title, count,
		float64(size)/1e6, float64(stored[0])/1e6, float64(stored[1])/1e6)
	printKeys(rows, size)
	return nil
}

func printKeys(rows []*keyRow, size int64) {
	fmt.Printf("| | public | sealed | ratio | CPU time public | sealed | ratio |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		var wall, cpu [2][]time.Duration
		var wallRatio, cpuRatio []time.Duration // in millionths
		for _, c := range r.costs {
			for i := range c {
				wall[i], cpu[i] = append(wall[i], c[i].wall), append(cpu[i], c[i].cpu)
			}
			wallRatio = append(wallRatio, c[1].wall*1e6/c[0].wall)
			cpuRatio = append(cpuRatio, c[1].cpu*1e6/max(c[0].cpu, 1))
		}
		speed := func(d time.Duration) string {
			return fmt.Sprintf("%.2f s, %.2f GB/s", d.Seconds(), float64(size)/1e9/d.Seconds())
		}
		fmt.Printf("| %s | %s | %s | **%.2f** | %.2f s | %.2f s | %.2f |\n", r.name,
			speed(median(wall[0])), speed(median(wall[1])), float64(median(wallRatio))/1e6,
			median(cpu[0]).Seconds(), median(cpu[1]).Seconds(), float64(median(cpuRatio))/1e6)
	}
	fmt.Println()
}

// read reads all files of the last commit.
func (c *committer) read(ctx context.Context, repo string) error {
	blobs, err := local.Open(filepath.Join(repo, "blobs"), local.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = blobs.Close() }()
	s, err := store.Open(ctx, filepath.Join(repo, "index"), blobs, store.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	s = s.In(c.domain)
	return tree.Walk(ctx, s, c.head, "/", func(_ string, e *tree.Entry) error {
		if e.Type != tree.File {
			return nil
		}
		r, err := s.OpenContent(ctx, turnstone.Content{Digest: e.Content.Digest,
			Chunks: e.Content.Chunks, Size: e.Size})
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r)
		return errors.Join(err, r.Close())
	})
}

// sealedFiles prints the speed of sealed files, in memory.
func sealedFiles(divide size.Divisor) error {
	d, err := seal.New(seal.NewKey())
	if err != nil {
		return err
	}
	plain := make([]byte, divide.Of(256<<20))
	var file bytes.Buffer
	file.Grow(int(seal.StreamSize(int64(len(plain)))))
	var write, read, parts []time.Duration
	for range divide.Of(keyRuns) {
		file.Reset()
		began := time.Now()
		w, err := d.NewWriter(&file, "bench")
		if err != nil {
			return err
		}
		if _, err := w.Write(plain); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		write = append(write, time.Since(began))
		began = time.Now()
		r, err := d.NewReader(bytes.NewReader(file.Bytes()), "bench")
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
		read = append(read, time.Since(began))
		began = time.Now()
		f, err := d.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()), "bench")
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, io.NewSectionReader(f, 0, f.Size())); err != nil {
			return err
		}
		parts = append(parts, time.Since(began))
	}
	speed := func(d []time.Duration) float64 {
		return float64(len(plain)) / 1e9 / median(d).Seconds()
	}
	fmt.Printf("A sealed file, in memory, one goroutine: written at %.1f GB/s, read at %.1f GB/s, "+
		"read by offsets at %.1f GB/s.\n\n", speed(write), speed(read), speed(parts))
	return nil
}
