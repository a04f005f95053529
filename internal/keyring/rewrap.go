package keyring

import (
	"context"
	"errors"
	"slices"
	"time"

	"turnstone.dev/turnstone"
)

// A Status is a domain as its record shows it.
type Status struct {
	ID        ID
	Created   time.Time
	Wrappings []Wrapping // without data
	// Current reports that the record is as Rewrap would write it now.
	Current bool
	Err     error // the record cannot be read; the fields above except ID are empty
}

// A wish is how records should be wrapped.
type wish struct {
	primary  string // name
	recovery string // name; empty: none
}

// wish asks the wrappers for the newest versions of their wrapping keys.
func (r *Ring) wish(ctx context.Context) (w wish, err error) {
	if w.primary, err = r.o.Wrappers[r.o.Primary].Newest(ctx); err != nil {
		return w, err
	}
	if r.o.Recovery != nil {
		w.recovery, err = r.o.Recovery.Newest(ctx)
	}
	return w, err
}

// current reports whether a record is wrapped as wished. Records of clients always are.
func (r *Ring) current(rec *Record, w wish) bool {
	if _, is := rec.of(KindClient); is {
		return true
	}
	want := 1
	if w.recovery != "" {
		want = 2
	}
	primary, _ := rec.of(r.o.Primary)
	recovery, _ := rec.of(KindRecovery)
	return len(rec.Wrappings) == want && primary.Name == w.primary && recovery.Name == w.recovery
}

// List calls f with each domain, in the order of the IDs. A record that cannot be read is one with
// an Err. The error of the newest versions leaves Current false and is returned at the end.
func (r *Ring) List(ctx context.Context, f func(Status) error) error {
	ids, err := r.table.List()
	if err != nil {
		return err
	}
	w, unknown := r.wish(ctx)
	for _, id := range ids {
		if ctx.Err() != nil {
			return turnstone.Classify("keyring.list", turnstone.KindCanceled, "", ctx.Err(), "")
		}
		rec, err := r.table.Get(id)
		if errors.Is(err, ErrShredded) {
			continue
		}
		s := Status{ID: id, Err: err}
		if err == nil {
			s = status(rec)
			s.Current = unknown == nil && r.current(rec, w)
		}
		if err := f(s); err != nil {
			return err
		}
	}
	return unknown
}

func status(rec *Record) Status {
	s := Status{ID: rec.ID, Created: rec.Created}
	for _, w := range rec.Wrappings {
		s.Wrappings = append(s.Wrappings, Wrapping{Kind: w.Kind, Name: w.Name})
	}
	return s
}

// Rotate makes a new version of the primary wrapping key and returns its name. Rewrap then wraps
// the keys of all domains with it.
func (r *Ring) Rotate(ctx context.Context) (string, error) {
	by, ok := r.o.Wrappers[r.o.Primary].(Rotator)
	if !ok {
		return "", turnstone.Errorf("keyring.rotate", turnstone.KindInvalid, "",
			"a wrapping key of kind %s cannot be rotated from here", r.o.Primary).
			WithHint("make a new one with its own tools, configure it, and run turn domain rewrap")
	}
	return by.Rotate(ctx)
}

// Rewrap wraps the key of each domain as the settings say, with the newest versions of the wrapping
// keys. What is sealed with the keys stays. Rewrap can be killed at any time and called again, by
// several processes, while the keys are in use: a record is always the old or the new one. Keys that
// clients wrap stay.
//
// done is called for each domain, with an error if its key could not be wrapped again: the others
// go on. The error of Rewrap is that of the newest versions, or of done.
func (r *Ring) Rewrap(ctx context.Context, done func(id ID, changed bool, err error) error) error {
	w, err := r.wish(ctx)
	if err != nil {
		return err
	}
	ids, err := r.table.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return turnstone.Classify("keyring.rewrap", turnstone.KindCanceled, "", ctx.Err(), "")
		}
		changed, err := r.rewrap(ctx, id, w)
		if errors.Is(err, ErrShredded) {
			continue
		}
		if err := done(id, changed, err); err != nil {
			return err
		}
	}
	return nil
}

// rewrap wraps one key again, unless it is as wished.
func (r *Ring) rewrap(ctx context.Context, id ID, w wish) (changed bool, err error) {
	err = r.change(ctx, id, r.o.Wrappers[r.o.Primary], func(rec *Record) ([]Wrapping, error) {
		if changed = !r.current(rec, w); !changed {
			return nil, nil
		}
		return r.again(ctx, rec, w)
	})
	return changed && err == nil, err
}

// change replaces the wrappings of a record by those that f returns, the first of which is by w; none:
// it stays.
func (r *Ring) change(ctx context.Context, id ID, w Wrapper,
	f func(*Record) ([]Wrapping, error)) error {
	return r.inTurn(ctx, func(locked bool) error {
		rec, err := r.table.Get(id)
		if err != nil {
			return err
		}
		all, err := f(rec)
		if err != nil && r.changed(rec) {
			return errStale
		}
		if err != nil || all == nil {
			return err
		}
		valid := func() error { return fresh(w, all[0].Name) }
		ok := false
		if locked {
			ok, err = r.table.replace(rec, rec.with(all), valid)
		} else {
			ok, err = r.table.Replace(ctx, rec, rec.with(all), valid)
		}
		if err == nil && !ok {
			return errStale
		}
		return err
	})
}

