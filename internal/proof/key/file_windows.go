package key

import (
	"errors"
	"io/fs"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// errSymlink is the error of openNoFollow for a symbolic link.
var errSymlink = errors.New("symbolic link")

// openNoFollow opens a file that is no symbolic link.
func openNoFollow(path string) (*os.File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0 {
		return nil, errSymlink
	}
	return os.Open(path)
}

// checkOwn rejects a file that another user owns or can read, by its access list.
func checkOwn(path, what string, _ fs.FileInfo) error {
	if err := statedir.CheckReaders(path); err != nil {
		return turnstone.Errorf("key.load", turnstone.KindInvalid, path,
			"other users can read %s: %w", what, err).
			WithHint("remove their rights: icacls FILE /inheritance:r /grant:r %USERNAME%:F")
	}
	return nil
}

// checkWriters rejects a file that another user owns or can write, by its access list.
func checkWriters(path string, _ fs.FileInfo) error {
	if err := statedir.CheckWriters(path); err != nil {
		return turnstone.Errorf("key.load", turnstone.KindInvalid, path,
			"other users can write it: %w", err).
			WithHint("remove their rights: icacls FILE /inheritance:r /grant:r %USERNAME%:F")
	}
	return nil
}
