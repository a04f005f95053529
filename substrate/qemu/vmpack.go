package qemu

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/disk"
	"turnstone.dev/turnstone/substrate/snapshots"
)

var _ substrate.Keeper = (*Substrate)(nil)

// packFormat is the version of a packManifest.
const packFormat = 1

// A packManifest describes a machine that is kept for long, as what differs from
// the snapshot of its template.
type packManifest struct {
	Format   int              `json:"format"`
	Identity identity         `json:"identity"`
	Taken    time.Time        `json:"taken"`
	Base     turnstone.Digest `json:"base"` // of the memory in the template's snapshot
	State    turnstone.Digest `json:"state"`
	RAM      difference       `json:"ram"`
	Scratch  difference       `json:"scratch"`
	Layers   []string         `json:"layers,omitempty"` // names of their images
	Sum      turnstone.Digest `json:"sum"`              // of the manifest without this
}

// sum digests the manifest without its sum: a bit that flips in a stretch's offset
// would else put pages elsewhere.
func (p packManifest) sum() turnstone.Digest {
	p.Sum = ""
	b, _ := json.Marshal(p) // plain data always encodes
	return turnstone.DigestBytes(b)
}

// A difference is what makes one file of another: stretches, whose bytes are one
// behind the other in a file of their own.
type difference struct {
	Size int64            `json:"size"` // of the file that it makes
	Runs [][2]int64       `json:"runs"` // offset and length, ascending
	Data turnstone.Digest `json:"data"`
}

const (
	ramData     = "ram.data"
	scratchData = "scratch.data"
)

// maxPack bounds what is read of a packManifest, in bytes: some million stretches.
const maxPack = 64 << 20

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir, out string) (substrate.Packed, error) {
	p, err := s.pack(ctx, m, dir, out)
	if err != nil {
		_ = os.RemoveAll(out)
		return p, s.wrap(err)
	}
	return p, nil
}

func (s *Substrate) pack(ctx context.Context, m substrate.Machine, dir, out string) (substrate.Packed, error) {
	var packed substrate.Packed
	man, snap, err := s.openVM(m, dir)
	if err != nil {
		return packed, err
	}
	defer func() { _ = snap.ram.Close() }()
	base, baseRAM, baseScratch, err := s.base(ctx, man.Identity)
	if err != nil {
		return packed, err
	}
	defer func() { _, _ = baseRAM.Close(), baseScratch.Close() }()
	scratch, err := os.Open(snap.scratch)
	if err != nil {
		return packed, err
	}
	defer func() { _ = scratch.Close() }()
	if err := os.Mkdir(out, 0o700); err != nil {
		return packed, err
	}
	p := packManifest{Format: packFormat, Identity: man.Identity, Taken: man.Taken, Base: base, State: man.State}
	for _, l := range man.Layers {
		p.Layers = append(p.Layers, filepath.Base(l.Path))
	}
	if p.RAM, err = diff(ctx, baseRAM, snap.ram, filepath.Join(out, ramData)); err != nil {
		return packed, err
	}
	if p.Scratch, err = diff(ctx, baseScratch, scratch, filepath.Join(out, scratchData)); err != nil {
		return packed, err
	}
	if err := os.WriteFile(filepath.Join(out, stateFile), snap.state, 0o600); err != nil {
		return packed, err
	}
	p.Sum = p.sum()
	b, err := json.Marshal(p)
	if err != nil {
		return packed, err
	}
	packed = substrate.Packed{Files: []string{manifestFile, stateFile, ramData, scratchData}, Layers: p.Layers}
	return packed, os.WriteFile(filepath.Join(out, manifestFile), b, 0o600)
}

