package keyring

import (
	"errors"
	"io/fs"
	"os"

	"turnstone.dev/turnstone/internal/filestamp"
)

// WriteOver replaces the file at path atomically and durably, and then overwrites the old content,
// which would otherwise stay in free blocks of the disk. A process that reads the old file at that
// time reads zeros: readers try again if the file at path is another one by then.
func WriteOver(path string, b []byte, mode os.FileMode) error {
	old, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := filestamp.WriteFile(path, b, mode); err != nil {
		if old != nil {
			_ = old.Close()
		}
		return err
	}
	if old == nil {
		return nil
	}
	defer func() { _ = old.Close() }()
	if info, err := old.Stat(); err == nil && info.Mode().IsRegular() {
		_ = overwrite(old, int(min(info.Size(), 1<<20))) // the new file is durable
	}
	return nil
}
