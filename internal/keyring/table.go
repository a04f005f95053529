package keyring

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Folder is the folder of the records in a state directory.
const Folder = "domains"

const (
	recordSuffix = ".json"
	lockFile     = "lock"
)

// A Table is the records of a state directory, a file for each domain. Its methods are safe for
// concurrent use, also by several processes.
type Table struct{ dir string }

// NewTable returns the table of a state directory. It creates nothing.
func NewTable(dir *statedir.Dir) *Table { return &Table{dir.Path(Folder)} }

func (t *Table) path(id ID) string { return filepath.Join(t.dir, id.String()+recordSuffix) }

// lock keeps other processes from changing records. Readers need no lock.
func (t *Table) lock(ctx context.Context) (*statedir.Lock, error) {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, writeError(t.dir, err)
	}
	l, err := statedir.Acquire(ctx, filepath.Join(t.dir, lockFile), nil)
	if err != nil {
		return nil, writeError(t.dir, err)
	}
	return l, nil
}

func writeError(subject string, err error) error {
	return turnstone.Classify("keyring.write", turnstone.KindUnavailable, subject, err,
		"free space on the disk of the state directory")
}

// Add writes a new record, durably. It calls valid, which may be nil, while nobody else changes
// records, and writes nothing if valid fails.
func (t *Table) Add(ctx context.Context, r *Record, valid func() error) error {
	l, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	return t.add(r, valid)
}

// add is Add for a caller with the lock.
func (t *Table) add(r *Record, valid func() error) error {
	b, err := r.encode()
	if err != nil {
		return turnstone.NewError("keyring.write", turnstone.KindInternal, subject(r.ID), err)
	}
	if t.Has(r.ID) {
		return turnstone.Errorf("keyring.write", turnstone.KindInvalid, subject(r.ID),
			"there is a key already").WithHint("shred the domain first")
	}
	if valid != nil {
		if err := valid(); err != nil {
			return err
		}
	}
	if err := filestamp.WriteFile(t.path(r.ID), b, 0o600); err != nil {
		return writeError(subject(r.ID), err)
	}
	// the name of the folder, which this call may have made
	if err := filestamp.SyncDir(filepath.Dir(t.dir)); err != nil {
		return writeError(subject(r.ID), err)
	}
	return nil
}

// Has reports whether the domain has a record.
func (t *Table) Has(id ID) bool {
	_, err := os.Lstat(t.path(id))
	return err == nil
}

// Get returns a record. The error is of kind NotFound with the cause ErrShredded if there is none,
// and Integrity if it is damaged.
func (t *Table) Get(id ID) (*Record, error) {
	for range tries {
		b, replaced, err := t.read(id)
		if err != nil {
			return nil, err
		}
		// Another process may have overwritten this file after a newer one took its name.
		if r, err := decodeRecord(id, b); err == nil || !replaced {
			return r, err
		}
	}
	return nil, turnstone.Errorf("keyring.read", turnstone.KindUnavailable, subject(id),
		"other processes change its record all the time").WithHint("try again")
}

// read returns the file of a record, and whether another file has its name since.
func (t *Table) read(id ID) (b []byte, replaced bool, err error) {
	f, err := openNoFollow(t.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, turnstone.NewError("keyring.read", turnstone.KindNotFound, subject(id),
			ErrShredded).WithHint("restore its file below domains/ from a backup, if there is one")
	}
	fail := func(err error) ([]byte, bool, error) {
		return nil, false, turnstone.NewError("keyring.read", turnstone.KindUnavailable, subject(id),
			err)
	}
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fail(errors.Join(err, errors.New("its record is not a regular file")))
	}
	b, err = io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return fail(err)
	}
	now, err := os.Lstat(t.path(id)) // while f keeps its number from being used again
	return b, err != nil || !os.SameFile(info, now), nil
}

// Replace writes a record in place of old, durably. It reports false, and changes nothing, if the
// record is no longer old: another process has changed or shredded it. valid is as in Add.
func (t *Table) Replace(ctx context.Context, old, r *Record, valid func() error) (bool, error) {
	l, err := t.lock(ctx)
	if err != nil {
		return false, err
	}
	defer l.Release()
	return t.replace(old, r, valid)
}

// replace is Replace for a caller with the lock.
func (t *Table) replace(old, r *Record, valid func() error) (bool, error) {
	before, err := old.encode()
	if err != nil {
		return false, turnstone.NewError("keyring.write", turnstone.KindInternal, subject(r.ID), err)
	}
	b, err := r.encode()
	if err != nil {
		return false, turnstone.NewError("keyring.write", turnstone.KindInternal, subject(r.ID), err)
	}
	now, _, err := t.read(r.ID)
	if errors.Is(err, ErrShredded) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !bytes.Equal(now, before) {
		return false, nil
	}
	if valid != nil {
		if err := valid(); err != nil {
			return false, err
		}
	}
	// The old wrapping should not stay on the disk.
	if err := WriteOver(t.path(r.ID), b, 0o600); err != nil {
		return false, writeError(subject(r.ID), err)
	}
	return true, nil
}

// overwrite replaces the content of a file by zeros, durably.
func overwrite(f *os.File, size int) error {
	if _, err := f.WriteAt(make([]byte, size), 0); err != nil {
		return err
	}
	return f.Sync()
}

// Remove overwrites and removes a record and the temporary files of killed writers. A missing
// record is no error: a killed Remove is completed by the next one.
func (t *Table) Remove(ctx context.Context, id ID) error {
	l, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	// Without its name first: who reads it at that time finds that there is none, not a damaged one.
	hidden := "." + id.String() + recordSuffix
	err = os.Rename(t.path(id), filepath.Join(t.dir, hidden+".shredded"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return writeError(subject(id), err)
	}
	names, err := t.names()
	if err != nil {
		return writeError(subject(id), err)
	}
	var failed []error
	for _, name := range names {
		if !strings.HasPrefix(name, hidden) { // also .d_….json.123, of filestamp.WriteFile
			continue
		}
		failed = append(failed, shredFile(filepath.Join(t.dir, name)))
	}
	failed = append(failed, filestamp.SyncDir(t.dir))
	if err := errors.Join(failed...); err != nil {
		return writeError(subject(id), err)
	}
	return nil
}

// shredFile overwrites and removes a file.
func shredFile(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().IsRegular() {
		err = func() error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			return overwrite(f, int(min(info.Size(), maxRecord)))
		}()
	}
	// removed also if it cannot be overwritten, such as on a full disk
	return errors.Join(err, os.Remove(path))
}

// List returns the IDs of all records, in order.
func (t *Table) List() ([]ID, error) {
	names, err := t.names()
	if err != nil {
		return nil, turnstone.NewError("keyring.read", turnstone.KindUnavailable, t.dir, err)
	}
	var ids []ID
	for _, name := range names {
		text, ok := strings.CutSuffix(name, recordSuffix)
		if id, err := seal.ParseID(text); ok && err == nil {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b ID) int { return bytes.Compare(a[:], b[:]) })
	return ids, nil
}

// names returns the names of all files of the folder, which may be missing.
func (t *Table) names() ([]string, error) {
	d, err := os.Open(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	return d.Readdirnames(-1)
}
