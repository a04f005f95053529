// Package snapshots keeps the snapshots that drivers of substrates start sandboxes from:
// each in a folder named by a key of all that must be the same for it to fit, taken once,
// there whole or not at all, and taken anew where it is damaged.
//
// The substrates share one folder of snapshots. Beside a snapshot is a lock, KEY.lock,
// which is held while the snapshot is taken or removed.
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
	"turnstone.dev/turnstone/internal/statedir"
)

// A Kind says how a substrate names what it keeps.
type Kind struct {
	Manifest string // the file that describes a snapshot, in its folder
	Keys     string // what its keys begin with; empty: some of them are other substrates'
	// A folder in which a snapshot is being taken is named New, the key, End, and something
	// random. No key has End in it.
	New, End string
}

// Unused is how long a snapshot is kept that no sandbox starts from.
const Unused = 30 * 24 * time.Hour

// MaxManifest bounds what is read of a manifest, in bytes.
const MaxManifest = 1 << 20

// Key returns a key for an identity, which is plain data: everything that must be the
// same for a snapshot to fit.
func Key(identity any) string {
	b, _ := json.Marshal(identity) // plain data always encodes
	return turnstone.DigestBytes(b).Hex()[:32]
}

// A Want is a snapshot that somebody wants to start from.
type Want[S any] struct {
	Dir string // its folder
	// Open returns the snapshot if it fits and is whole. One that is not there is
	// fs.ErrNotExist; any other error says that it must not be used.
	Open func() (S, error)
	// Take makes the folder, with Kind.Write. What was there is gone by then.
	Take     func() error
	Taken    func()       // called after that; what it replaces may be removed
	Progress func(string) // told before work that takes long
	How      string       // the way of isolation that Progress is told
}

// Ensure returns the snapshot w, which it takes where there is none that fits and is
// whole. Two processes that want the same one take it once.
func Ensure[S any](ctx context.Context, k Kind, w Want[S]) (S, error) {
	var none S
	if snap, err := w.Open(); err == nil {
		now := time.Now()
		_ = os.Chtimes(filepath.Join(w.Dir, k.Manifest), now, now) // when it was used last, for RemoveSuperseded
		return snap, nil
	}
	lock, err := statedir.Acquire(ctx, w.Dir+".lock", func() { w.Progress("waiting for another turn to take the snapshot") })
	if err != nil {
		return none, err
	}
	defer lock.Release()
	snap, err := w.Open()
	if err == nil {
		return snap, nil
	}
	if ctx.Err() != nil { // the check may have failed of that alone
		return none, ctx.Err()
	}
	if !errors.Is(err, os.ErrNotExist) {
		w.Progress("rebuilding a snapshot that cannot be used (" + err.Error() + ")")
	}
	if err := os.RemoveAll(w.Dir); err != nil {
		return none, err
	}
	w.Progress("taking the snapshot (" + w.How + ")")
	if err := w.Take(); err != nil {
		return none, fmt.Errorf("taking the snapshot: %w", err)
	}
	w.Taken()
	return w.Open()
}

// Write makes the folder dir with what write puts into a new one beside it. It appears
// whole or not at all.
func (k Kind) Write(dir string, write func(tmp string) error) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), k.New+filepath.Base(dir)+k.End+"*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := write(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// Sweep removes from base, the folder of the snapshots, what processes left behind that
// were killed while they took one.
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
			continue // it is being taken right now
		}
		_ = os.RemoveAll(filepath.Join(base, e.Name()))
		lock.Release()
	}
}

// A Verdict says what RemoveSuperseded does with a snapshot.
type Verdict int

// Keep one that is not to be touched, MayAge one that goes when it was not used for
// long, and Replaced one that no sandbox will start from again.
const (
	Keep Verdict = iota
	MayAge
	Replaced
)

// RemoveSuperseded removes from base the snapshots that verdict, given their manifests,
// says are Replaced, and those that MayAge and were not used for a month, as of a
// template that is no more. A machine that still runs from one keeps its mapping.
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

// remove removes a snapshot, unless somebody is about to use it.
func remove(dir string) {
	lock, err := statedir.TryAcquire(dir + ".lock")
	if lock == nil || err != nil {
		return
	}
	defer lock.Release()
	_ = os.RemoveAll(dir)
	_ = os.Remove(dir + ".lock")
}

// ReadAtMost reads the file at path; one longer than limit bytes is an error.
func ReadAtMost(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var b bytes.Buffer
	if st, err := f.Stat(); err == nil { // a device state is read at each start: once, not in growing parts
		b.Grow(int(min(st.Size(), limit)) + bytes.MinRead)
	}
	_, err = b.ReadFrom(io.LimitReader(f, limit+1))
	if err == nil && int64(b.Len()) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	return b.Bytes(), err
}
