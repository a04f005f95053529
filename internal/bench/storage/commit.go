// Package storage measures the cost of keeping a turn's files, compared with other programs that
// keep files.
package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/local"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/store/tree"
)

// commitRuns is the number of measurements of each way of keeping files; the median counts.
const commitRuns = 3

// A fileSet is files to keep.
type fileSet struct {
	title string
	make  func(ctx context.Context, dir string) error
}

// fileSets returns many small files, and few large ones.
func fileSets(d size.Divisor) []fileSet {
	many, large := d.Of(20_000), d.Of(128<<20) // the line below a title has the numbers
	return []fileSet{
		{"20,000 files of source code",
			func(ctx context.Context, dir string) error { return sourceFiles(ctx, dir, many) }},
		{"1 GiB in eight files, four of them text",
			func(_ context.Context, dir string) error { return largeFiles(dir, large) }},
	}
}

// Measure prints the cost of keeping a turn's files: from the frozen scratch disk until everything
// is durable, compared with other programs that keep files. All of them read from warm page caches,
// and end with everything on the disk. Measure works in a folder of parent. A quick run leaves out programs that
// are not installed, and has the others keep only the first files.
func Measure(ctx context.Context, parent string, d size.Divisor) error {
	fmt.Printf("## Commit\n\n")
	for i, set := range fileSets(d) {
		dir := filepath.Join(parent, "commit")
		err := commitSet(ctx, dir, set, d, i == 0 || d == size.Full)
		if rerr := removeAll(dir); err == nil {
			err = rerr
		}
		if err != nil {
			return fmt.Errorf("%s: %w", set.title, err)
		}
	}
	return nil
}

// A keeper is a way of keeping files.
type keeper struct {
	name     string
	programs []string // that it runs, in PATH
	peer     bool     // a program to compare with
	// keep keeps the files in the new or existing repository at repo. Everything in it is durable
	// afterwards.
	keep func(ctx context.Context, repo string) error
	// prepare creates an empty repository, which is not measured; it may be nil.
	prepare func(ctx context.Context, repo string) error
	again   bool // also measure a second run
	noRepo  bool
}

