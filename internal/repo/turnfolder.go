package repo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A TurnFolder is turns/ID of the state directory, with a turn's receipt and its long outputs. It
// is locked (flock) while the turn runs: a process that can lock it knows that nothing more is
// written, even if the turn's process was killed.
type TurnFolder struct {
	Dir string // empty: there is no folder, and nothing is stored

	// Of a sealed session, Dir is in memory, and the receipt is sealed into the folder disk.
	disk   string
	domain *seal.Domain
	memory *os.File // the lock of Dir
	id     turnstone.TurnID

	lock  *os.File
	named chan error            // the result of syncing its name
	fault func(op string) error // see Repo.Fault
}

// OpenTurnFolder creates the folder of the turn id. If it returns an error, the folder's Dir is
// empty and the turn can run anyway. The caller closes the folder in both cases.
func (x *Repo) OpenTurnFolder(id turnstone.TurnID) (*TurnFolder, error) {
	f := &TurnFolder{fault: x.Fault, id: id}
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

// Seal moves the folder, which is empty, to memory if cs is the view of a domain; a second call does
// nothing. What is in it is gone after Close, except the receipt, which is sealed on disk.
func (f *TurnFolder) Seal(cs *ContextStore) error {
	if !cs.Sealed() || f.Dir == "" || f.Sealed() {
		return nil
	}
	f.disk, f.domain = f.Dir, cs.Domain
	var err error
	f.Dir, f.memory, err = lockedMemory(cs.dir, "turns", string(f.id))
	return err
}

// Sealed reports whether the folder is in memory: see Seal.
func (f *TurnFolder) Sealed() bool { return f.domain != nil }

// Close unlocks the folder.
func (f *TurnFolder) Close() {
	if f == nil {
		return
	}
	if f.domain != nil && f.Dir != "" {
		_ = os.RemoveAll(f.Dir)
	}
	for _, lock := range []*os.File{f.memory, f.lock} {
		if lock != nil {
			_ = lock.Close()
		}
	}
}

// Remove removes the folder of a turn that is not kept.
func (f *TurnFolder) Remove() {
	for _, dir := range []string{f.Dir, f.disk} {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
}

const (
	receiptFile   = "receipt.md"
	sealedReceipt = "receipt.sealed"
)

// lastReceipt returns the receipt in the folder of a turn that runs or was interrupted.
func (cs *ContextStore) lastReceipt(t turnstone.Turn) ([]byte, error) {
	if !cs.Sealed() {
		return os.ReadFile(cs.dir.Path("turns", string(t.ID), receiptFile))
	}
	b, err := os.ReadFile(cs.dir.Path("turns", string(t.ID), sealedReceipt))
	if err != nil {
		return nil, err
	}
	return cs.Domain.OpenBytes(receiptPlace+string(t.ID), b)
}

// receipt returns the path of the receipt, and its bytes as they are written.
func (f *TurnFolder) receipt(text []byte) (path string, b []byte, err error) {
	if f.domain == nil {
		return filepath.Join(f.Dir, receiptFile), text, nil
	}
	b, err = f.domain.SealBytes(receiptPlace+string(f.id), text)
	return filepath.Join(f.disk, sealedReceipt), b, err
}

const receiptPlace = "turns/receipt/"

// Checkpoint writes the current receipt, in case this process is killed.
func (f *TurnFolder) Checkpoint(receipt []byte) error {
	path, receipt, err := f.receipt(receipt)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err = os.WriteFile(tmp, receipt, 0o600); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// Keep makes the turn's last receipt durable, and with sync the outputs that the receipt names.
func (f *TurnFolder) Keep(receipt []byte, sync func() error) error {
	path, receipt, err := f.receipt(receipt)
	if err != nil {
		return err
	}
	errs := []error{filestamp.WriteFile(path, receipt, 0o600), sync()}
	if f.fault != nil {
		errs = append(errs, f.fault("turns.sync"))
	}
	errs = append(errs, filestamp.SyncDir(filepath.Dir(path)))
	if f.named != nil {
		errs = append(errs, <-f.named)
		f.named = nil
	}
	return errors.Join(errs...)
}
