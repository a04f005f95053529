package statedir

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
)

// trashDir contains the folders that wait for EmptyTrash.
const trashDir = "trash"

// Discard removes the folder at path with any content, such as the files of an untrusted program.
// It removes at most budget files and subtracts their number from budget. It moves the rest, and
// files that it cannot remove, to the trash.
func (h *Dir) Discard(path string, budget *int) {
	if err := remove(context.Background(), path, budget); err == nil {
		return
	}
	dir, err := h.MkdirAll(trashDir)
	if err == nil {
		_ = os.Rename(path, filepath.Join(dir, rand.Text()))
	}
}

// EmptyTrash removes the trash and reports what cannot be removed.
func (h *Dir) EmptyTrash(ctx context.Context) (stuck []string) {
	dir := h.Path(trashDir)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path, budget := filepath.Join(dir, e.Name()), int(^uint(0)>>1)
		if err := remove(ctx, path, &budget); err != nil {
			stuck = append(stuck, fmt.Sprintf("%s: %v", path, err))
		}
	}
	return stuck
}
