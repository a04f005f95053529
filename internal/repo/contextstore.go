package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/repo/location"
	"turnstone.dev/turnstone/internal/repo/templatefiles"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// A ContextStore holds the data between turns: the order of turns, and the state that each left. It
// is that of all sessions that are not sealed, or of one domain: see In.
type ContextStore struct {
	DB        *session.DB
	Store     *store.Store
	Images    *lowerdir.Cache
	Templates *templatefiles.Contents
	Domain    *seal.Domain // nil: not sealed

	domain turnstone.DomainID
	public *ContextStore // of which this is a view; nil: it is none
	keys   Keys          // nil: sealed sessions are locked
	dir    *statedir.Dir

	blobs blob.Store
	specs Templates

	heldDir string
	held    *sync.Map // of turnstone.TurnID to turnstone.Turn: see Hold
}

// inTemplate reports whether a template has the content d. The store does not keep such contents.
func (cs *ContextStore) inTemplate(d turnstone.Digest) bool {
	return cs.Templates.HasContent(d)
}

// A Repo is the part of a state directory that outlives turns. It is safe for concurrent use.
type Repo struct {
	Dir   *statedir.Dir
	Fault func(op string) error // called before writes to the store, for tests; may be nil
	// Passphrase returns the passphrase of a key; nil: keys with a passphrase cannot sign.
	Passphrase func(key string) ([]byte, error)
	// Keys has the keys of sealed sessions; nil: they are locked, and new sessions are not sealed.
	// Open uses it.
	Keys Keys
	// Database is the URL of the PostgreSQL database that has the sessions; empty: they are in Dir. Its
	// turns are in a bucket, which belongs to the database. Open uses it.
	Database string
	// Heads signs the log of heads; nil: it is not written. Open uses it.
	Heads session.HeadSigner

	place     string // the bucket of the store; empty: in Dir
	templates Templates

	mu     sync.Mutex
	kept   *ContextStore // nil until it is needed
	closed bool
}

// Templates are the templates of a state directory. *template.Store has them.
type Templates interface {
	Show(ctx context.Context, name string) (*template.Details, error)
	Ensure(ctx context.Context, name string, progress func(string)) (*turnstone.Template, error)
	RootTree(ctx context.Context, t *turnstone.Template, w tree.Writer) (turnstone.TreeRef, error)
	BuiltLayers() ([]turnstone.TemplateLayer, error)
}

// New returns the repo of a state directory. Its store is in the bucket that place names, or in the
// directory if place is empty. New opens nothing.
func New(dir *statedir.Dir, place string, templates Templates) *Repo {
	return &Repo{Dir: dir, place: place, templates: templates}
}

// Open returns the context store. The first call opens it; it stays open until Close. After that the
// error is of kind Unavailable.
func (x *Repo) Open(ctx context.Context) (*ContextStore, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, turnstone.Errorf("executor.context", turnstone.KindUnavailable, x.Dir.Root,
			"it is closed").WithHint("open the state directory again")
	}
	if x.kept != nil {
		return x.kept, nil
	}
	cs, err := x.openContext(ctx)
	if err != nil {
		return nil, err
	}
	x.kept = cs
	return cs, nil
}

func (x *Repo) openContext(ctx context.Context) (*ContextStore, error) {
	db, blobs, dir, err := location.OpenAll(ctx, x.Dir, x.place, x.Database, x.Fault)
	if err != nil {
		return nil, err
	}
	db.SignHeads(x.Heads)
	if x.Keys != nil {
		db.Seal(sealer{x.Keys})
	}
	return x.openStore(ctx, db, blobs, dir)
}

// HasSessions reports whether there may be sessions: without any, Open would create their database.
func (x *Repo) HasSessions() bool { return location.HasSessions(x.Dir, x.Database) }

// openWithoutSessions opens the available parts when the sessions cannot be read. The database of
// the result is nil.
func (x *Repo) openWithoutSessions(ctx context.Context) (*ContextStore, error) {
	blobs, dir, err := location.Open(ctx, x.Dir, x.place, x.Fault)
	if err != nil {
		return nil, err
	}
	return x.openStore(ctx, nil, blobs, dir)
}

func (x *Repo) openStore(ctx context.Context, db *session.DB, blobs blob.Store,
	dir string) (_ *ContextStore, err error) {
	cs := &ContextStore{DB: db, keys: x.Keys, dir: x.Dir, held: &sync.Map{},
		blobs: blobs, specs: x.templates, heldDir: x.Dir.Path("held"),
		Templates: &templatefiles.Contents{Dir: x.Dir.Path("templates")}}
	opts := store.Options{Fault: x.Fault}
	if db != nil && db.Shared() {
		opts.Shared = db.Sweeps()
	}
	if cs.Store, err = store.Open(ctx, dir, cs.blobs, opts); err != nil {
		return nil, errors.Join(err, cs.close())
	}
	cs.Store.AddAlternate(cs.Templates)
	cs.Images = lowerdir.New(x.Dir.Path("images"), cs.Store, lowerdir.Options{})
	return cs, nil
}

