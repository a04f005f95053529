// Package backup copies a state directory, with those of a server's tenants, to a folder while
// processes use it. The copy is a state directory as well, without what can be made again and
// without what runs.
//
// Objects of the store never change and are durable before a database names them. So each database is
// copied first, as one moment of it (SQLite's online backup), and then the files; no garbage
// collection deletes objects meanwhile. The copies of the databases take the place of those of an
// earlier backup when everything that they name is durable, so a backup that is interrupted is that
// earlier one, with some files more.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// Options are for Make.
type Options struct {
	Dir *statedir.Dir
	// To is the folder of the backup, which is made if it is missing. It is empty, or has an earlier
	// backup, which is updated: what is no longer in Dir is removed.
	To string
	// Keys is the folder for the private keys of Dir, which is like To; empty: they are not copied.
	Keys string
	// Shared is set if the sessions are in a PostgreSQL database. Make also finds that out by Dir, and
	// whether a controller's records are. It then refuses, unless Dumped says that these databases have
	// been dumped: their part of the backup is older.
	Shared, Dumped bool
}

// What is copied of a state directory.
func files() []string {
	return []string{"config.toml", "server.toml", "hosts.toml", "store-id", "domain", "trusted", "revoked",
		statedir.RecordsNote()}
}

func folders() []string {
	return []string{"domains", "turns", "held", "templates", "kernel", "audit", "server",
		filepath.Join("store", "blobs", "packs"), filepath.Join("store", "blobs", "homes")}
}

// secrets are what Options.Keys is for: keys of the host, and those and tokens of its user as a client.
func secrets() []string { return []string{"keys", "client"} }

func databases() []string { return []string{"context.db", "server.db"} }

// without are folders of those that are not copied: machines that run, and files that are being
// written.
func without(name string) bool {
	return slices.Contains([]string{"server/received", "server/sandboxes", "server/snapshots",
		"templates/tmp"}, filepath.ToSlash(name))
}

// known reports whether an entry of a state directory can be made again, belongs to what runs, or is
// copied otherwise.
func known(name string) bool {
	if slices.Contains([]string{"cache", "firecracker", "gvisor", "homes", "images", "leases",
		"machines", "sandboxes", "slots", "snapshots", "store", "store-s3", "tenants", "trash",
		marker}, name) || strings.HasPrefix(name, "last-session-") {
		return true
	}
	return slices.Contains([]string{".lock", ".sock", ".db-wal", ".db-shm", ".db-journal"},
		filepath.Ext(name))
}

// marker is a file that makes a folder a backup.
const marker = "backup.json"

// A mark is what the marker says.
type mark struct {
	Version string     `json:"turn"`
	Began   time.Time  `json:"began"`
	Ended   *time.Time `json:"ended,omitempty"` // none: it was interrupted, or is running
}

// A job is a backup that runs.
type job struct {
	o     Options
	rep   *turnstone.BackupReport
	links map[inode]string // paths in the backup
}

type inode struct{ dev, ino uint64 }

// Make makes a backup. The error is of kind Invalid if a folder is not one for backups or a database
// has to be dumped first, and of kind Unavailable if another backup to it runs.
func Make(ctx context.Context, o Options) (*turnstone.BackupReport, error) {
	j := &job{o: o, links: map[inode]string{}, rep: &turnstone.BackupReport{To: o.To, Keys: o.Keys,
		Left: []string{}}}
	dirs, err := stateDirs(o.Dir.Root)
	if err != nil {
		return nil, failed(o.Dir.Root, err)
	}
	if err := o.needsDump(dirs); err != nil {
		return nil, err
	}
	for _, to := range []string{o.To, o.Keys} {
		if to == "" {
			continue
		}
		end, err := j.begin(to)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	if dirs, err = stateDirs(o.Dir.Root); err != nil { // a tenant may be new
		return nil, failed(o.Dir.Root, err)
	}
	for _, rel := range dirs {
		if err := j.stateDir(ctx, rel); err != nil {
			return nil, err
		}
	}
	if err := j.forget(dirs); err != nil {
		return nil, failed(o.To, err)
	}
	for _, to := range []string{o.To, o.Keys} {
		if to != "" {
			if err := done(to); err != nil {
				return nil, failed(to, err)
			}
		}
	}
	return j.rep, nil
}

// begin checks a folder, locks it and marks it. end releases it.
func (j *job) begin(to string) (end func(), err error) {
	if within(j.o.Dir.Root, to) || within(to, j.o.Dir.Root) {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, to,
			"and the state directory %s are in one another", j.o.Dir.Root).
			WithHint("name a folder on another disk")
	}
	if j.o.Keys != "" && (within(j.o.To, j.o.Keys) || within(j.o.Keys, j.o.To)) {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, j.o.Keys,
			"and the backup are in one another").WithHint("keep the keys elsewhere: who has both " +
			"can read everything")
	}
	if _, err := statedir.Open(to); err != nil { // makes it, private to its user
		return nil, err
	}
	entries, err := os.ReadDir(to)
	if err != nil {
		return nil, failed(to, err)
	}
	if _, err := os.Stat(filepath.Join(to, marker)); err != nil && len(entries) > 0 {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, to, "is not empty, and no backup").
			WithHint("name an empty folder, or one of an earlier backup")
	}
	lock, err := statedir.TryAcquire(filepath.Join(to, marker+".lock"))
	if err != nil {
		return nil, failed(to, err)
	}
	if lock == nil {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, to, "another backup to it runs").
			WithHint("wait for it")
	}
	now := time.Now().UTC()
	if err := writeMark(to, mark{Version: turnstone.Version, Began: now}); err != nil {
		lock.Release()
		return nil, failed(to, err)
	}
	return lock.Release, nil
}

