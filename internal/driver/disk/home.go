package disk

import (
	"context"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// MakeHome creates the file at path, which must not exist, as an empty disk for a home directory of
// at most the given size. It has a journal, because it outlives the machines that mount it, however
// they end.
func MakeHome(ctx context.Context, path string, size turnstone.Bytes) (err error) {
	fail := func(err error) error {
		return turnstone.NewError("qemu.home", turnstone.KindUnavailable, path, err)
	}
	if size < minHome || int64(size) > substrate.SlotSize {
		return turnstone.Errorf("qemu.home", turnstone.KindInvalid, size.String(),
			"a home disk has 16 MiB to 64 GiB")
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if err := f.Truncate(int64(size)); err != nil {
		return fail(err)
	}
	err = format(ctx, "qemu.disk", path, "-b", "4096", "-J", "size=4",
		"-O", "^resize_inode,uninit_bg,sparse_super2")
	if err != nil {
		return err
	}
	if err := f.Truncate(substrate.SlotSize); err != nil {
		return fail(err)
	}
	return f.Sync()
}

const minHome = 16 << 20
