package lowerdir

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

var keyRule = lazyregexp.New(`^[0-9a-f]{64}$`)

var errLost = errors.New(
	"an image was removed right after its creation; is the budget of images large enough?")

func unavailable(path string, err error) error {
	return turnstone.Classify("image.cache", turnstone.KindUnavailable, path, err,
		"free some space on the disk that contains "+path)
}

// A sidecar is a file beside an image that describes it.
type sidecar struct {
	Stamp filestamp.Stamp `json:"stamp"`
	// Boot is the host's boot in which the image was written, until the image is durable: after a
	// power loss, the image may be incomplete.
	Boot  string `json:"boot,omitempty"`
	Bytes int64  `json:"bytes"` // on disk

	Recipe turnstone.ImageRecipe `json:"recipe"`
}

func (c *Cache) imagePath(key string) string   { return filepath.Join(c.dir, "images", key) }
func (c *Cache) sidecarPath(key string) string { return c.imagePath(key) + ".json" }
func (c *Cache) lockPath(key string) string    { return filepath.Join(c.dir, "locks", key+".lock") }

func (c *Cache) mkdirs() error {
	for _, sub := range []string{"images", "plans", "locks"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o700); err != nil {
			return unavailable(c.dir, err)
		}
	}
	return nil
}

// whole returns the image's sidecar if the image exists and is unchanged.
func (c *Cache) whole(key string) (sidecar, bool) {
	var s sidecar
	b, err := os.ReadFile(c.sidecarPath(key))
	if err != nil || json.Unmarshal(b, &s) != nil || !s.Stamp.Fresh(c.imagePath(key)) {
		return s, false
	}
	return s, s.Boot == "" || s.Boot == bootID()
}

// usable counts the segments whose images exist, up to the first missing image.
func (c *Cache) usable(segments []segment) int {
	for i, s := range segments {
		if _, ok := c.whole(s.Image); !ok {
			return i
		}
	}
	return len(segments)
}

// openImages are images in use: an image is not removed while it has a holder.
type openImages []*os.File

func (h openImages) paths() []string {
	paths := make([]string, len(h))
	for i, f := range h {
		paths[i] = f.Name()
	}
	return paths
}

func (h openImages) release() {
	for _, f := range h {
		_ = f.Close()
	}
}

// holdAll holds the segments' images. missing is the first image that is missing or damaged; then
// no image is held.
func (c *Cache) holdAll(segments []segment) (all openImages, missing string) {
	for _, s := range segments {
		f, ok := c.hold(s.Image)
		if !ok {
			all.release()
			return nil, s.Image
		}
		all = append(all, f)
	}
	return all, ""
}