// changed reports whether a record is no longer what it was: what wrapped it may be destroyed since.
func (r *Ring) changed(rec *Record) bool {
	now, err := r.table.Get(rec.ID)
	return err != nil || !slices.EqualFunc(now.Wrappings, rec.Wrappings, func(a, b Wrapping) bool {
		return a.Kind == b.Kind && a.Name == b.Name
	})
}

// again returns the wished wrappings of a record.
func (r *Ring) again(ctx context.Context, rec *Record, w wish) ([]Wrapping, error) {
	key, _, err := r.unwrap(ctx, rec)
	if err != nil {
		return nil, cannotOpen(rec.ID, err)
	}
	defer key.Erase()
	by := r.o.Wrappers[r.o.Primary]
	old, has := rec.of(r.o.Primary)
	recovery, _ := rec.of(KindRecovery)
	keeps := w.recovery != "" && recovery.Name == w.recovery
	rewrapper, can := by.(Rewrapper)
	switch {
	case has && old.Name == w.primary: // the recovery recipients have changed
		all := []Wrapping{old}
		if w.recovery == "" {
			return all, nil
		}
		second, err := wrap(ctx, KindRecovery, r.o.Recovery, rec.ID, key)
		return append(all, second), err
	case has && can && (keeps || w.recovery == ""):
		one, err := rewrapper.Rewrap(ctx, rec.ID, old)
		if err == nil {
			one.Kind = r.o.Primary
			err = verify(ctx, by, rec.ID, one)
		}
		if keeps {
			return []Wrapping{one, recovery}, err
		}
		return []Wrapping{one}, err
	}
	all, err := wrapAll(ctx, rec.ID, key, r.o.Primary, by, r.o.Recovery)
	return slices.Clip(all), err
}

// Recover wraps the key of a domain as the settings say after its wrapping key was lost: by unwraps
// the recovery wrapping.
func (r *Ring) Recover(ctx context.Context, id ID, by Wrapper) error {
	primary := r.o.Wrappers[r.o.Primary]
	return r.change(ctx, id, primary, func(rec *Record) ([]Wrapping, error) {
		recovery, has := rec.of(KindRecovery)
		if !has {
			return nil, turnstone.Errorf("keyring.recover", turnstone.KindNotFound, subject(id),
				"its key was not wrapped for a recovery identity").
				WithHint("restore the wrapping key from a backup: without one, nobody can read the domain")
		}
		secret, err := by.Unwrap(ctx, id, recovery)
		if err != nil {
			return nil, cannotOpen(id, err)
		}
		key, err := keyOf(id, secret)
		if err != nil {
			return nil, err
		}
		defer key.Erase()
		return wrapAll(ctx, id, key, r.o.Primary, primary, r.o.Recovery)
	})
}

// Rehold replaces all wrappings of a domain's key by one of w, as kind. Open has to be possible.
// It gives a domain to a client's key, to another key of the client, or back to the node.
func (r *Ring) Rehold(ctx context.Context, id ID, kind Kind, w Wrapper) error {
	o, err := r.Open(ctx, id)
	if err != nil {
		return err
	}
	defer o.Close()
	err = r.change(ctx, id, w, func(*Record) ([]Wrapping, error) {
		return wrapAll(ctx, id, o.Key(), kind, w, nil)
	})
	r.Forget(id)
	return err
}

// Check unwraps the key of a domain, whatever is in memory, and forgets it.
func (r *Ring) Check(ctx context.Context, id ID) error {
	key, _, err := r.read(ctx, id)
	if err != nil {
		return cannotOpen(id, err)
	}
	key.Erase()
	return nil
}

// Prune destroys the old versions of the primary wrapping key, and returns their names. It is an
// error of kind Invalid if the key of a domain is wrapped by one of them: Rewrap comes first.
func (r *Ring) Prune(ctx context.Context) ([]string, error) {
	by, ok := r.o.Wrappers[r.o.Primary].(Pruner)
	if !ok {
		return nil, turnstone.Errorf("keyring.prune", turnstone.KindInvalid, "",
			"old versions of a wrapping key of kind %s cannot be destroyed from here", r.o.Primary).
			WithHint("destroy them with the tools of the wrapping key's owner")
	}
	// With the lock, no record appears: one that is being made is wrapped again.
	l, err := r.table.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	w, err := r.wish(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := r.table.List()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		rec, err := r.table.Get(id)
		if err != nil {
			return nil, err
		}
		if one, has := rec.of(r.o.Primary); has && one.Name != w.primary {
			return nil, turnstone.Errorf("keyring.prune", turnstone.KindInvalid, subject(id),
				"its key is wrapped by %s, which is not the newest", one).
				WithHint("run turn domain rewrap first")
		}
	}
	return by.Prune(ctx, w.primary)
}

// Shred destroys the key of a domain: nothing that it seals can be read again, except with a copy
// of the record in a backup. Uses of the key in this process go on; other processes do not open the
// domain again. Shred of a domain without a record does nothing.
//
// The record is overwritten before it is removed. A disk or a file system that writes to other
// blocks (SSDs, btrfs, snapshots) keeps the old ones for a while: they are of use only with the
// wrapping key, so Rotate, Rewrap and Prune end that, too.
func (r *Ring) Shred(ctx context.Context, id ID) error {
	err := r.table.Remove(ctx, id)
	if err == nil {
		r.Forget(id)
	}
	return err
}
