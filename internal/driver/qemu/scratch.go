package qemu

import (
	"context"
	"os"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/statedir"
)

// newScratch returns an unnamed copy of the file at path: the copy disappears with its last
// descriptor, however this process ends.
func newScratch(ctx context.Context, path, dir string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := statedir.Unnamed(dir)
	if err != nil {
		return nil, err
	}
	if err := disk.CopySparse(ctx, dst, src); err != nil {
		_ = dst.Close()
		return nil, err
	}
	return dst, nil
}