func (c *Cache) hold(key string) (*os.File, bool) {
	f, err := os.Open(c.imagePath(key))
	if err != nil {
		return nil, false
	}
	// A process that removes the image holds the lock for the duration.
	if err = unix.Flock(int(f.Fd()), unix.LOCK_SH); err == nil {
		if _, ok := c.whole(key); ok && sameFile(f, f.Name()) {
			touch(c.sidecarPath(key))
			return f, true
		}
	}
	_ = f.Close()
	return nil, false
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// touch records that a file is in use.
func touch(path string) {
	now := time.Now()
	_ = os.Chtimes(path, now, now)
}

// make writes the image of s, which spans the newest turns of h, unless another process has done
// so.
func (c *Cache) make(ctx context.Context, s *segment, h *walk) error {
	var items []Item
	for i := range s.Turns {
		item, ok, err := h.at(i)
		if err != nil {
			return err
		}
		if !ok {
			return unavailable(c.dir,
				fmt.Errorf("the history has %d turns less than before", s.Turns-i))
		}
		items = append(items, item)
	}
	s.Image = imageKey(s.From, s.To, items)
	if side, ok := c.whole(s.Image); ok {
		s.Bytes = side.Bytes
		return nil
	}
	lock, err := statedir.Acquire(ctx, c.lockPath(s.Image), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	if side, ok := c.whole(s.Image); ok {
		s.Bytes = side.Bytes
		return nil
	}
	extra, err := contextFiles(ctx, items)
	if err != nil {
		return err
	}
	index, err := indexFile(h)
	if err != nil {
		return err
	}
	s.Bytes, err = c.write(ctx, s, append(extra, index))
	return err
}

// imageKey returns an image's name, which depends on all of its inputs. The key of the newest turn
// covers the older turns, which the image's index also lists.
func imageKey(from, to turnstone.TreeRef, items []Item) string {
	var b strings.Builder
	fmt.Fprintf(&b, "turnstone image %d\n%s\n%s\n", planFormat, from.Root, to.Root)
	for _, item := range items {
		fmt.Fprintf(&b, "%s\n", item.Key)
	}
	return turnstone.DigestBytes([]byte(b.String())).Hex()
}

// contextFiles returns the files that items, newest first, add to /context.
func contextFiles(ctx context.Context, items []Item) ([]File, error) {
	var files []File
	for _, item := range slices.Backward(items) {
		if item.Context == nil {
			continue
		}
		more, err := item.Context(ctx)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return files, nil
}

// indexTurns is the number of turns in /context/index.md; older turns are only in its directories.
const indexTurns = 100

// indexFile returns index.md. Each image on top of a stack has a new index.md, which hides the
// older files.
func indexFile(h *walk) (File, error) {
	var b strings.Builder
	b.WriteString("# What happened before\n\n" +
		"Each turn's receipt is in turns/<number>/receipt.md, the full outputs of its steps " +
		"beside it. The newest turn comes first.\n\n")
	lines := 0
	for i := 0; ; i++ {
		item, ok, err := h.at(i)
		if err != nil {
			return File{}, err
		}
		if !ok {
			break
		}
		if item.Line == "" {
			continue // not a turn: a layer of the template
		}
		lines++
		if i == indexTurns {
			fmt.Fprintf(&b, "\nEarlier turns, from %d on, are in turns/ too.\n", item.Number)
			break
		}
		b.WriteString("- " + strings.ReplaceAll(item.Line, "\n", " ") + "\n")
	}
	if lines == 0 {
		b.Reset()
		b.WriteString("# What happened before\n\nNothing: this is the first turn.\n")
	}
	return File{Path: "index.md", Data: []byte(b.String())}, nil
}

// write writes an image under a temporary name and then renames it.
func (c *Cache) write(ctx context.Context, s *segment, extra []File) (int64, error) {
	f, err := os.CreateTemp(filepath.Join(c.dir, "images"), tempPrefix+s.Image[:16]+"-*")
	if err != nil {
		return 0, unavailable(c.dir, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil { // it is in use: see sweep
		return 0, unavailable(c.dir, err)
	}
	if err := writeImage(ctx, c.r, s.From, s.To, uuid(s.Image), extra, f); err != nil {
		if turnstone.IsFull(err) {
			return 0, unavailable(c.dir, err)
		}
		return 0, err
	}
	path := c.imagePath(s.Image)
	_ = os.Remove(c.sidecarPath(s.Image)) // of an older, damaged image
	if err := os.Rename(f.Name(), path); err != nil {
		return 0, unavailable(path, err)
	}
	st, err := f.Stat()
	if err != nil {
		return 0, unavailable(path, err)
	}
	side := sidecar{Boot: bootID(), Bytes: onDisk(st), Recipe: turnstone.ImageRecipe{Image: s.Image,
		From: s.From, To: s.To, Newest: s.Newest, Turns: s.Turns}}
	if side.Stamp, err = filestamp.Quick(path); err != nil {
		return 0, unavailable(path, err)
	}
	return side.Bytes, c.note(s.Image, side)
}

// uuid returns the UUID of the image with this key, as RFC 9562 makes one of a hash (version 8).
func uuid(key string) (id [16]byte) {
	sum := sha256.Sum256([]byte(key))
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

func (c *Cache) note(key string, s sidecar) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return replace(c.sidecarPath(key), b)
}

// persist makes an image durable if necessary.
func (c *Cache) persist(key string) error {
	f, ok := c.hold(key)
	if !ok {
		return nil // removed meanwhile, which is harmless
	}
	defer f.Close()
	side, ok := c.whole(key)
	if !ok || side.Boot == "" {
		return nil
	}
	if err := f.Sync(); err != nil {
		return unavailable(f.Name(), err)
	}
	if err := filestamp.SyncDir(filepath.Dir(f.Name())); err != nil {
		return unavailable(f.Name(), err)
	}
	side.Boot = ""
	return c.note(key, side)
}

// replace atomically writes a file that need not survive a power loss: its content is checked and
// can be computed again.
func replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return unavailable(path, err)
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return unavailable(path, err)
	}
	return nil
}

func onDisk(fi os.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return min(fi.Size(), substrate.SlotSize)
}

// bootID returns the ID of the host's current boot.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