// done marks a backup as whole.
func done(to string) error {
	b, err := os.ReadFile(filepath.Join(to, marker))
	if err != nil {
		return err
	}
	var m mark
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	now := time.Now().UTC()
	m.Ended = &now
	return writeMark(to, m)
}

func writeMark(to string, m mark) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return filestamp.WriteFile(filepath.Join(to, marker), append(b, '\n'), 0o600)
}

// stateDirs returns the state directories in root, relative to it: itself, and those of tenants.
func stateDirs(root string) ([]string, error) {
	dirs := []string{"."}
	entries, err := os.ReadDir(filepath.Join(root, "tenants"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join("tenants", e.Name()))
		}
	}
	return dirs, nil
}

// stateDir copies one state directory.
func (j *job) stateDir(ctx context.Context, rel string) error {
	from, to := filepath.Join(j.o.Dir.Root, rel), filepath.Join(j.o.To, rel)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return failed(to, err)
	}
	release, err := holdGC(ctx, filepath.Join(from, "store"))
	if err != nil {
		return err
	}
	defer release()
	copied := map[string]bool{} // databases
	for _, name := range databases() {
		is, err := copyDatabase(ctx, filepath.Join(from, name), filepath.Join(to, name+fresh))
		if err != nil {
			return err
		}
		copied[name] = is
	}
	c := &copying{job: j, ctx: ctx, from: from, to: to, seen: map[string]bool{}}
	for _, name := range slices.Concat(files(), folders()) {
		if err := c.tree(name); err != nil {
			return failed(filepath.Join(from, name), err)
		}
	}
	if err := syncDisk(to); err != nil {
		return failed(to, err)
	}
	for _, name := range databases() {
		if err := c.place(name, copied[name]); err != nil {
			return failed(filepath.Join(to, name), err)
		}
	}
	if err := c.prune(slices.Concat(files(), folders())); err != nil {
		return failed(to, err)
	}
	j.rep.Directories++
	j.leave(rel, from)
	if j.o.Keys == "" {
		return nil
	}
	k := &copying{job: j, ctx: ctx, from: from, to: filepath.Join(j.o.Keys, rel),
		seen: map[string]bool{}}
	for _, name := range secrets() {
		if err := k.tree(name); err != nil {
			return failed(k.to, err)
		}
	}
	if err := k.prune(secrets()); err != nil {
		return failed(k.to, err)
	}
	return failed(k.to, syncDisk(j.o.Keys))
}

// leave reports entries that a backup does not have, such as files that the settings name.
func (j *job) leave(rel, from string) {
	entries, _ := os.ReadDir(from)
	for _, e := range entries {
		name := e.Name()
		if !known(name) && !slices.Contains(slices.Concat(files(), folders(), databases(), secrets()), name) {
			j.rep.Left = append(j.rep.Left, filepath.Join(rel, name))
		}
	}
}

// forget removes the copies of tenants that are gone.
func (j *job) forget(dirs []string) error {
	for _, to := range []string{j.o.To, j.o.Keys} {
		if to == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(to, "tenants"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if name := filepath.Join("tenants", e.Name()); !slices.Contains(dirs, name) {
				if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
					return err
				}
				j.rep.Removed++
			}
		}
	}
	return nil
}

// holdGC keeps garbage collections from deleting objects of the store in dir, in its files, until
// release. The locks are those of package store.
func holdGC(ctx context.Context, dir string) (release func(), err error) {
	if _, err := os.Stat(dir); err != nil {
		return func() {}, nil
	}
	gate, err := share(ctx, filepath.Join(dir, "gate.lock"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = gate.Close() }()
	gc, err := share(ctx, filepath.Join(dir, "gc.lock"))
	if err != nil {
		return nil, err
	}
	return func() { _ = gc.Close() }, nil
}

// share takes a shared lock, and waits for it until ctx is done.
func share(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, failed(path, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, failed(path, errors.Join(err, f.Close()))
		}
		select {
		case <-ctx.Done():
			return nil, failed(path, errors.Join(context.Cause(ctx), f.Close()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// syncDisk makes what was written to the disk of dir durable.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(f.Fd()))
	return errors.Join(err, f.Close())
}

// within reports whether path is dir, or in it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

const op turnstone.Op = "backup"

// failed returns err as a typed error about a file.
func failed(path string, err error) error {
	var typed *turnstone.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		path, err = pe.Path, fmt.Errorf("%s: %w", pe.Op, pe.Err)
	}
	e := turnstone.NewError(op, turnstone.KindUnavailable, path, err)
	switch {
	case turnstone.IsFull(err):
		e.Kind, e.Hint = turnstone.KindExhausted, "free space on the disk of the backup"
	case errors.Is(err, context.Canceled):
		e.Kind = turnstone.KindCanceled
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "run it as the user of the state directory"
	}
	return e
}
