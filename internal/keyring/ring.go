package keyring

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Options are the parts of a Ring. A zero number selects its default.
type Options struct {
	Dir *statedir.Dir
	// Primary is the kind of wrapper for new keys; Wrappers has it.
	Primary Kind
	// Wrappers are what unwraps keys here, by kind. Those that are not Primary serve keys that were
	// wrapped before the settings changed, and the keys of clients.
	Wrappers map[Kind]Wrapper
	// Recovery also wraps each key that Primary wraps; nil: nobody else can unwrap.
	Recovery Wrapper

	// Keep is how long an unwrapped key stays in memory after its unwrapping. Default: 1 h.
	Keep time.Duration
	// Keys is the number of unwrapped keys in memory that nobody uses. Default: 1,024.
	Keys int
	// Timeout bounds one unwrapping. Default: 30 s.
	Timeout time.Duration
}

const (
	defaultKeep    = time.Hour
	defaultKeys    = 1024
	defaultTimeout = 30 * time.Second
)

// A Ring has the keys of a state directory's domains. Its methods are safe for concurrent use, also
// by several processes on one state directory. Close it.
type Ring struct {
	o     Options
	table *Table

	flight singleflight.Group // of unwrapping, by domain

	mu     sync.Mutex
	closed bool
	kept   map[ID]*entry
	claims map[ID]*statedir.Lock // of domains that were made here: see Settle
}

// An entry is an unwrapped key in memory.
type entry struct {
	key   Key
	by    Lender      // of the wrapping key; nil: it belongs to nobody else
	name  string      // of that wrapping key
	uses  int         // opened and not closed; the last one erases a key that is not kept
	kept  bool        // in Ring.kept
	used  time.Time   // last use
	timer *time.Timer // drops the entry
}

// New returns a Ring. It opens nothing.
func New(o Options) (*Ring, error) {
	if o.Wrappers[o.Primary] == nil {
		return nil, turnstone.Errorf("keyring.new", turnstone.KindInvalid, "keyring",
			"there is no wrapper of kind %s", o.Primary)
	}
	if o.Keep == 0 {
		o.Keep = defaultKeep
	}
	if o.Keys == 0 {
		o.Keys = defaultKeys
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	r := &Ring{o: o, table: NewTable(o.Dir), kept: make(map[ID]*entry),
		claims: make(map[ID]*statedir.Lock)}
	for _, w := range o.Wrappers {
		if l, ok := w.(Lender); ok {
			l.OnForget(func(name string) { r.forgetOf(l, name) })
		}
	}
	return r, nil
}

// Primary returns the kind of wrapper for new keys.
func (r *Ring) Primary() Kind { return r.o.Primary }

// Table returns the records, which need no key.
func (r *Ring) Table() *Table { return r.table }

// An Opened is an unwrapped key in use. Its key is erased at some time after Close.
type Opened struct {
	id   ID
	ring *Ring
	e    *entry
	free func() // releases the wrapping key of a Lender; may be nil
	once sync.Once
}

// ID returns the domain.
func (o *Opened) ID() ID { return o.id }

// Key returns the key. It is valid until Close, and the caller neither changes nor erases it.
func (o *Opened) Key() Key { return o.e.key }

// Close ends the use. Later calls do nothing.
func (o *Opened) Close() {
	o.once.Do(func() {
		o.ring.mu.Lock()
		defer o.ring.mu.Unlock()
		o.ring.release(o.e)
		if o.free != nil {
			o.free()
		}
	})
}

// Create makes a domain with a new key, which the primary wrapper and the recovery wrapper wrap.
// The key is on disk, durably, when Create returns. Until Settle or Close, Collect of any process
// leaves it alone.
func (r *Ring) Create(ctx context.Context) (*Opened, error) {
	return r.create(ctx, r.o.Primary, r.o.Wrappers[r.o.Primary], r.o.Recovery)
}

// CreateBy is Create for a domain whose key w alone wraps, as kind: such as a client's. Wrappers
// has a wrapper of this kind, which may be another one than w.
func (r *Ring) CreateBy(ctx context.Context, kind Kind, w Wrapper) (*Opened, error) {
	return r.create(ctx, kind, w, nil)
}

func (r *Ring) create(ctx context.Context, kind Kind, w, recovery Wrapper) (*Opened, error) {
	key := seal.NewKey()
	id := idOf(key)
	claim, err := r.table.claim(id)
	var all []Wrapping
	if err == nil {
		if all, err = r.add(ctx, id, key, kind, w, recovery); err != nil {
			r.table.unclaim(id, claim)
		}
	}
	if err != nil {
		key.Erase()
		return nil, turnstone.Errorf("keyring.create", turnstone.KindOf(err), "",
			"the key of a new domain cannot be wrapped: %w", err).WithHint(turnstone.HintOf(err))
	}
	r.mu.Lock()
	r.claims[id] = claim
	r.mu.Unlock()
	return r.keep(id, key, all[0])
}

// tries bounds how often a change is tried again because another process was faster. Wrapping may
// take long, so others may change records meanwhile; the last try has the lock, and is the fastest.
const tries = 10

// errStale reports a wrapping whose wrapping key was destroyed meanwhile.
var errStale = errors.New("its wrapping key was destroyed meanwhile")

// add wraps a key and writes its record.
func (r *Ring) add(ctx context.Context, id ID, key Key, kind Kind, w, recovery Wrapper) (
	all []Wrapping, err error) {
	err = r.inTurn(ctx, func(locked bool) error {
		if all, err = wrapAll(ctx, id, key, kind, w, recovery); err != nil {
			return err
		}
		rec := &Record{Version: recordVersion, ID: id,
			Created: time.Now().UTC().Truncate(time.Second), Wrappings: all}
		valid := func() error { return fresh(w, all[0].Name) }
		if locked {
			return r.table.add(rec, valid)
		}
		return r.table.Add(ctx, rec, valid)
	})
	return all, err
}

// inTurn calls f until its error is not errStale, at last with the lock of the table, so that nobody
// destroys a wrapping key or changes a record.
func (r *Ring) inTurn(ctx context.Context, f func(locked bool) error) (err error) {
	for range tries - 1 {
		if err = f(false); !errors.Is(err, errStale) {
			return err
		}
	}
	l, err := r.table.lock(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	return f(true)
}

// fresh reports a wrapping whose wrapping key another process has destroyed.
func fresh(w Wrapper, name string) error {
	p, ok := w.(Pruner)
	if !ok {
		return nil
	}
	has, err := p.Has(name)
	if err == nil && !has {
		err = errStale
	}
	return err
}

// wrapAll wraps a key by w, as kind, and by recovery, which may be nil.
func wrapAll(ctx context.Context, id ID, key Key, kind Kind, w, recovery Wrapper) ([]Wrapping,
	error) {
	primary, err := wrap(ctx, kind, w, id, key)
	if err == nil {
		err = verify(ctx, w, id, primary)
		if err != nil && errors.Is(fresh(w, primary.Name), errStale) {
			err = errStale
		}
	}
	if err != nil || recovery == nil {
		return []Wrapping{primary}, err
	}
	second, err := wrap(ctx, KindRecovery, recovery, id, key)
	return []Wrapping{primary, second}, err
}

// verify reports a wrapping that does not unwrap to the domain's key: nothing may be sealed with a
// key that cannot be had again, and no older wrapping removed.
func verify(ctx context.Context, w Wrapper, id ID, one Wrapping) error {
	secret, err := w.Unwrap(ctx, id, one)
	if err != nil {
		return err
	}
	key, err := keyOf(id, secret)
	if err == nil {
		key.Erase()
	}
	return err
}

func wrap(ctx context.Context, kind Kind, w Wrapper, id ID, key Key) (Wrapping, error) {
	secret := Secret(key.Bytes())
	defer secret.Erase()
	one, err := w.Wrap(ctx, id, secret)
	one.Kind = kind
	return one, err
}

// Open returns the key of a domain. A key in memory costs a look at its record, so that a domain
// that another process has shredded is not opened. Callers that need the same key at the same time
// wait for one unwrapping, each as long as its context lasts.
//
// The error is of kind NotFound with the cause ErrShredded if there is no key, and otherwise has
// the kind and the hint of the wrapper's error, such as Unavailable if Vault does not answer, with
// the cause ErrLocked if its client has to send the wrapping key.
func (r *Ring) Open(ctx context.Context, id ID) (*Opened, error) {
	if !r.table.Has(id) {
		r.Forget(id)
		_, err := r.table.Get(id) // the error, or a record that was made since
		if err != nil {
			return nil, cannotOpen(id, err)
		}
	}
	for {
		if o := r.inMemory(id); o != nil {
			return o, nil
		}
		// The unwrapping goes on for the other callers when this one gives up.
		done := r.flight.DoChan(id.String(), func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Timeout)
			defer cancel()
			return nil, r.load(ctx, id)
		})
		select {
		case <-ctx.Done():
			return nil, cannotOpen(id, turnstone.Classify("keyring.open", turnstone.KindTimeout, "",
				ctx.Err(), ""))
		case res := <-done:
			if res.Err != nil {
				return nil, cannotOpen(id, res.Err)
			}
		}
		// The key is in memory, unless many others pushed it out since.
	}
}

