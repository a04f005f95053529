package manifest

import (
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
)

//go:embed empty.toml
var empty []byte

// Write writes a manifest into a folder, in which every key is in a comment, and returns its path.
// A file that exists is an error of kind Invalid, and stays.
func Write(dir string) (string, error) {
	name := filepath.Join(dir, File)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return "", turnstone.Errorf("manifest.write", turnstone.KindInvalid, name,
			"exists, and is not overwritten").WithHint("change it, or remove it first")
	}
	if err == nil {
		_, err = f.Write(empty)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return "", turnstone.NewError("manifest.write", turnstone.KindInvalid, name, err)
	}
	return name, nil
}
