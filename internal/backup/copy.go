package backup

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"modernc.org/sqlite" // also registers "sqlite" with database/sql

	"turnstone.dev/turnstone/internal/sqlitefault"
)

// fresh ends the names of files that are being written.
const fresh = ".backup-new"

// A copying copies parts of a state directory.
type copying struct {
	job      *job
	ctx      context.Context
	from, to string
	seen     map[string]bool // relative paths of files and folders that stay in the backup
}

// tree copies a file, or a folder with what is in it. A file that is removed meanwhile is left out: a
// process removes what no longer counts.
func (c *copying) tree(name string) error {
	top := filepath.Join(c.from, name)
	info, err := os.Stat(top) // it may be a link to another disk
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c.keep(name)
	if info.Mode().IsRegular() {
		return c.file(name, info)
	}
	if top, err = filepath.EvalSymlinks(top); err != nil {
		return err
	}
	return filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = context.Cause(c.ctx)
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		rel := filepath.Join(name, below)
		if e.IsDir() && (without(rel) || strings.HasPrefix(e.Name(), ".") && path != top) {
			return fs.SkipDir
		}
		return c.entry(rel, e)
	})
}

// entry copies an entry of a folder.
func (c *copying) entry(rel string, e fs.DirEntry) error {
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		c.keep(rel)
		return os.MkdirAll(filepath.Join(c.to, rel), 0o700)
	case info.Mode().IsRegular() && filepath.Ext(rel) != ".lock":
		c.keep(rel)
		return c.file(rel, info)
	}
	return nil // a socket or a lock
}

// keep notes that a path and the folders above it stay.
func (c *copying) keep(rel string) {
	for ; rel != "."; rel = filepath.Dir(rel) {
		c.seen[rel] = true
	}
}

// file copies a file, unless the backup has it. Files that are one file here are one file there.
func (c *copying) file(rel string, info fs.FileInfo) error {
	rep, to := c.job.rep, filepath.Join(c.to, rel)
	rep.Files++
	rep.Bytes += info.Size()
	var key inode
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		key = inode{st.Dev, st.Ino}
	}
	have, err := os.Lstat(to)
	if other := c.job.links[key]; key != (inode{}) && other != "" {
		if there, err := os.Lstat(other); err == nil && have != nil && os.SameFile(there, have) {
			return nil
		}
		return c.link(other, to)
	}
	if err == nil && have.Mode().IsRegular() && have.Size() == info.Size() &&
		have.ModTime().Equal(info.ModTime()) {
		c.note(key, to)
		return nil
	}
	n, err := copyFile(filepath.Join(c.from, rel), to, info)
	if errors.Is(err, errGone) {
		rep.Files--
		rep.Bytes -= info.Size()
		delete(c.seen, rel)
		return nil
	}
	rep.Copied++
	rep.CopiedBytes += n
	c.note(key, to)
	return err
}

func (c *copying) note(key inode, to string) {
	if key != (inode{}) {
		c.job.links[key] = to
	}
}

// link makes to another name of a file of the backup. Another disk gets a copy.
func (c *copying) link(of, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	_ = os.Remove(to + fresh)
	err := os.Link(of, to+fresh)
	if err == nil {
		return os.Rename(to+fresh, to)
	}
	info, err := os.Stat(of)
	if err == nil {
		_, err = copyFile(of, to, info)
	}
	return err
}

// errGone is the error of a file that was removed before it was copied.
var errGone = errors.New("the file is gone")

// copyFile copies a file with its mode and time.
func copyFile(from, to string, info fs.FileInfo) (n int64, err error) {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errGone
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return 0, err
	}
	out, err := os.OpenFile(to+fresh, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm()|0o200)
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(to + fresh) }() // fails once it has its name
	n, err = io.Copy(out, in)
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Chtimes(to+fresh, info.ModTime(), info.ModTime())
	}
	if err == nil {
		err = os.Rename(to+fresh, to)
	}
	return n, err
}

// place gives the copy of a database its name, or removes that of an earlier backup.
func (c *copying) place(name string, copied bool) error {
	to := filepath.Join(c.to, name)
	for _, log := range []string{"-wal", "-shm", "-journal"} { // if somebody has opened the backup
		if err := os.Remove(to + log); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if !copied {
		err := os.Remove(to)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	info, err := os.Stat(to + fresh)
	if err != nil {
		return err
	}
	rep := c.job.rep
	rep.Files, rep.Copied = rep.Files+1, rep.Copied+1
	rep.Bytes, rep.CopiedBytes = rep.Bytes+info.Size(), rep.CopiedBytes+info.Size()
	if err := os.Rename(to+fresh, to); err != nil {
		return err
	}
	return syncDisk(c.to)
}

// prune removes from the backup what the state directory no longer has below the names.
func (c *copying) prune(names []string) error {
	for _, name := range names {
		var gone []string
		err := filepath.WalkDir(filepath.Join(c.to, name), func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(c.to, path)
			if err != nil || c.seen[rel] {
				return err
			}
			gone = append(gone, path)
			if info, err := os.Lstat(path); err == nil && info.IsDir() {
				return fs.SkipDir
			}
			return nil
		})
		for _, path := range gone {
			err = errors.Join(err, os.RemoveAll(path))
			c.job.rep.Removed++
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyDatabase copies one moment of a database that others use, without keeping them from writing. It
// reports false if there is none.
func copyDatabase(ctx context.Context, from, to string) (bool, error) {
	if info, err := os.Stat(from); err != nil || info.Size() == 0 {
		if errors.Is(err, fs.ErrNotExist) || err == nil {
			return false, nil
		}
		return false, failed(from, err)
	}
	for _, end := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(to + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, failed(to, err)
		}
	}
	dsn := url.URL{Scheme: "file", Path: from, RawQuery: url.Values{"mode": {"rw"},
		"_pragma": {"busy_timeout(20000)"}}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return false, failed(from, err)
	}
	defer func() { _ = db.Close() }()
	conn, err := db.Conn(ctx)
	if err == nil {
		err = conn.Raw(func(raw any) error { return online(raw, to) })
		err = errors.Join(err, conn.Close())
	}
	if err == nil {
		err = os.Chmod(to, 0o600)
	}
	return true, sqlitefault.Error(op, from, err, sqlitefault.Hints{
		Full:    "free space on the disk of the backup",
		Damaged: "verify the state directory with turn fsck",
		Access:  "run it as the user of the state directory"})
}

// online copies all pages in one step, in which readers and writers go on.
func online(raw any, to string) error {
	b, err := raw.(interface {
		NewBackup(string) (*sqlite.Backup, error)
	}).NewBackup((&url.URL{Scheme: "file", Path: to}).String())
	if err != nil {
		return err
	}
	for more := true; more && err == nil; {
		more, err = b.Step(-1)
	}
	return errors.Join(err, b.Finish())
}
