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

// A Packed describes a virtual machine in long-term storage, as differences from the snapshot of
// its template.
type Packed[ID comparable] struct {
	Format   int `json:"format"`
	Identity ID  `json:"identity"`
	// the model whose digest is in Identity; nil in older manifests
	CPU   *host.Model      `json:"cpu,omitempty"`
	Taken time.Time        `json:"taken"`
	Base  turnstone.Digest `json:"base"` // digest of the memory in the template's snapshot
	// that snapshot's name; empty in older manifests
	Snapshot turnstone.Digest `json:"snapshot,omitempty"`
	State    turnstone.Digest `json:"state"`
	RAM      difference       `json:"ram"`
	Scratch  difference       `json:"scratch"`
	Layers   []string         `json:"layers,omitempty"` // names of their images
	Sum      turnstone.Digest `json:"sum"`              // digest of the manifest without Sum
}

// sum digests the manifest without its sum: otherwise a flipped bit in a run's offset would
// misplace pages.
func (p Packed[ID]) sum() turnstone.Digest {
	p.Sum = ""
	b, _ := json.Marshal(p) // plain data always encodes
	return turnstone.DigestBytes(b)
}

// Encode returns p in its file's form, with its sum.
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

// maxPack bounds the size of a Packed, in bytes: some million runs.
const maxPack = 64 << 20

// A Packer packs and unpacks machines that were saved as a Live, for a driver's
// substrate.BasePacker. Its methods are safe for concurrent use.
type Packer[ID comparable] struct {
	Op       turnstone.Op      // prefix of its errors' operations: the driver's name
	Machine  substrate.Machine // machine that the sandbox was, or will be, started from
	Identity ID                // identity of Machine
	RAM      int64             // size of its memory, in bytes
	Base     func(ID) string   // the snapshot folder of machines of this identity
	// as in OpenLive; cpu is the recorded CPU model, and may be nil
	Differs func(id ID, cpu *host.Model) string
	// prepares the files of an unpacked machine for its program
	Prepare func(dir string) error
	Wrap    func(error) error // converts an error to the driver's error
}

// Pack implements substrate.Keeper.
func (k Packer[ID]) Pack(ctx context.Context, dir, out string) (substrate.Packed, error) {
	p, err := k.pack(ctx, dir, out)
	if err != nil {
		_ = os.RemoveAll(out)
		return p, k.Wrap(err)
	}
	return p, nil
}

func (k Packer[ID]) pack(ctx context.Context, dir,
	out string) (packed substrate.Packed, err error) {
	man, state, err := OpenLive(k.Op+".restore", dir,
		func(id ID) string { return k.Differs(id, nil) })
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
	p := Packed[ID]{Format: PackFormat, Identity: man.Identity, Taken: man.Taken, Base: base.memory,
		Snapshot: base.name, State: man.State}
	if p.CPU, err = host.CPUModel(); err != nil {
		return packed, err
	}
	for _, l := range man.Layers {
		p.Layers = append(p.Layers, filepath.Base(l.Path))
	}
	if p.RAM, err = diffFile(ctx, base.ram, filepath.Join(dir, RAMFile),
		filepath.Join(out, ramData)); err != nil {
		return packed, err
	}
	if p.Scratch, err = diffFile(ctx, base.scratch, filepath.Join(dir, ScratchFile),
		filepath.Join(out, scratchData)); err != nil {
		return packed, err
	}
	if err := os.WriteFile(filepath.Join(out, StateFile), state, 0o600); err != nil {
		return packed, err
	}
	packed = substrate.Packed{Files: []string{ManifestFile, StateFile, ramData, scratchData},
		Layers: p.Layers, Base: p.Snapshot}
	return packed, os.WriteFile(filepath.Join(out, ManifestFile), p.Encode(), 0o600)
}

// parsePacked checks a manifest, which is untrusted.
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

// check checks that the runs are in order and within their files.
func (p Packed[ID]) check() error { return errors.Join(p.RAM.check(), p.Scratch.check()) }
