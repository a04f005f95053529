// Package snapshots stores the snapshots that drivers start sandboxes from. Each snapshot is in a
// folder named by a key of all properties that must match. It is taken once, is complete or absent,
// and is taken again if it is damaged.
//
// The substrates share one folder of snapshots. Beside a snapshot is a lock, KEY.lock, which is
// held while the snapshot is taken or removed.
package snapshots

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Kind describes how a substrate names its snapshots.
type Kind struct {
	Manifest string // the file that describes a snapshot, in its folder
	Keys     string // prefix of its keys; empty: other substrates' folders match as well
	// The folder of a snapshot that is being taken is named New, the key, End, and a random part.
	// No key contains End.
	New, End string
}

// Unused is how long a snapshot is kept without a start from it.
const Unused = 30 * 24 * time.Hour

// MaxManifest bounds a manifest that is read, in bytes.
const MaxManifest = 1 << 20

// Key returns a key for an identity, which is plain data: all properties that must match for a
// snapshot to fit.
func Key(identity any) string {
	b, _ := json.Marshal(identity) // plain data always encodes
	return turnstone.DigestBytes(b).Hex()[:32]
}

// A Want describes a snapshot that a sandbox starts from.
type Want[S any] struct {
	Home *statedir.Dir
	Key  string // names its folder
	// Open returns the snapshot in the folder dir if it fits and is intact. A missing snapshot is
	// fs.ErrNotExist; any other error means that the snapshot must not be used.
	Open func(dir string) (S, error)
	Fill func(dir string) error // takes the snapshot, in a new folder
	// called after Fill with the folder of all snapshots; those that it replaces may be removed
	Taken    func(base string)
	Progress func(string) // called before slow operations
	How      string       // the isolation that Progress reports
}

// Ensure returns the snapshot w, and takes it if no fitting, intact snapshot exists. Two processes
// that want the same snapshot take it once. Its folder is complete or absent.
func Ensure[S any](ctx context.Context, k Kind, w Want[S]) (S, error) {
	var none S
	base, err := w.Home.MkdirAll("snapshots")
	if err != nil {
		return none, err
	}
	k.Sweep(base)
	dir := filepath.Join(base, w.Key)
	if snap, err := w.Open(dir); err == nil {
		now := time.Now()
		// time of last use, for RemoveSuperseded
		_ = os.Chtimes(filepath.Join(dir, k.Manifest), now, now)
		return snap, nil
	}
	lock, err := statedir.Acquire(ctx, dir+".lock",
		func() { w.Progress("waiting for another turn to take the snapshot") })
	if err != nil {
		return none, err
	}
	defer lock.Release()
	snap, err := w.Open(dir)
	if err == nil {
		return snap, nil
	}
	if ctx.Err() != nil { // the check may have failed because of ctx only
		return none, ctx.Err()
	}
	if !errors.Is(err, os.ErrNotExist) {
		w.Progress("rebuilding a snapshot that cannot be used (" + err.Error() + ")")
	}
	if err := os.RemoveAll(dir); err != nil {
		return none, err
	}
	w.Progress("taking the snapshot (" + w.How + ")")
	if err := k.Write(dir, w.Fill); err != nil {
		return none, fmt.Errorf("taking the snapshot: %w", err)
	}
	w.Taken(base)
	return w.Open(dir)
}

// Write creates the folder dir from a new folder beside it that write fills. The folder is complete
// or absent.
func (k Kind) Write(dir string, write func(tmp string) error) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), k.New+filepath.Base(dir)+k.End+"*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := write(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// Create creates the file called name in dir, the folder of a new snapshot.
func Create(dir, name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// Describe writes the snapshot's manifest into the folder dir, which contains the other files.
func (k Kind) Describe(dir string, manifest any) error {
	b, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	return filestamp.WriteFile(filepath.Join(dir, k.Manifest), b, 0o600)
}

// Sweep removes folders from base, the folder of the snapshots, that killed processes left while
// they took a snapshot.
func (k Kind) Sweep(base string) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), k.New)
		if !ok || !strings.HasPrefix(rest, k.Keys) {
			continue
		}
		key, _, _ := strings.Cut(rest, k.End)
		lock, err := statedir.TryAcquire(filepath.Join(base, key+".lock"))
		if lock == nil || err != nil {
			continue // being taken now
		}
		_ = os.RemoveAll(filepath.Join(base, e.Name()))
		lock.Release()
	}
}

// A Verdict is RemoveSuperseded's decision on a snapshot.
type Verdict int

// Keep: the snapshot stays. MayAge: it is removed if it was unused for long. Replaced: no sandbox
// will start from it again.
const (
	Keep Verdict = iota
	MayAge
	Replaced
)

// RemoveSuperseded removes from base the snapshots that verdict, given their manifests, calls
// Replaced, and those that it calls MayAge and that were unused for a month, such as those of
// deleted templates. A running machine keeps its mapping of a removed snapshot.
func RemoveSuperseded[M any](k Kind, base string, verdict func(M) Verdict) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), k.Keys) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		path := filepath.Join(dir, k.Manifest)
		b, err := ReadAtMost(path, MaxManifest)
		var man M
		if err != nil || json.Unmarshal(b, &man) != nil {
			continue
		}
		st, err := os.Stat(path)
		old := err == nil && time.Since(st.ModTime()) > Unused
		if v := verdict(man); v == Replaced || v == MayAge && old {
			remove(dir)
		}
	}
}

// remove removes a snapshot, unless a process is about to use it.
func remove(dir string) {
	lock, err := statedir.TryAcquire(dir + ".lock")
	if lock == nil || err != nil {
		return
	}
	defer lock.Release()
	_ = os.RemoveAll(dir)
	_ = os.Remove(dir + ".lock")
}

// ReadAtMost reads the file at path; a file longer than limit bytes is an error.
func ReadAtMost(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if st, err := f.Stat(); err == nil { // each start reads a device state: allocate it once
		b.Grow(int(min(st.Size(), limit)) + bytes.MinRead)
	}
	_, err = b.ReadFrom(io.LimitReader(f, limit+1))
	if err == nil && int64(b.Len()) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	return b.Bytes(), err
}
