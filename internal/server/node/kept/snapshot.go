package kept

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
)

// Files of a snapshot's folder.
const (
	snapshotFile = "snapshot.json"
	machineDir   = "machine"
	unfinished   = ".new-"
	gone         = ".gone-"
)

// Machine returns the folder of a snapshot's machine, in the folder dir of the snapshots.
func (s *Snapshot) Machine(dir string) string { return filepath.Join(dir, s.ID, machineDir) }

// Keep makes the snapshot s in dir: write makes the folder of the machine. The snapshot is there
// completely or not at all. The caller serializes calls for one ID.
func (s *Snapshot) Keep(ctx context.Context, dir string,
	write func(ctx context.Context, machine string) error) error {
	if !snapshotID.MatchString(s.ID) {
		return turnstone.Errorf("snapshot.keep", turnstone.KindInvalid, "the snapshot",
			"%.40q is no ID", s.ID)
	}
	tmp := filepath.Join(dir, unfinished+s.ID)
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o700)); err != nil {
		return failed(s.ID, err)
	}
	if err := write(ctx, filepath.Join(tmp, machineDir)); err != nil {
		return err
	}
	size, err := sizeOf(tmp)
	if err != nil {
		return failed(s.ID, err)
	}
	s.Version, s.Size = version, size
	if err := writeJSON(filepath.Join(tmp, snapshotFile), s, filestamp.WriteFile); err != nil {
		return err
	}
	return failed(s.ID, os.Rename(tmp, filepath.Join(dir, s.ID)))
}

// LoadSnapshot returns a snapshot in dir; nil if there is none.
func LoadSnapshot(dir, id string) (*Snapshot, error) {
	if !snapshotID.MatchString(id) {
		return nil, nil
	}
	path, s := filepath.Join(dir, id, snapshotFile), &Snapshot{}
	err := readJSON(path, s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (s.Version != version || s.ID != id) {
		err = fmt.Errorf("is of version %d, of %.40q", s.Version, s.ID)
	}
	if err != nil {
		return nil, damaged(path, err)
	}
	return s, nil
}

// Snapshots returns the snapshots in dir, oldest first. Damaged ones are left out.
func Snapshots(dir string) ([]*Snapshot, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, failed("", err)
	}
	var all []*Snapshot
	for _, e := range entries {
		if s, err := LoadSnapshot(dir, e.Name()); err == nil && s != nil {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *Snapshot) int { return a.Created.Compare(b.Created) })
	return all, nil
}

// Remove removes a snapshot from dir, at once for all readers.
func (s *Snapshot) Remove(dir string) error {
	at := filepath.Join(dir, gone+s.ID)
	err := os.Rename(filepath.Join(dir, s.ID), at)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(at)
	}
	return failed(s.ID, err)
}

// Sweep removes what a former process left half done in dir.
func Sweep(dir string) error {
	var errs []error
	for _, prefix := range []string{unfinished, gone} {
		left, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
		errs = append(errs, err)
		for _, path := range left {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return failed("", errors.Join(errs...))
}

// sizeOf returns the bytes that the files below dir occupy.
func sizeOf(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			total += occupied(info)
		}
		return err
	})
	return total, err
}

func failed(id string, err error) error {
	if err == nil {
		return nil
	}
	return turnstone.Classify("snapshot.keep", turnstone.KindUnavailable, "snapshot "+id, err,
		"free space in the node's state directory")
}
