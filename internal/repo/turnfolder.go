package repo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
)

// A TurnFolder is turns/ID of the state directory, with a turn's receipt and its long outputs. It
// is locked (flock) while the turn runs: a process that can lock it knows that nothing more is
// written, even if the turn's process was killed.
type TurnFolder struct {
	Dir string // empty: there is no folder, and nothing is stored

	lock  *os.File
	named chan error            // the result of syncing its name
	fault func(op string) error // see Repo.Fault
}

// OpenTurnFolder creates the folder of the turn id. If it returns an error, the folder's Dir is
// empty and the turn can run anyway. The caller closes the folder in both cases.
func (x *Repo) OpenTurnFolder(id turnstone.TurnID) (*TurnFolder, error) {
	f := &TurnFolder{fault: x.Fault}
	open := func() (dir string, err error) {
		if dir, err = x.Dir.MkdirAll("turns", string(id)); err == nil {
			f.lock, err = LockFolder(dir, unix.LOCK_EX)
		}
		return dir, err
	}
	dir, err := open()
	for n := 0; n < 5 && (err != nil && errors.Is(err, fs.ErrNotExist) || err == nil &&
		!isAt(f.lock, dir)); n++ {
		f.Close() // a concurrent gc may have removed the folder, because no turn had it yet
		dir, err = open()
	}
	if err != nil {
		return f, err
	}
	f.Dir, f.named = dir, make(chan error, 1)
	go func() { f.named <- filestamp.SyncDir(filepath.Dir(dir)) }()
	return f, nil
}

// isAt reports whether f is the file at path.
func isAt(f *os.File, path string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(have, there)
}

// Close unlocks the folder.
func (f *TurnFolder) Close() {
	if f != nil && f.lock != nil {
		_ = f.lock.Close()
	}
}

// Checkpoint writes the current receipt, in case this process is killed.
func (f *TurnFolder) Checkpoint(receipt []byte) error {
	path := filepath.Join(f.Dir, "receipt.md")
	tmp := path + ".new"
	err := os.WriteFile(tmp, receipt, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// Keep makes the turn's last receipt durable, and with sync the outputs that the receipt names.
func (f *TurnFolder) Keep(receipt []byte, sync func() error) error {
	errs := []error{filestamp.WriteFile(filepath.Join(f.Dir, "receipt.md"), receipt, 0o600), sync()}
	if f.fault != nil {
		errs = append(errs, f.fault("turns.sync"))
	}
	errs = append(errs, filestamp.SyncDir(f.Dir))
	if f.named != nil {
		errs = append(errs, <-f.named)
		f.named = nil
	}
	return errors.Join(errs...)
}
