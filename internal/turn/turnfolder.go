package turn

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/repo"
)

// A turnFolder is turns/ID of the state directory, with a turn's receipt and its long
// outputs. It is locked (flock) as long as the turn runs: whoever finds it free knows
// that no more comes, whatever became of the turn's process.
type turnFolder struct {
	lock  *os.File
	named chan error // that its name is durable, or why not
	told  bool       // that the receipt cannot be written
}

// openFolder makes the folder of r's turn. Without one the turn runs all the same, and
// nothing of it is kept there.
func (r *run) openFolder() {
	dir, err := r.x.home.MkdirAll("turns", string(r.info.ID))
	if err == nil {
		r.folder.lock, err = repo.LockFolder(dir, unix.LOCK_EX)
	}
	for n := 0; n < 5 && (err != nil && errors.Is(err, fs.ErrNotExist) || err == nil && !isAt(r.folder.lock, dir)); n++ {
		r.closeFolder() // a gc that keeps nothing came between: no turn had it yet
		if dir, err = r.x.home.MkdirAll("turns", string(r.info.ID)); err == nil {
			r.folder.lock, err = repo.LockFolder(dir, unix.LOCK_EX)
		}
	}
	if err != nil {
		r.obs.Preparing("receipt and long outputs are not kept in the state directory: " + err.Error())
		return
	}
	r.dir, r.folder.named = dir, make(chan error, 1)
	go func() { r.folder.named <- filestamp.SyncDir(filepath.Dir(dir)) }()
}

// isAt reports whether f is what is at path.
func isAt(f *os.File, path string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(have, there)
}

// closeFolder lets others have the folder.
func (r *run) closeFolder() {
	if r.folder.lock != nil {
		_ = r.folder.lock.Close()
	}
}

// checkpoint writes the receipt as it stands into the turn's folder, in case the executor is
// killed. That it cannot be written is said, and no reason to stop.
func (r *run) checkpoint() {
	if r.dir == "" {
		return
	}
	path := filepath.Join(r.dir, "receipt.md")
	tmp := path + ".new"
	err := os.WriteFile(tmp, r.steps.Receipt(&r.info), 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		return
	}
	_ = os.Remove(tmp)
	if !r.folder.told {
		r.folder.told = true
		r.obs.Preparing("the receipt is not kept in the state directory while the turn runs: " + err.Error())
	}
}

// keepReceipt makes the turn's last receipt durable in its folder, with the outputs that it names.
// That it cannot be written is said: the caller still gets the receipt.
func (r *run) keepReceipt() {
	if r.dir == "" {
		return
	}
	err := errors.Join(filestamp.WriteFile(filepath.Join(r.dir, "receipt.md"), r.receipt, 0o600), r.syncOutputs())
	if err != nil {
		r.obs.Preparing("the receipt, or a long output, may not be kept in the state directory: " + err.Error())
	}
}

// syncOutputs makes durable what the receipt names.
func (r *run) syncOutputs() error {
	errs := []error{r.steps.Sync()}
	if r.x.repo.Fault != nil {
		errs = append(errs, r.x.repo.Fault("turns.sync"))
	}
	errs = append(errs, filestamp.SyncDir(r.dir))
	if r.folder.named != nil {
		errs = append(errs, <-r.folder.named)
		r.folder.named = nil
	}
	return errors.Join(errs...)
}
