package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// Unpack implements substrate.Keeper. Its errors may have no type.
func (k Packer[ID]) Unpack(ctx context.Context, packed substrate.PackedFiles, dir string) error {
	u := unpacking[ID]{Packer: k, packed: packed, dir: dir}
	err := u.unpack(ctx)
	if err != nil {
		_ = os.RemoveAll(dir)
		return k.Wrap(err)
	}
	return nil
}

// An unpacking is a machine that is being prepared for a restore.
type unpacking[ID comparable] struct {
	Packer[ID]
	packed substrate.PackedFiles
	dir    string
	man    Packed[ID]

	// The machine's base: the local snapshot, or the base that came along.
	local *base
	came  packedBase
}

func (u *unpacking[ID]) unpack(ctx context.Context) (err error) {
	b, err := ReadIn(u.packed, ManifestFile, maxPack)
	if err == nil {
		u.man, err = parsePacked[ID](b)
	}
	if err != nil {
		return u.damaged(ctx, "manifest", err)
	}
	if err := Misfit(u.Op+".restore", u.Differs(u.man.Identity, u.man.CPU)); err != nil {
		return err
	}
	if err := SameLayers(u.man.Layers, u.Machine.Layers); err != nil {
		return u.damaged(ctx, "layers", err)
	}
	if err := u.findBase(ctx); err != nil {
		return err
	}
	defer u.local.close()
	state, err := ReadIn(u.packed, StateFile, MaxState)
	if err == nil && turnstone.DigestBytes(state) != u.man.State {
		err = errors.New("does not match its digest")
	}
	if err != nil {
		return u.damaged(ctx, "device state", err)
	}
	if err := os.Mkdir(u.dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(u.dir, StateFile), state, 0o600); err != nil {
		return err
	}
	if err := u.files(ctx); err != nil {
		return err
	}
	if err := u.Prepare(u.dir); err != nil {
		return err
	}
	// From here on it is a machine of this host: the accepted differences no longer matter.
	return Live[ID]{Identity: u.Identity, Taken: u.man.Taken, State: u.man.State}.Seal(u.dir,
		u.Machine.Layers)
}

// findBase selects the local snapshot if it is the machine's base, else the base that came along.
func (u *unpacking[ID]) findBase(ctx context.Context) error {
	here, err := u.base(ctx, u.man.Identity)
	if err == nil && here.is(u.man.Snapshot, u.man.Base) {
		u.local = here
		return nil
	}
	here.close()
	why := errors.New("it was taken again since then")
	if err != nil {
		why = causeOf(err)
	}
	came, cerr := readBase(u.packed, u.man.Snapshot)
	if errors.Is(cerr, fs.ErrNotExist) {
		return turnstone.Errorf(u.Op+".unpack", turnstone.KindUnavailable, "the saved machine",
			"an earlier version of turn kept it as differences from a snapshot of the template "+
				"that is not here: %w", why).
			WithHint("start from its files instead")
	}
	if cerr != nil {
		return u.damaged(ctx, "base", cerr)
	}
	u.came = came
	return nil
}

// causeOf returns why there is no snapshot, without the consequence.
func causeOf(err error) error {
	var e *turnstone.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// files writes the memory and the disk.
func (u *unpacking[ID]) files(ctx context.Context) error {
	var here base
	if u.local != nil {
		here = *u.local
	}
	for _, f := range []struct {
		what, name     string
		size           int64
		here           *os.File
		came, over     difference
		cameIn, overIn string
	}{
		{"memory", RAMFile, u.RAM, here.ram, u.came.RAM, u.man.RAM, baseRAMData, ramData},
		{"scratch disk", ScratchFile, int64(u.Machine.Shape.Disk), here.scratch, u.came.Scratch,
			u.man.Scratch, baseScratchData, scratchData},
	} {
		names, differences := []string{f.overIn}, []difference{f.over}
		if f.here == nil {
			names, differences = []string{f.cameIn, f.overIn}, []difference{f.came, f.over}
		}
		if err := u.file(ctx, f.here, f.name, f.size, names, differences); err != nil {
			return u.damaged(ctx, f.what, err)
		}
	}
	return nil
}

// file writes a file from here, nil for zeros, with the differences applied.
func (u *unpacking[ID]) file(ctx context.Context, here *os.File, name string, size int64,
	names []string, differences []difference) error {
	var parts []part
	for i, d := range differences {
		in, err := u.packed.Open(names[i])
		if err != nil {
			return err
		}
		defer in.Close()
		parts = append(parts, part{d, in})
	}
	return patch(ctx, here, filepath.Join(u.dir, name), size, parts...)
}

// damaged returns the error for a damaged packed machine, unless err has another reason.
func (u *unpacking[ID]) damaged(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case turnstone.IsFull(err):
		return err
	}
	return turnstone.Errorf(u.Op+".unpack", turnstone.KindIntegrity, "the saved machine",
		"%s: %w", what, err).WithHint("start from its files instead")
}

// ReadIn reads a file of packed; a file longer than limit bytes is an error.
func ReadIn(packed substrate.PackedFiles, name string, limit int64) ([]byte, error) {
	f, err := packed.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	return b, err
}