func (cs *ContextStore) close() error {
	var errs []error
	if cs.Store != nil {
		errs = append(errs, cs.Store.Close())
	}
	if c, ok := cs.blobs.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	errs = append(errs, cs.Templates.Close())
	if cs.DB != nil {
		errs = append(errs, cs.DB.Close())
	}
	return errors.Join(errs...)
}

// Close closes x, with the context store if it was opened. Running turns of x then count as
// interrupted.
func (x *Repo) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	if x.kept == nil {
		return nil
	}
	cs := x.kept
	x.kept = nil
	return cs.close()
}

// Record returns the record of a turn. A running or interrupted turn has none: kind KindNotFound.
func (cs *ContextStore) Record(ctx context.Context, t turnstone.Turn) (*turnstone.TurnRecord,
	error) {
	if t.Record == "" {
		e := turnstone.Errorf("executor.record", turnstone.KindNotFound,
			fmt.Sprintf("turn %d (%s)", t.Number, t.ID),
			"is still running")
		c, err := cs.DB.Checkpoint(ctx, t.ID)
		switch {
		case err != nil || !t.Interrupted():
		case c != nil:
			e.Err = fmt.Errorf("was interrupted after step %d", c.Step)
			e.Hint = "continue it with turn resume " + string(t.ID)
		default:
			e.Err, e.Hint = errors.New("was interrupted, and none of its data is kept"),
				"its last receipt is in turns/"+string(t.ID)+" of the state directory"
		}
		return nil, e
	}
	rec, err := cs.ReadRecord(ctx, t.Record)
	if err != nil {
		return nil, err
	}
	if rec.ID != t.ID || rec.Session != t.Session || rec.Number != t.Number {
		return nil, turnstone.Errorf("executor.record", turnstone.KindIntegrity, string(t.ID),
			"its record is that of turn %d (%s)", rec.Number, rec.ID)
	}
	return rec, nil
}

// ReadRecord returns the record that d names.
func (cs *ContextStore) ReadRecord(ctx context.Context, d turnstone.Digest) (*turnstone.TurnRecord,
	error) {
	rec := &turnstone.TurnRecord{}
	if err := cs.object(ctx, "record", d, rec); err != nil {
		return nil, err
	}
	return rec, checkFormat("record", d, rec.Format, RecordFormat)
}

// State returns the state that d names. An empty d is an error of kind KindNotFound.
func (cs *ContextStore) State(ctx context.Context, d turnstone.Digest) (*turnstone.TurnState,
	error) {
	if d == "" {
		return nil, turnstone.NewError("executor.state", turnstone.KindNotFound, "state",
			errNoState)
	}
	st := &turnstone.TurnState{}
	if err := cs.object(ctx, "state", d, st); err != nil {
		return nil, err
	}
	return st, checkFormat("state", d, st.Format, StateFormat)
}

// object reads a JSON object.
func (cs *ContextStore) object(ctx context.Context, what string, d turnstone.Digest, v any) error {
	b, err := cs.Store.Get(ctx, d)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return turnstone.NewError(turnstone.Op("executor."+what), turnstone.KindIntegrity,
			"the "+what+" of a turn",
			err).
			WithHint("list all missing data with turn fsck; " +
				"if the turn was stored elsewhere, set TURN_STORE to that place")
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return turnstone.Errorf(turnstone.Op("executor."+what), turnstone.KindIntegrity, string(d),
			"is no %s: %w", what, err)
	}
	return nil
}

func checkFormat(what string, d turnstone.Digest, format, known int) error {
	if format == known {
		return nil
	}
	return turnstone.Errorf(turnstone.Op("executor."+what), turnstone.KindUnavailable, string(d),
		"is a %s of format %d; this program supports %d", what, format, known).
		WithHint("use the version of turn that wrote it")
}

// Read returns a content of at most limit bytes.
func (cs *ContextStore) Read(ctx context.Context, c turnstone.Content, limit int64) ([]byte,
	error) {
	if c.Size > limit {
		return nil, turnstone.Errorf("executor.read", turnstone.KindExhausted, string(c.Digest),
			"it has %d bytes", c.Size)
	}
	in, err := cs.Store.OpenContent(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	return io.ReadAll(io.LimitReader(in, limit))
}

// errNoState is the cause if a turn left no state from which another can start.
var errNoState = errors.New("left no state")
