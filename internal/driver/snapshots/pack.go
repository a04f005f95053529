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
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/substrate"
)

// PackFormat is the version of a Packed.
const PackFormat = 1

// A Packed describes a virtual machine that is kept for long, as what differs from the
// snapshot of its template.
type Packed[ID comparable] struct {
	Format   int              `json:"format"`
	Identity ID               `json:"identity"`
	CPU      *host.Model      `json:"cpu,omitempty"` // that Identity has the digest of; nil in older ones
	Taken    time.Time        `json:"taken"`
	Base     turnstone.Digest `json:"base"`               // of the memory in the template's snapshot
	Snapshot turnstone.Digest `json:"snapshot,omitempty"` // that snapshot's name; empty in older ones
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
// substrate.BasePacker. Its methods are safe for concurrent use.
type Packer[ID comparable] struct {
	Op       turnstone.Op                        // what its errors begin with: the driver's name
	Machine  substrate.Machine                   // that the machine was, or is to be, started from
	Identity ID                                  // of Machine
	RAM      int64                               // size of its memory, in bytes
	Base     func(ID) string                     // the folder of the snapshot that machines of this identity start from
	Differs  func(id ID, cpu *host.Model) string // as OpenLive's; cpu is what was said of the CPU, and may be nil
	Prepare  func(dir string) error              // makes the files of an unpacked machine ready for its program
	Wrap     func(error) error                   // makes what the driver returns of an error
}

// Pack does what substrate.Keeper says.
func (k Packer[ID]) Pack(ctx context.Context, dir, out string) (substrate.Packed, error) {
	p, err := k.pack(ctx, dir, out)
	if err != nil {
		_ = os.RemoveAll(out)
		return p, k.Wrap(err)
	}
	return p, nil
}

func (k Packer[ID]) pack(ctx context.Context, dir, out string) (packed substrate.Packed, err error) {
	man, state, err := OpenLive(k.Op+".restore", dir, func(id ID) string { return k.Differs(id, nil) })
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
	p := Packed[ID]{Format: PackFormat, Identity: man.Identity, Taken: man.Taken, Base: base.memory, Snapshot: base.name, State: man.State}
	if p.CPU, err = host.CPUModel(); err != nil {
		return packed, err
	}
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
	packed = substrate.Packed{Files: []string{ManifestFile, StateFile, ramData, scratchData}, Layers: p.Layers, Base: p.Snapshot}
	return packed, os.WriteFile(filepath.Join(out, ManifestFile), p.Encode(), 0o600)
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
func (p Packed[ID]) check() error { return errors.Join(p.RAM.check(), p.Scratch.check()) }
