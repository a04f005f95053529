package homes

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
)

// users let one turn at a time use a home: of this machine, or of all that share a database.
type users interface {
	// take waits until the turn is the home's only user. waiting is called with the user that take
	// waits for.
	take(ctx context.Context, turn turnstone.TurnID, waiting func(user string)) (lease.Lease, error)
	// try is take that does not wait; nil: the home is in use.
	try(ctx context.Context) (lease.Lease, error)
	// user returns the turn that uses the home; empty: it is not known. used is false if none does.
	user(ctx context.Context) (turn turnstone.TurnID, used bool, err error)
}

// usersOf returns the users of an owner's home.
func (h *Homes) usersOf(cs *repo.ContextStore, owner, name string) users {
	if rows := cs.DB.Rows(); rows != nil {
		return rowUsers{rows, "home/" + ownerFolder(owner) + "/" + name}
	}
	return fileUsers{h.repo.Dir.Path("homes", ownerFolder(owner), name)}
}

// fileUsers are those of the home with the files at path.
type fileUsers struct{ path string }

func (f fileUsers) take(ctx context.Context, turn turnstone.TurnID, waiting func(string)) (
	lease.Lease, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, f.path, err).
			WithHint("check the permissions of the state directory")
	}
	lock, err := statedir.Acquire(ctx, f.path+lockSuffix, func() { waiting(userOf(turnOf(f.path))) })
	if err != nil {
		return nil, err
	}
	if err := filestamp.WriteFile(f.path+userSuffix, []byte(turn), 0o600); err != nil {
		lock.Release()
		return nil, err
	}
	return lease.Locked(lock), nil
}

func (f fileUsers) try(context.Context) (lease.Lease, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return nil, err
	}
	lock, err := statedir.TryAcquire(f.path + lockSuffix)
	if err != nil || lock == nil {
		return nil, err
	}
	return lease.Locked(lock), nil
}

func (f fileUsers) user(context.Context) (turnstone.TurnID, bool, error) {
	if _, err := os.Stat(f.path + lockSuffix); err != nil {
		return "", false, nil
	}
	lock, err := statedir.TryAcquire(f.path + lockSuffix)
	if err != nil || lock != nil {
		lock.Release()
		return "", false, nil
	}
	return turnOf(f.path), true, nil
}

// turnOf returns the current or last turn of the home at path; empty if unknown.
func turnOf(path string) turnstone.TurnID {
	f, err := os.Open(path + userSuffix)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if b, err := io.ReadAll(io.LimitReader(f, 64)); err == nil && turnID.Match(b) {
		return turnstone.TurnID(b)
	}
	return ""
}

// turnID matches the note that take writes.
var turnID = lazyregexp.New(`^[a-z]+_[0-9a-z]+$`)

// rowUsers are those of the home whose lease has this name.
type rowUsers struct {
	rows *lease.Rows
	name string
}

func (r rowUsers) take(ctx context.Context, turn turnstone.TurnID, waiting func(string)) (
	lease.Lease, error) {
	return r.rows.Wait(ctx, r.name, string(turn), func(note string) {
		waiting(userOf(turnstone.TurnID(note)))
	})
}

func (r rowUsers) try(ctx context.Context) (lease.Lease, error) { return r.rows.Take(ctx, r.name, "") }

func (r rowUsers) user(ctx context.Context) (turnstone.TurnID, bool, error) {
	note, used, err := r.rows.Holder(ctx, r.name)
	return turnstone.TurnID(note), used, err
}

// userOf names the user of a home.
func userOf(id turnstone.TurnID) string {
	if id != "" {
		return "turn " + string(id)
	}
	return "another turn"
}

// lock takes the home for the turn.
func (r Request) lock(ctx context.Context, all users, progress func(string)) (lease.Lease, error) {
	within, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	lock, err := all.take(within, r.Turn, func(user string) {
		progress("waiting for home " + r.Name + ", which " + user + " uses")
	})
	if err != nil && ctx.Err() == nil && errors.Is(within.Err(), context.DeadlineExceeded) {
		id, _, _ := all.user(ctx)
		return nil, turnstone.Errorf(op, turnstone.KindTimeout, "home "+r.Name,
			"%s used it all of the turn's %s", userOf(id), r.Timeout).
			WithHint("wait for it, give this turn a longer timeout, or another home")
	}
	return lock, err
}
