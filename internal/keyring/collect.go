package keyring

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// claimSuffix ends the name of a file whose lock keeps a new domain from Collect, because what uses
// it is not stored yet. The lock ends with the process.
const claimSuffix = ".new"

func (t *Table) claimPath(id ID) string { return filepath.Join(t.dir, id.String()+claimSuffix) }

// claim locks a domain that is about to be made; nil: another process has the lock.
func (t *Table) claim(id ID) (*statedir.Lock, error) {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, writeError(t.dir, err)
	}
	l, err := statedir.TryAcquire(t.claimPath(id))
	if err != nil {
		return nil, writeError(subject(id), err)
	}
	return l, nil
}

// unclaim ends a claim.
func (t *Table) unclaim(id ID, l *statedir.Lock) {
	_ = os.Remove(t.claimPath(id)) // while it is locked, so that it is no other process's
	l.Release()
}

// Settle ends the time in which Collect leaves a domain alone that this Ring has made: what uses it
// is stored, or never will be. It does nothing for other domains.
func (r *Ring) Settle(id ID) {
	r.mu.Lock()
	l := r.claims[id]
	delete(r.claims, id)
	r.mu.Unlock()
	if l != nil {
		r.table.unclaim(id, l)
	}
}

// Collect destroys the keys of domains that nothing uses, and returns their IDs; a dry run destroys
// nothing. Domains that were made after the time before are left alone, and those that a process has
// made and not settled. used is asked after that, so that it knows of all that was stored until then.
// Records that are damaged stay. Files that killed writers left are removed.
func (t *Table) Collect(ctx context.Context, before time.Time, dry bool,
	used func(ctx context.Context, id ID) (bool, error)) (gone []ID, err error) {
	ids, err := t.List()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		rec, err := t.Get(id)
		if err != nil || !rec.Created.Before(before) {
			continue
		}
		// Most domains are used: no file is made and locked for those.
		if is, err := used(ctx, id); err != nil || is {
			if err != nil {
				return gone, err
			}
			continue
		}
		unused, err := t.collect(ctx, id, dry, used)
		if err != nil {
			return gone, err
		}
		if unused {
			gone = append(gone, id)
		}
	}
	if dry {
		return gone, nil
	}
	return gone, t.removeLitter(ctx)
}

// collect destroys the key of one domain if it is not used and not claimed.
func (t *Table) collect(ctx context.Context, id ID, dry bool,
	used func(ctx context.Context, id ID) (bool, error)) (bool, error) {
	l, err := t.claim(id)
	if err != nil || l == nil {
		return false, err
	}
	defer t.unclaim(id, l)
	if is, err := used(ctx, id); err != nil || is || dry {
		return err == nil && !is, err
	}
	return true, t.Remove(ctx, id)
}

// removeLitter removes files that killed writers left: nobody writes while the table is locked.
func (t *Table) removeLitter(ctx context.Context) error {
	if _, err := os.Stat(t.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	l, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	names, err := t.names()
	if err != nil {
		return writeError(t.dir, err)
	}
	var failed []error
	for _, name := range names {
		if strings.HasPrefix(name, ".") && strings.Contains(name, recordSuffix) {
			failed = append(failed, shredFile(filepath.Join(t.dir, name)))
			continue
		}
		text, claim := strings.CutSuffix(name, claimSuffix)
		id, err := seal.ParseID(text)
		if !claim || err != nil {
			continue
		}
		if l, err := t.claim(id); err != nil {
			failed = append(failed, err)
		} else if l != nil {
			t.unclaim(id, l)
		}
	}
	if err := errors.Join(append(failed, filestamp.SyncDir(t.dir))...); err != nil {
		return turnstone.NewError("keyring.collect", turnstone.KindUnavailable, t.dir, err)
	}
	return nil
}
