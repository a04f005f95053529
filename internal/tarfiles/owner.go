package tarfiles

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
)

// An Owner is a user and a group, by numbers.
type Owner struct{ UID, GID int }

// gives reports whether what is created in a folder belongs to the owner: if the folder does.
func (u *unpacker) gives(dir string) bool {
	if u.lim.Owner == nil {
		return false
	}
	st, err := u.root.Lstat(dir)
	return err == nil && st.IsDir() && uidOf(st) == u.lim.Owner.UID
}

// own gives a new folder to its owner. It is the folder that is open, and empty, whatever has its name by then.
func (u *unpacker) own(name string) error {
	if !u.gives(path.Dir(name)) {
		return nil
	}
	d, err := u.root.OpenFile(name, os.O_RDONLY|onlyFolder, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if st, err := d.Stat(); err != nil || uidOf(st) != os.Geteuid() {
		return err
	}
	if _, err := d.Readdirnames(1); !errors.Is(err, io.EOF) {
		return err
	}
	return d.Chown(u.lim.Owner.UID, u.lim.Owner.GID)
}

// mkdirAll creates folders that a stream does not describe.
func (u *unpacker) mkdirAll(dir string) error {
	if u.lim.Owner == nil {
		return u.root.MkdirAll(dir, 0o755)
	}
	for i, c := range dir + "/" {
		if c != '/' {
			continue
		}
		err := u.root.Mkdir(dir[:i], 0o755)
		if err == nil {
			err = u.own(dir[:i])
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
