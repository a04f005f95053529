package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// A base is the open snapshot of a template, from which a machine differs.
type base struct {
	name         turnstone.Digest // name of this snapshot: a new snapshot has a new name
	memory       turnstone.Digest // digest of its memory
	ram, scratch *os.File
}

func (b *base) close() {
	if b != nil {
		_, _ = b.ram.Close(), b.scratch.Close()
	}
}

// is reports whether b is the base of the machine p.
func (b *base) is(name, memory turnstone.Digest) bool {
	if name == "" { // from an older version of turn
		return b.memory == memory
	}
	return b.name == name
}

// nameOf names a snapshot. Two snapshots with the same memory may have different disks.
func nameOf[ID comparable](m Manifest[ID]) turnstone.Digest {
	return turnstone.DigestBytes(fmt.Appendf(nil, "%s\n%s\n%d\n", m.RAM.Digest, m.State,
		m.Taken.UnixNano()))
}

// base opens the snapshot that machines of this identity start from.
func (k Packer[ID]) base(ctx context.Context, id ID) (*base, error) {
	dir := k.Base(id)
	if _, err := Open(ctx, k.Op+".snapshot", dir, id); err != nil {
		return nil, k.gone(err)
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
	return &base{nameOf(man), man.RAM.Digest, ram, scratch}, nil
}

// gone returns the error for a machine whose base is not available.
func (k Packer[ID]) gone(err error) error {
	return turnstone.NewError(k.Op+".pack", turnstone.KindUnavailable, "the template's snapshot",
		err).WithHint("start a turn from the files of the machine instead")
}

// The files of a packed base.
const (
	baseManifest    = "base.json"
	baseRAMData     = "base.ram.data"
	baseScratchData = "base.scratch.data"
)

// baseFormat is the version of a packedBase.
const baseFormat = 1

// A packedBase describes a template's snapshot that is a base of machines; only its non-zero parts
// are stored. It has no device state: no machine starts from it alone.
type packedBase struct {
	Format  int              `json:"format"`
	Name    turnstone.Digest `json:"name"` // Snapshot of a Packed
	RAM     difference       `json:"ram"`
	Scratch difference       `json:"scratch"`
	Sum     turnstone.Digest `json:"sum"` // as in a Packed
}

func (p packedBase) sum() turnstone.Digest {
	p.Sum = ""
	b, _ := json.Marshal(p) // plain data always encodes
	return turnstone.DigestBytes(b)
}

// PackBase implements substrate.BasePacker.
func (k Packer[ID]) PackBase(ctx context.Context, want turnstone.Digest,
	out string) ([]string, error) {
	err := k.packBase(ctx, want, out)
	if err != nil {
		_ = os.RemoveAll(out)
		return nil, k.Wrap(err)
	}
	return []string{baseManifest, baseRAMData, baseScratchData}, nil
}

func (k Packer[ID]) packBase(ctx context.Context, want turnstone.Digest, out string) error {
	base, err := k.base(ctx, k.Identity)
	if err != nil {
		return err
	}
	defer base.close()
	if base.name != want {
		return k.gone(errors.New("it was taken again"))
	}
	if err := os.Mkdir(out, 0o700); err != nil {
		return err
	}
	p := packedBase{Format: baseFormat, Name: base.name}
	if p.RAM, err = diff(ctx, nil, base.ram, filepath.Join(out, baseRAMData)); err != nil {
		return err
	}
	if p.Scratch, err = diff(ctx, nil, base.scratch,
		filepath.Join(out, baseScratchData)); err != nil {
		return err
	}
	p.Sum = p.sum()
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, baseManifest), b, 0o600)
}

// readBase reads the manifest of a base that came with a packed machine. A missing manifest is
// fs.ErrNotExist.
func readBase(packed substrate.PackedFiles, want turnstone.Digest) (p packedBase, err error) {
	b, err := ReadIn(packed, baseManifest, maxPack)
	if err != nil {
		return p, err
	}
	if p, err = parseBase(b); err == nil && p.Name != want {
		err = errors.New("it is another machine's")
	}
	return p, err
}

// parseBase checks a manifest, which is untrusted.
func parseBase(b []byte) (p packedBase, err error) {
	if err := json.Unmarshal(b, &p); err != nil {
		return p, err
	}
	if p.Format != baseFormat {
		return p, fmt.Errorf("it has format %d, this program reads %d", p.Format, baseFormat)
	}
	if p.Sum != p.sum() {
		return p, errors.New("it does not match its digest")
	}
	return p, errors.Join(p.RAM.check(), p.Scratch.check())
}
