package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
)

// An Output is a file for a receipt.
type Output struct {
	path   string // links are resolved, so that a link remains a link
	Named  string // as the user wrote it
	device bool   // not a regular file: it is written, never replaced
	mode   fs.FileMode
	owner  owner  // of the replaced file
	Old    []byte // the required content at the time of the replacement; nil: any
}

// NewOutput checks that path can be written before anything starts, because a turn may take an
// hour.
func NewOutput(path string) (*Output, error) {
	o := &Output{path: path, Named: path, mode: 0o666}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		o.path = resolved
	}
	info, err := os.Stat(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		o.mode &^= umask()
	case err != nil:
		return nil, o.fail(err, "")
	case info.IsDir():
		return nil, o.fail(syscall.EISDIR, "name a file")
	case !info.Mode().IsRegular():
		o.device = true
		return o, nil
	default:
		o.mode = info.Mode().Perm()
		o.owner = ownerOf(info)
	}
	if err := writable(filepath.Dir(o.path)); err != nil {
		return nil, o.fail(err, "name a file in a folder that exists and is writable")
	}
	return o, nil
}

// Write writes data to the file: atomically and durably, or not at all.
func (o *Output) Write(data []byte) error {
	if o.device {
		f, err := os.OpenFile(o.path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.Write(data)
			err = errors.Join(err, f.Close())
		}
		return err
	}
	if o.Old != nil {
		now, err := os.ReadFile(o.path)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, o.Old) {
			return errors.New("the file changed during the turn and was not replaced")
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(o.path), "."+filepath.Base(o.path)+".*.tmp")
	if err != nil {
		return err
	}
	if err := o.fill(tmp, data); err != nil {
		_ = os.Remove(tmp.Name())
		return err
	}
	if err := os.Rename(tmp.Name(), o.path); err != nil {
		_ = os.Remove(tmp.Name())
		return err
	}
	return filestamp.SyncDir(filepath.Dir(o.path))
}

// fill writes data into tmp, gives it the mode and owner, and closes it.
func (o *Output) fill(tmp *os.File, data []byte) error {
	_, err := tmp.Write(data)
	if err == nil {
		o.owner.give(tmp)
	}
	if err == nil {
		err = tmp.Chmod(o.mode)
	}
	if err == nil {
		err = tmp.Sync()
	}
	return errors.Join(err, tmp.Close())
}

func (o *Output) fail(err error, hint string) error {
	return turnstone.Errorf("output", turnstone.KindInvalid, o.Named, "cannot be written: %w", err).
		WithHint(hint)
}
