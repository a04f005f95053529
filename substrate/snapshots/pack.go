package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// PackFormat is the version of a Packed.
const PackFormat = 1

// A Packed describes a virtual machine that is kept for long, as what differs from the
// snapshot of its template.
type Packed[ID comparable] struct {
	Format   int              `json:"format"`
	Identity ID               `json:"identity"`
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
func (p Packed[ID]) sum() turnstone.Digest {
	p.Sum = ""
	b, _ := json.Marshal(p) // plain data always encodes
	return turnstone.DigestBytes(b)
}

// Encode returns p as its file has it, with its sum.
func (p Packed[ID]) Encode() []byte {
	p.Sum = p.sum()
	b, _ := json.Marshal(p) // plain data always encodes
	return b
}

// The files of a packed machine beside its manifest and its device state.
const (
	ramData     = "ram.data"
	scratchData = "scratch.data"
)

// maxPack bounds what is read of a Packed, in bytes: some million stretches.
const maxPack = 64 << 20

// A Packer packs and unpacks machines that were written down as a Live, for a driver's
// substrate.Keeper. Its methods are safe for concurrent use.
type Packer[ID comparable] struct {
	Op      string                 // what its errors begin with: the driver's name
	Machine substrate.Machine      // that the machine was, or is to be, started from
	RAM     int64                  // size of its memory, in bytes
	Base    func(ID) string        // the folder of the snapshot that machines of this identity start from
	Differs func(ID) string        // as OpenLive's
	Prepare func(dir string) error // makes the files of an unpacked machine ready for its program
}

// Pack does what substrate.Keeper says. Its errors may have no type.
func (k Packer[ID]) Pack(ctx context.Context, dir, out string) (substrate.Packed, error) {
	p, err := k.pack(ctx, dir, out)
	if err != nil {
		_ = os.RemoveAll(out)
	}
	return p, err
}

func (k Packer[ID]) pack(ctx context.Context, dir, out string) (packed substrate.Packed, err error) {
	man, state, err := OpenLive(k.Op+".restore", dir, k.Differs)
	if err != nil {
		return packed, err
	}
	base, err := k.base(ctx, man.Identity)
	if err != nil {
		return packed, err
	}
	defer base.close()
	if err := os.Mkdir(out, 0o700); err != nil {
		return packed, err
	}
	p := Packed[ID]{Format: PackFormat, Identity: man.Identity, Taken: man.Taken, Base: base.digest, State: man.State}
	for _, l := range man.Layers {
		p.Layers = append(p.Layers, filepath.Base(l.Path))
	}
	if p.RAM, err = diffFile(ctx, base.ram, filepath.Join(dir, RAMFile), filepath.Join(out, ramData)); err != nil {
		return packed, err
	}
	if p.Scratch, err = diffFile(ctx, base.scratch, filepath.Join(dir, ScratchFile), filepath.Join(out, scratchData)); err != nil {
		return packed, err
	}
	if err := os.WriteFile(filepath.Join(out, StateFile), state, 0o600); err != nil {
		return packed, err
	}
	packed = substrate.Packed{Files: []string{ManifestFile, StateFile, ramData, scratchData}, Layers: p.Layers}
	return packed, os.WriteFile(filepath.Join(out, ManifestFile), p.Encode(), 0o600)
}

// A base is the snapshot of a template that a machine differs from, open.
type base struct {
	digest       turnstone.Digest // of its memory
	ram, scratch *os.File
}

func (b *base) close() { _, _ = b.ram.Close(), b.scratch.Close() }

// base opens the snapshot that machines of this identity start from.
func (k Packer[ID]) base(ctx context.Context, id ID) (*base, error) {
	dir := k.Base(id)
	if _, err := Open(ctx, k.Op+".snapshot", dir, id); err != nil {
		return nil, &turnstone.Error{Op: k.Op + ".pack", Kind: turnstone.Unavailable, Subject: "the template's snapshot", Err: err,
			Hint: "what a machine was started from is gone; start from its files instead"}
	}
	b, err := ReadAtMost(filepath.Join(dir, ManifestFile), MaxManifest)
	if err != nil {
		return nil, err
	}
	var man Manifest[ID]
	if err := json.Unmarshal(b, &man); err != nil {
		return nil, err
	}
	ram, err := os.Open(filepath.Join(dir, RAMFile))
	if err != nil {
		return nil, err
	}
	scratch, err := os.Open(filepath.Join(dir, ScratchFile))
	if err != nil {
		_ = ram.Close()
		return nil, err
	}
	return &base{man.RAM.Digest, ram, scratch}, nil
}

// Unpack does what substrate.Keeper says. Its errors may have no type.
func (k Packer[ID]) Unpack(ctx context.Context, packed, dir string) error {
	err := k.unpack(ctx, packed, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
	}
	return err
}

func (k Packer[ID]) unpack(ctx context.Context, packed, dir string) error {
	op := k.Op + ".unpack"
	damaged := func(what string, err error) error {
		return &turnstone.Error{Op: op, Kind: turnstone.Integrity, Subject: "the saved machine", Err: fmt.Errorf("%s: %w", what, err),
			Hint: "it cannot be used; start from its files instead"}
	}
	p, err := readPacked[ID](filepath.Join(packed, ManifestFile))
	if err != nil {
		return damaged("manifest", err)
	}
	if err := Misfit(k.Op+".restore", k.Differs(p.Identity)); err != nil {
		return err
	}
	if err := SameLayers(p.Layers, k.Machine.Layers); err != nil {
		return damaged("layers", err)
	}
	base, err := k.base(ctx, p.Identity)
	if err != nil {
		return err
	}
	defer base.close()
	if base.digest != p.Base {
		return &turnstone.Error{Op: op, Kind: turnstone.Unavailable, Subject: "the saved machine",
			Err: errors.New("the template's snapshot has been taken anew since, and its memory is another"), Hint: "start from its files instead"}
	}
	state, err := readState(packed, p.State)
	if err != nil {
		return damaged("device state", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, StateFile), state, 0o600); err != nil {
		return err
	}
	if err := patchFile(ctx, base.ram, p.RAM, filepath.Join(packed, ramData), filepath.Join(dir, RAMFile), k.RAM); err != nil {
		return damaged("memory", err)
	}
	if err := patchFile(ctx, base.scratch, p.Scratch, filepath.Join(packed, scratchData), filepath.Join(dir, ScratchFile), int64(k.Machine.Shape.Disk)); err != nil {
		return damaged("scratch disk", err)
	}
	if err := k.Prepare(dir); err != nil {
		return err
	}
	return Live[ID]{Identity: p.Identity, Taken: p.Taken, State: p.State}.Seal(dir, k.Machine.Layers)
}

func readPacked[ID comparable](path string) (p Packed[ID], err error) {
	b, err := ReadAtMost(path, maxPack)
	if err != nil {
		return p, err
	}
	return parsePacked[ID](b)
}

// parsePacked checks what a manifest says. It may come from anywhere.
func parsePacked[ID comparable](b []byte) (Packed[ID], error) {
	var p Packed[ID]
	if err := json.Unmarshal(b, &p); err != nil {
		return p, err
	}
	if p.Format != PackFormat {
		return p, fmt.Errorf("it has format %d, this program reads %d", p.Format, PackFormat)
	}
	if p.Sum != p.sum() {
		return p, errors.New("it does not match its digest")
	}
	return p, p.check()
}

// check says whether the stretches are in order and within their files.
func (p Packed[ID]) check() error {
	for _, d := range []difference{p.RAM, p.Scratch} {
		if err := d.check(); err != nil {
			return err
		}
	}
	return nil
}