// load unwraps a key into memory.
func (r *Ring) load(ctx context.Context, id ID) error {
	if o := r.inMemory(id); o != nil { // of a flight that ended just before this one began
		o.Close()
		return nil
	}
	key, w, err := r.read(ctx, id)
	if err != nil {
		return err
	}
	if !r.table.Has(id) { // shredded meanwhile
		key.Erase()
		_, err := r.table.Get(id)
		return err
	}
	o, err := r.keep(id, key, w)
	if err != nil {
		return err
	}
	o.Close()
	return nil
}

// read returns the key of a domain and the wrapping that it was unwrapped from.
func (r *Ring) read(ctx context.Context, id ID) (key Key, w Wrapping, err error) {
	for range tries {
		rec, gone := r.table.Get(id)
		if gone != nil {
			return Key{}, Wrapping{}, gone
		}
		if key, w, err = r.unwrap(ctx, rec); err == nil || !r.changed(rec) {
			break
		}
	}
	return key, w, err
}

// unwrap tries all wrappings of a record whose wrapper is here, and returns the one that it
// unwrapped. The error is that of the first.
func (r *Ring) unwrap(ctx context.Context, rec *Record) (Key, Wrapping, error) {
	var first error
	for _, w := range rec.Wrappings {
		by := r.o.Wrappers[w.Kind]
		if by == nil {
			continue
		}
		secret, err := by.Unwrap(ctx, rec.ID, w)
		if err == nil {
			var key Key
			if key, err = keyOf(rec.ID, secret); err == nil {
				return key, w, nil
			}
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		w := rec.Wrappings[0]
		first = turnstone.Errorf("keyring.unwrap", turnstone.KindUnavailable, "",
			"it is wrapped by %s, which the settings do not have", w).
			WithHint("configure this wrapper again, or run turn domain recover with the recovery identity")
	}
	return Key{}, Wrapping{}, first
}
