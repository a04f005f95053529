package statedir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// sharedMemory is where Linux systems mount a file system in memory for all users.
const sharedMemory = "/dev/shm"

// Memory creates the folder at elem of a folder in memory that belongs to this state directory, and
// returns its path. Its files do not reach the disk, unless the host swaps to a disk that is not
// encrypted, and end with the host's boot. If there is no file system in memory, the error is of
// kind Unavailable.
func (h *Dir) Memory(elem ...string) (string, error) {
	fail := func(path string, err error) (string, error) {
		return "", turnstone.NewError("home.memory", turnstone.KindUnavailable, path, err).
			WithHint("sealed sessions need a tmpfs at " + sharedMemory)
	}
	id, err := h.memoryID()
	if err != nil {
		return fail(h.Root, err)
	}
	top := filepath.Join(sharedMemory, "turnstone-"+id)
	if err := os.Mkdir(top, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fail(sharedMemory, err)
	}
	if err := ownMemory(top); err != nil {
		return fail(top, err)
	}
	dir := filepath.Join(append([]string{top}, elem...)...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(dir, err)
	}
	return dir, nil
}

// HasMemory reports whether this state directory has ever had a folder in memory.
func (h *Dir) HasMemory() bool {
	_, err := os.Stat(h.Path("memory-id"))
	return err == nil
}

// ownMemory reports why the folder at path cannot keep secrets from the disk and from other users.
func ownMemory(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 || ownerOf(fi) != os.Geteuid() {
		return errors.New("is not a private folder of this user")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	if st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
		return errors.New("is not in memory")
	}
	return nil
}

// memoryID returns the name of h in memory, which others cannot guess: they could take it first. The
// first call creates it.
func (h *Dir) memoryID() (string, error) {
	path := h.Path("memory-id")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		tmp := path + "." + rand.Text()
		if err := os.WriteFile(tmp, []byte(strings.ToLower(rand.Text())+"\n"), 0o600); err != nil {
			return "", err
		}
		err = os.Link(tmp, path) // another process may be first
		_ = os.Remove(tmp)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(b))
	if len(id) != 26 || strings.ContainsAny(id, "/.") {
		return "", fmt.Errorf("%s is damaged; remove it", path)
	}
	return id, nil
}

// ForgetMemory removes the folder at elem of the folder in memory.
func (h *Dir) ForgetMemory(elem ...string) error {
	dir, err := h.Memory()
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(append([]string{dir}, elem...)...))
}