// base opens the snapshot that machines of this identity start from, and says which
// one it is.
func (s *Substrate) base(ctx context.Context, id identity) (which turnstone.Digest, ram, scratch *os.File, err error) {
	dir := s.home.Path("snapshots", id.key())
	snap, err := openSnapshot(ctx, dir, id)
	if err != nil {
		return "", nil, nil, &turnstone.Error{Op: "qemu.pack", Kind: turnstone.Unavailable, Subject: "the template's snapshot", Err: err,
			Hint: "what a machine was started from is gone; start from its files instead"}
	}
	b, err := snapshots.ReadAtMost(filepath.Join(dir, manifestFile), snapshots.MaxManifest)
	var man manifest
	if err == nil {
		err = json.Unmarshal(b, &man)
	}
	if err == nil {
		scratch, err = os.Open(snap.scratch)
	}
	if err != nil {
		_ = snap.ram.Close()
		return "", nil, nil, err
	}
	return man.RAM.Digest, snap.ram, scratch, nil
}

// diff writes what to has in another way than from to a new file at path. Both may
// have holes, which are zeros, and are not read.
func diff(ctx context.Context, from, to *os.File, path string) (d difference, err error) {
	st, err := to.Stat()
	if err != nil {
		return d, err
	}
	d.Size = st.Size()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &packWriter{d: &d, out: bufio.NewWriterSize(f, 1<<20), sum: sha256.New()}
	for at := int64(0); ; {
		begin, end, err := nextData(at, d.Size, from, to)
		if err != nil {
			return d, err
		}
		if begin == end {
			break
		}
		if err := ctx.Err(); err != nil {
			return d, err
		}
		if err := w.compare(from, to, begin, end); err != nil {
			return d, err
		}
		at = end
	}
	d.Data = turnstone.Digest("sha256:" + hex.EncodeToString(w.sum.Sum(nil)))
	return d, w.out.Flush()
}

// comparePart is how much of two files is compared at a time.
const comparePart = 1 << 20

// nextData returns the next stretch, of at most comparePart, in which one of the
// files may be something else than zeros; an empty one at the end.
func nextData(at, size int64, files ...*os.File) (begin, end int64, err error) {
	begin = size
	for _, f := range files {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("seek: %w", err)
		}
		begin = min(begin, data)
	}
	if begin >= size {
		return size, size, nil
	}
	begin = begin / pageSize * pageSize
	return begin, min(size, begin+comparePart), nil
}

// A packWriter writes the pages that differ.
type packWriter struct {
	d    *difference
	out  *bufio.Writer
	sum  hash.Hash
	a, b [comparePart]byte
}

func (w *packWriter) compare(from, to *os.File, begin, end int64) error {
	a, b := w.a[:end-begin], w.b[:end-begin]
	clear(a) // from may be shorter
	if _, err := from.ReadAt(a, begin); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := io.ReadFull(io.NewSectionReader(to, begin, end-begin), b); err != nil {
		return err
	}
	for at := 0; at < len(b); at += pageSize {
		page := b[at:min(at+pageSize, len(b))] // a disk's size may be anything
		if bytes.Equal(a[at:at+len(page)], page) {
			continue
		}
		offset := begin + int64(at)
		if n := len(w.d.Runs) - 1; n >= 0 && w.d.Runs[n][0]+w.d.Runs[n][1] == offset {
			w.d.Runs[n][1] += int64(len(page))
		} else {
			w.d.Runs = append(w.d.Runs, [2]int64{offset, int64(len(page))})
		}
		_, _ = w.sum.Write(page)
		if _, err := w.out.Write(page); err != nil {
			return err
		}
	}
	return nil
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed, dir string) error {
	if err := s.unpack(ctx, m, packed, dir); err != nil {
		_ = os.RemoveAll(dir)
		return s.wrap(err)
	}
	return nil
}

