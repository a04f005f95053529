package repo

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// LockFolder locks a folder; how is an operation of flock(2). The lock ends with the file.
func LockFolder(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "flock", Path: dir, Err: err}
	}
	return f, nil
}

// MemoryFolder creates a folder in memory for files of a sealed session, among those of one kind.
// remove removes it; gc removes one whose process was killed.
func MemoryFolder(h *statedir.Dir, kind, name string) (dir string, remove func(), err error) {
	dir, lock, err := lockedMemory(h, kind, name)
	if err != nil {
		return "", nil, err
	}
	return dir, func() { _ = os.RemoveAll(dir); _ = lock.Close() }, nil
}

// lockedMemory creates a folder in memory, and locks it. Until it is locked, gc may take it for one
// that a killed process left, and remove it.
func lockedMemory(h *statedir.Dir, kind, name string) (dir string, lock *os.File, err error) {
	for {
		if dir, err = h.Memory(kind, name); err != nil {
			return "", nil, err
		}
		lock, err = LockFolder(dir, unix.LOCK_EX)
		if err == nil && isAt(lock, dir) {
			return dir, lock, nil
		}
		if err == nil {
			_ = lock.Close()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, turnstone.NewError("executor.memory", turnstone.KindUnavailable, dir, err)
		}
	}
}

// The kinds of folders in memory, besides those of turns and images: commands of sandboxes with their
// outputs, and machines that are saved or restored.
const MemoryOfSandboxes, MemoryOfMachines = "sandboxes", "machines"

// sweepCaptures removes from the folder of an interrupted turn, whose lock the caller holds, the
// files that its receipt does not name: outputs of the interrupted step, and partly written files.
// It returns their number and the bytes that they occupied; a dry run only counts them.
func sweepCaptures(dir string, dry bool) (files int, freed int64, err error) {
	receipt, err := os.ReadFile(filepath.Join(dir, "receipt.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		name := e.Name()
		output := strings.HasPrefix(name, "step-") &&
			(strings.HasSuffix(name, ".stdout") || strings.HasSuffix(name, ".stderr"))
		unfinished := name == "receipt.md.new" || name == sealedReceipt+".new" || strings.HasPrefix(name, ".receipt.md.")
		if !e.Type().IsRegular() || !output && !unfinished || output &&
			bytes.Contains(receipt, []byte("/"+filepath.Base(dir)+"/"+name)) {
			continue
		}
		i, err := e.Info()
		if err == nil && !dry {
			err = os.Remove(filepath.Join(dir, name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return files, freed, err
		}
		files++
		freed += statedir.Allocated(i)
	}
	return files, freed, nil
}
