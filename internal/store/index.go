package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"turnstone.dev/turnstone/internal/store/sorted"
)

// An index is a folder of segments. All processes share the files; each process sees the segments
// that existed at its last look. A segment contains everything of the segments that it replaces, so
// either view is correct.
type index struct {
	dir   string
	fault func(op string) error

	mu   sync.Mutex // held while the view changes
	view atomic.Pointer[view]
}

// A view is the known segments, smallest first because recent objects are requested most.
type view struct {
	segs   []*segment
	broken []string // files that are not segments
}

const segSuffix = ".seg"

// current returns the view, and reads it if there is none yet.
func (x *index) current() (*view, error) {
	if v := x.view.Load(); v != nil {
		return v, nil
	}
	return x.refresh()
}

// refresh reads the list of segments.
func (x *index) refresh() (*view, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		old := x.view.Load()
		v, err := x.look(old)
		if errors.Is(err, fs.ErrNotExist) { // a segment was replaced meanwhile
			if _, err := os.Stat(x.dir); err != nil {
				return nil, fail("store.index", x.dir, err)
			}
			continue
		}
		if err != nil {
			return nil, fail("store.index", x.dir, err)
		}
		x.view.Store(v)
		return v, nil
	}
}

func (x *index) look(old *view) (*view, error) {
	entries, err := os.ReadDir(x.dir)
	if err != nil {
		return nil, err
	}
	have := map[string]*segment{}
	if old != nil {
		for _, s := range old.segs {
			have[s.name] = s
		}
	}
	v := &view{}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, segSuffix) || strings.HasPrefix(name, ".") {
			continue
		}
		s := have[name]
		if s == nil {
			if s, err = openSegment(filepath.Join(x.dir, name), name); err != nil {
				if errors.Is(err, errSegment) {
					v.broken = append(v.broken, name)
					continue
				}
				return nil, err
			}
		}
		v.segs = append(v.segs, s)
	}
	slices.SortFunc(v.segs, func(a, b *segment) int { return a.entries - b.entries })
	return v, nil
}

// find returns all places of want.
func (v *view) find(want id) ([]place, error) {
	if len(v.broken) > 0 {
		return nil, segErr(v.broken[0], errors.New("the index is not readable"))
	}
	var buf [2]place
	places := buf[:0]
	for _, s := range v.segs {
		var err error
		if places, err = s.find(want, places); err != nil {
			return nil, err
		}
	}
	return places, nil
}

// packs returns all packs in the index.
func (v *view) packs() map[id]packInfo {
	all := map[id]packInfo{}
	for _, s := range v.segs {
		for _, p := range s.packs {
			all[p.id] = p
		}
	}
	return all
}

// all yields the places of all segments in order, without duplicates.
func (v *view) all(ctx context.Context) iter.Seq2[place, error] {
	sources := make([]iter.Seq2[place, error], len(v.segs))
	for i, s := range v.segs {
		sources[i] = s.all()
	}
	return merge(ctx, sources, func(place) bool { return true })
}

// A newPack is a pack to add to the index. Its entries are sorted.
type newPack struct {
	packInfo
	entries []packEntry
	sum     uint32 // its checksum, if it was read; zero: none
}

// places yields the pack's entries.
func (p *newPack) places() iter.Seq2[place, error] {
	return func(yield func(place, error) bool) {
		for _, e := range p.entries {
			if !yield(place{packEntry: e, pack: p.id, domain: p.domain}, nil) {
				return
			}
		}
	}
}

// add durably adds packs to the index. The caller holds lockIndex. Small segments are merged, so
// that each segment is at least twice as large as all smaller segments together, which keeps their
// number small.
func (x *index) add(ctx context.Context, packs []*newPack) error {
	v, err := x.refresh()
	if err != nil {
		return err
	}
	sum := 0
	for _, p := range packs {
		sum += len(p.entries)
	}
	sum = max(sum, blockEntries) // a block is the minimum size of a file
	n := 0
	for ; n < len(v.segs) && max(v.segs[n].entries, blockEntries) < 2*sum; n++ {
		sum += max(v.segs[n].entries, blockEntries)
	}
	return x.replace(ctx, v.segs[:n], packs, nil)
}

// replace writes a segment with the contents of the segments old and the new packs, except packs
// for which drop returns true, and removes old. The caller holds lockIndex.
func (x *index) replace(ctx context.Context, old []*segment, packs []*newPack,
	drop func(pack id) bool) error {
	infos, known := []packInfo{}, map[id]bool{}
	take := func(p packInfo) {
		if !known[p.id] && (drop == nil || !drop(p.id)) {
			known[p.id] = true
			infos = append(infos, p)
		}
	}
	var sources []iter.Seq2[place, error]
	for _, s := range old {
		for _, p := range s.packs {
			take(p)
		}
		sources = append(sources, s.all())
	}
	for _, p := range packs {
		take(p.packInfo)
		sources = append(sources, p.places())
	}
	merged := merge(ctx, sources, func(p place) bool { return known[p.pack] })
	n := 0
	for _, err := range merged {
		if err != nil {
			return err
		}
		n++
	}
	if n > 0 {
		if err := x.write(infos, n, merged); err != nil {
			return err
		}
	}
	for _, s := range old {
		if err := x.remove(s.name); err != nil {
			return err
		}
	}
	_, err := x.refresh()
	return err
}

func (x *index) remove(name string) error {
	if err := x.fault("index-remove"); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(x.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write durably writes a segment.
func (x *index) write(packs []packInfo, n int, places iter.Seq2[place, error]) error {
	name := fmt.Sprintf("%016x-%d%s", time.Now().UnixNano(), os.Getpid(), segSuffix)
	tmp := filepath.Join(x.dir, "."+name)
	if err := x.fault("index-create"); err != nil {
		return err
	}
	x.removeTmp()
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(faultWriter{f, x.fault}, min(1<<20, (n/blockEntries+2)*blockSize))
	err = writeSegment(w, packs, n, places)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = x.fault("index-fsync")
	}
	if err == nil {
		err = syscall.Fdatasync(int(f.Fd()))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = x.fault("index-rename")
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(x.dir, name))
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// removeTmp removes remains of killed processes: only the holder of the lock writes here.
func (x *index) removeTmp() {
	left, _ := filepath.Glob(filepath.Join(x.dir, ".*"+segSuffix))
	for _, p := range left {
		_ = os.Remove(p)
	}
}

type faultWriter struct {
	f     *os.File
	fault func(op string) error
}

func (w faultWriter) Write(p []byte) (int, error) {
	if err := w.fault("index-write"); err != nil {
		return 0, err
	}
	return w.f.Write(p)
}

// merge yields the places of sorted sources in order, without duplicates, that want accepts.
func merge(ctx context.Context, sources []iter.Seq2[place, error],
	want func(place) bool) iter.Seq2[place, error] {
	return sorted.Merge(ctx, sources, comparePlaces, want)
}

func comparePlaces(a, b place) int {
	if c := bytes.Compare(a.id[:], b.id[:]); c != 0 {
		return c
	}
	return bytes.Compare(a.pack[:], b.pack[:])
}
