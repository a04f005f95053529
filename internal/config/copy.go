package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone/internal/filestamp"
)

// Copy copies the operator's configuration, or removes the copy if there is none any longer.
func Copy(from, to string) error {
	if _, err := Load(from); err != nil {
		return err
	}
	at := filepath.Join(to, File)
	want, err := os.ReadFile(filepath.Join(from, File))
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(at); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return filestamp.WriteFile(at, want, 0o600)
}
