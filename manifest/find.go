package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
)

// maxAbove bounds the folders that Find looks into.
const maxAbove = 256

// Load reads a manifest that the caller names. Whose file it is makes no difference then.
func Load(name string) (*Manifest, error) {
	f, _, err := open(name)
	if err != nil {
		return nil, turnstone.NewError("manifest.load", turnstone.KindInvalid, name, err)
	}
	return read(f, name)
}

// open opens a manifest. why is set if it is not used unless its path is given.
func open(name string) (f *os.File, why string, err error) {
	if f, err = openFile(name); err != nil {
		return nil, "", err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, "", err
	}
	return f, distrusted(info), nil
}

// read reads and closes a manifest.
func read(f *os.File, name string) (*Manifest, error) {
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, turnstone.NewError("manifest.load", turnstone.KindInvalid, name, err)
	}
	return Parse(name, text)
}

// Find returns the nearest manifest in the folder dir and above it; nil: there is none. The search
// ends at home, which may be empty, at the root of a file system, and at a folder of another user.
// A manifest of another user, or one that others can write, is not used: notice says so.
func Find(dir, home string) (m *Manifest, notice string, err error) {
	shown := dir
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, "", err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		if real != dir {
			shown = real
		}
		dir = real
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	at, err := os.Lstat(dir)
	if err != nil {
		return nil, "", nil // the document's own error says what is missing
	}
	for range maxAbove {
		name := filepath.Join(shown, File)
		f, why, err := open(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, "", turnstone.NewError("manifest.load", turnstone.KindInvalid, name, err).
				WithHint("--manifest none runs without it")
		case why != "":
			_ = f.Close()
			return nil, fmt.Sprintf("%s %s and is not used; --manifest %s uses it", name, why, name), nil
		default:
			m, err := read(f, name)
			return m, "", err
		}
		above := filepath.Dir(dir)
		if above == dir || home != "" && dir == home {
			break
		}
		next, err := os.Lstat(above)
		if err != nil || !together(at, next) {
			break
		}
		if dir, at = above, next; filepath.IsAbs(shown) {
			shown = above
		} else {
			shown = filepath.Join(shown, "..")
		}
	}
	return nil, "", nil
}