func (s *Substrate) unpack(ctx context.Context, m substrate.Machine, packed, dir string) error {
	damaged := func(what string, err error) error {
		return &turnstone.Error{Op: "qemu.unpack", Kind: turnstone.Integrity, Subject: "the saved machine", Err: fmt.Errorf("%s: %w", what, err),
			Hint: "it cannot be used; start from its files instead"}
	}
	b, err := snapshots.ReadAtMost(filepath.Join(packed, manifestFile), maxPack)
	if err != nil {
		return damaged("manifest", err)
	}
	p, err := parsePack(b)
	if err != nil {
		return damaged("manifest", err)
	}
	if err := s.fits(m, p.Identity); err != nil {
		return err
	}
	if err := snapshots.SameLayers(p.Layers, m.Layers); err != nil {
		return damaged("layers", err)
	}
	base, baseRAM, baseScratch, err := s.base(ctx, p.Identity)
	if err != nil {
		return err
	}
	defer func() { _, _ = baseRAM.Close(), baseScratch.Close() }()
	if base != p.Base {
		return &turnstone.Error{Op: "qemu.unpack", Kind: turnstone.Unavailable, Subject: "the saved machine",
			Err: errors.New("the template's snapshot has been taken anew since, and its memory is another"), Hint: "start from its files instead"}
	}
	state, err := snapshots.ReadAtMost(filepath.Join(packed, stateFile), snapshots.MaxState)
	if err == nil && turnstone.DigestBytes(state) != p.State {
		err = errors.New("does not match its digest")
	}
	if err != nil {
		return damaged("device state", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), state, 0o600); err != nil {
		return err
	}
	ram, err := patch(ctx, baseRAM, p.RAM, filepath.Join(packed, ramData), filepath.Join(dir, ramFile), int64(m.Shape.Memory))
	if err != nil {
		return damaged("memory", err)
	}
	defer func() { _ = ram.Close() }()
	if err := prepareMemory(ram, int64(m.Shape.Memory)); err != nil {
		return err
	}
	scratch, err := patch(ctx, baseScratch, p.Scratch, filepath.Join(packed, scratchData), filepath.Join(dir, scratchFile), int64(m.Shape.Disk))
	if err != nil {
		return damaged("scratch disk", err)
	}
	_ = scratch.Close()
	return vmManifest{Identity: p.Identity, Taken: p.Taken, State: p.State}.Seal(dir, m.Layers)
}

// parsePack checks what a manifest says. It may come from anywhere.
func parsePack(b []byte) (packManifest, error) {
	var p packManifest
	if err := json.Unmarshal(b, &p); err != nil {
		return p, err
	}
	if p.Format != packFormat {
		return p, fmt.Errorf("it has format %d, this program reads %d", p.Format, packFormat)
	}
	if p.Sum != p.sum() {
		return p, errors.New("it does not match its digest")
	}
	return p, p.check()
}

// check says whether the stretches are in order and within their files.
func (p packManifest) check() error {
	for _, d := range []difference{p.RAM, p.Scratch} {
		if d.Size < 0 {
			return fmt.Errorf("a size of %d bytes", d.Size)
		}
		before := int64(0)
		for _, r := range d.Runs {
			if r[0] < before || r[1] <= 0 || r[0] > d.Size-r[1] {
				return fmt.Errorf("a stretch of %d bytes at %d, behind %d of %d", r[1], r[0], before, d.Size)
			}
			before = r[0] + r[1]
		}
	}
	return nil
}

// patch makes a file at path of base and d, whose bytes are in the file data.
func patch(ctx context.Context, base *os.File, d difference, data, path string, size int64) (out *os.File, err error) {
	if d.Size != size {
		return nil, fmt.Errorf("it has %d bytes, the machine %d", d.Size, size)
	}
	in, err := os.Open(data)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := disk.Clone(ctx, f, base); err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	sum := sha256.New()
	r := io.TeeReader(bufio.NewReaderSize(in, 1<<20), sum)
	for _, run := range d.Runs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.NewOffsetWriter(f, run[0]), r, run[1]); err != nil {
			return nil, err
		}
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(r, 1)); err != nil || n > 0 {
		return nil, errors.Join(errors.New("there are more bytes than the manifest says"), err)
	}
	if got := turnstone.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != d.Data {
		return nil, fmt.Errorf("it is %s instead of %s", got.Short(), d.Data.Short())
	}
	return f, nil
}