func commitSet(ctx context.Context, dir string, set fileSet, d size.Divisor, compare bool) error {
	src := filepath.Join(dir, "disk", "upper")
	if err := os.MkdirAll(src, 0o755); err != nil {
		return err
	}
	if err := set.make(ctx, src); err != nil {
		return err
	}
	count, bytes, err := measureFiles(src)
	if err != nil {
		return err
	}
	ours, err := newCommitter(ctx, filepath.Dir(src), filepath.Join(dir, "scratch.ext4"), bytes)
	if err != nil {
		return err
	}
	others, absent := tools(src), ""
	if d > size.Full {
		others, absent = installed(others)
	}
	if !compare {
		others, absent = nil, ""
	}
	keepers := append([]keeper{{name: "turnstone", keep: ours.commit, prepare: ours.prepare,
		again: true}}, others...)
	first, second, stored := map[string][]time.Duration{}, map[string][]time.Duration{},
		map[string]int64{}
	for range d.Of(commitRuns) { // alternately, so that a slow minute affects all of them
		for _, k := range keepers {
			repo := filepath.Join(dir, "repo")
			if err := commitOnce(ctx, k, repo, first, second, stored); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			if err := removeAll(repo); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%s: %d files, %.0f MB.%s\n\n", set.title, count, float64(bytes)/1e6, absent)
	printCommit(keepers, first, second, stored, bytes)
	return nil
}

func commitOnce(ctx context.Context, k keeper, repo string, first,
	second map[string][]time.Duration, stored map[string]int64) error {
	if k.prepare != nil {
		if err := k.prepare(ctx, repo); err != nil {
			return err
		}
	} else if err := os.MkdirAll(repo, 0o755); err != nil {
		return err
	}
	took, err := timed(ctx, k, repo)
	if err != nil {
		return err
	}
	first[k.name] = append(first[k.name], took)
	if _, stored[k.name], err = measureFiles(repo); err != nil || !k.again {
		return err
	}
	took, err = timed(ctx, k, repo)
	second[k.name] = append(second[k.name], took)
	return err
}

// timed runs k, and flushes its file system; other programs' data is flushed before.
func timed(ctx context.Context, k keeper, repo string) (time.Duration, error) {
	dir, err := os.Open(repo)
	if err != nil {
		return 0, err
	}
	defer func() { _ = dir.Close() }()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := k.keep(ctx, repo); err != nil {
		return 0, err
	}
	if !k.noRepo {
		if err := unix.Syncfs(int(dir.Fd())); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func printCommit(keepers []keeper, first, second map[string][]time.Duration,
	stored map[string]int64, size int64) {
	fastest := time.Duration(0)
	for _, k := range keepers {
		if t := median(first[k.name]); k.peer && (fastest == 0 || t < fastest) {
			fastest = t
		}
	}
	fmt.Printf("| | seconds | GB/s | the fastest of restic, git and ostree takes | stored | once " +
		"more, nothing changed |\n|---|---|---|---|---|---|\n")
	for _, k := range keepers {
		t := median(first[k.name])
		kept, again, times := "–", "–", "–"
		if fastest > 0 {
			times = fmt.Sprintf("%.1f times that", float64(fastest)/float64(t))
		}
		if !k.noRepo {
			kept = fmt.Sprintf("%.0f MB", float64(stored[k.name])/1e6)
		}
		if k.again {
			again = ms(median(second[k.name]))
		}
		fmt.Printf("| %s | %.2f | %.2f | %s | %s | %s |\n", k.name, t.Seconds(),
			float64(size)/1e9/t.Seconds(), times, kept, again)
	}
	fmt.Println()
}

// A committer commits a scratch disk as the executor does.
type committer struct {
	disk   string
	size   int64
	parent turnstone.TreeRef
	head   turnstone.TreeRef // of the last commit
	domain *seal.Domain      // nil: public
}

// newCommitter creates a disk from the files in dir, which contains the overlay's upper directory.
// The creation is not measured, because the guest does it in a turn.
func newCommitter(ctx context.Context, dir, disk string, files int64) (*committer, error) {
	c := &committer{disk: disk, size: files*3/2 + 512<<20}
	f, err := os.Create(disk)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(c.size), f.Close()); err != nil {
		return nil, err
	}
	// The options of a sandbox's disk (internal/driver/qemu).
	return c, command(ctx, "", "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096",
		"-i", "8192",
		"-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2", "-E",
		"lazy_itable_init=1,nodiscard,root_owner=0:0", "-d", dir, disk)
}

// prepare creates a store with the tree below the commit: an empty tree.
func (c *committer) prepare(ctx context.Context, repo string) error {
	return c.with(ctx, repo, func(b *store.Batch) error {
		top := tree.Entry{Attr: tree.Attr{Type: tree.Dir, Mode: 0o755}}
		var err error
		if top.Tree, top.Hash, err = tree.PutDirectory(ctx, b, nil); err != nil {
			return err
		}
		c.parent, err = tree.PutRoot(ctx, b, &tree.Root{Entry: top})
		c.head = turnstone.TreeRef{}
		return err
	})
}

func (c *committer) with(ctx context.Context, repo string, do func(*store.Batch) error) error {
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
	batch, err := s.In(c.domain).Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = batch.Close() }()
	if err := do(batch); err != nil {
		return err
	}
	return batch.Flush(ctx)
}

// commit commits the disk's upper directory on the parent. A second call commits a turn on the
// first turn's state with an empty upper directory.
func (c *committer) commit(ctx context.Context, repo string) error {
	return c.with(ctx, repo, func(b *store.Batch) error {
		f, err := os.Open(c.disk)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		disk, err := ext4.Open(f, c.size)
		if err != nil {
			return err
		}
		parent, at := c.parent, "upper"
		if c.head != (turnstone.TreeRef{}) {
			parent, at = c.head, "lost+found" // an empty directory
		}
		upper, err := disk.Lookup(at)
		if err != nil {
			return err
		}
		if c.head, _, err = layer.Apply(ctx, b, parent, upper, layer.Options{}); err != nil {
			return err
		}
		_, err = b.Put(ctx, []byte(`{"a":"turn's record"}`+time.Now().String()))
		return err
	})
}

// measureFiles returns the number of files below dir, and their bytes.
func measureFiles(dir string) (count int, size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		count++
		size += info.Size()
		return nil
	})
	return count, size, err
}

// removeAll also removes files in read-only folders.
func removeAll(dir string) error {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

func median(d []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(d))[len(d)/2]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
