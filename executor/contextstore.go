package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/local"
	"turnstone.dev/turnstone/internal/store/blob/s3"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// A contextStore is all that is kept between turns: who came after whom, and what
// each left.
type contextStore struct {
	db     *session.DB
	store  *store.Store
	images *lowerdir.Cache
	blobs  blob.Store
	// templates has the contents that lie in templates' images.
	templates *templateContents
	specs     func() *template.Store
}

// elsewhere tells whether a template has the content d, which the store then does
// not keep.
func (cs *contextStore) elsewhere(d turnstone.Digest) bool {
	return cs.templates.HasContent(d)
}

// A Repo is what is kept between turns, in a state directory. It is safe for concurrent use.
type Repo struct {
	home      *statedir.Dir
	where     string                 // the bucket of the store; empty: in home
	templates func() *template.Store // with what builds their layers
	fault     func(op string) error  // of the store, for tests; nil: none

	mu   sync.Mutex
	kept *contextStore // nil until it is needed
}

// newRepo returns what is kept in home. It opens nothing.
func newRepo(home *statedir.Dir, where string, templates func() *template.Store) *Repo {
	return &Repo{home: home, where: where, templates: templates}
}

// context returns the context store of x's home, which is opened once. It stays
// open until Close.
func (x *Repo) context(ctx context.Context) (*contextStore, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
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

func (x *Repo) openContext(ctx context.Context) (*contextStore, error) {
	blobs, dir, err := x.blobs(ctx)
	if err != nil {
		return nil, err
	}
	if err := x.notLost(ctx, blobs); err != nil {
		return nil, err
	}
	db, err := session.Open(ctx, x.home.Path("context.db"))
	if err != nil {
		return nil, err
	}
	return x.openStore(ctx, db, blobs, dir)
}

// openWithoutSessions opens what there is when the sessions cannot be read. The
// database of what it returns is nil.
func (x *Repo) openWithoutSessions(ctx context.Context) (*contextStore, error) {
	blobs, dir, err := x.blobs(ctx)
	if err != nil {
		return nil, err
	}
	return x.openStore(ctx, nil, blobs, dir)
}

func (x *Repo) openStore(ctx context.Context, db *session.DB, blobs blob.Store, dir string) (_ *contextStore, err error) {
	cs := &contextStore{db: db, blobs: blobs, specs: x.templates,
		templates: &templateContents{dir: x.home.Path("templates")}}
	if cs.store, err = store.Open(ctx, dir, cs.blobs, store.Options{Fault: x.fault}); err != nil {
		return nil, errors.Join(err, cs.close())
	}
	cs.store.AddAlternate(cs.templates)
	cs.images = lowerdir.New(x.home.Path("images"), cs.store, lowerdir.Options{})
	return cs, nil
}

// notLost reports that the sessions are gone while what their turns left is still
// there: to begin with none would let gc delete it all.
func (x *Repo) notLost(ctx context.Context, blobs blob.Store) error {
	path := x.home.Path("context.db")
	if fi, err := os.Stat(path); err == nil && fi.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for pack, err := range blobs.List(ctx, "packs/") {
		if err != nil {
			return err
		}
		return turnstone.Errorf("executor.context", turnstone.KindIntegrity, path,
			"is lost, and with it the sessions, while the store has what turns left (%s)", pack.Name).
			WithHint("put a copy of it back; to begin anew, move the store's packs away. Receipts are in turns/ beside it")
	}
	return nil
}

func (cs *contextStore) close() error {
	var errs []error
	if cs.store != nil {
		errs = append(errs, cs.store.Close())
	}
	if c, ok := cs.blobs.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	errs = append(errs, cs.templates.Close())
	if cs.db != nil {
		errs = append(errs, cs.db.Close())
	}
	return errors.Join(errs...)
}

// blobs returns where the packs lie, and the folder with what is local of the store.
// With Options.Store that is a bucket, of which one state directory
// at a time may make use: its gc knows of no other one's turns.
func (x *Repo) blobs(ctx context.Context) (at blob.Store, dir string, err error) {
	where := x.where
	if where == "" {
		s, err := local.Open(x.home.Path("store", "blobs"), local.Options{Fault: x.fault})
		if err != nil {
			return nil, "", err
		}
		return s, x.home.Path("store"), nil
	}
	o, err := s3.ParseURL(where)
	if err != nil {
		return nil, "", err
	}
	s, err := s3.Open(o)
	if err != nil {
		return nil, "", err
	}
	// The index of one place says nothing of another.
	dir, err = x.home.MkdirAll("store-s3", turnstone.DigestBytes([]byte(o.Endpoint+"/"+o.Bucket+"/"+o.Prefix)).Short())
	if err != nil {
		return nil, "", err
	}
	return s, dir, x.claim(ctx, s, where, filepath.Join(dir, "claimed"))
}

// Close closes the context store, if it was opened. Turns that still run through x
// count as interrupted.
func (x *Repo) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.kept == nil {
		return nil
	}
	cs := x.kept
	x.kept = nil
	return cs.close()
}

// record returns what is kept of a turn. One that runs, or was interrupted, has none: kind KindNotFound.
func (cs *contextStore) record(ctx context.Context, t session.Turn) (*Record, error) {
	if t.Record == "" {
		e := turnstone.Errorf("executor.record", turnstone.KindNotFound, fmt.Sprintf("turn %d (%s)", t.Number, t.ID),
			"is still running")
		if t.Interrupted() {
			e.Err, e.Hint = errors.New("was interrupted, and nothing of it is kept"), "what its receipt said then is in turns/"+string(t.ID)+" of the state directory"
		}
		return nil, e
	}
	rec, err := cs.readRecord(ctx, t.Record)
	if err != nil {
		return nil, err
	}
	if rec.ID != t.ID || rec.Session != t.Session || rec.Number != t.Number {
		return nil, turnstone.Errorf("executor.record", turnstone.KindIntegrity, string(t.ID),
			"its record is that of turn %d (%s)", rec.Number, rec.ID)
	}
	return rec, nil
}

// readRecord returns the record that d names.
func (cs *contextStore) readRecord(ctx context.Context, d turnstone.Digest) (*Record, error) {
	rec := &Record{}
	if err := cs.object(ctx, "record", d, rec); err != nil {
		return nil, err
	}
	return rec, checkFormat("record", d, rec.Format, recordFormat)
}

// state returns the state that d names. An empty d is an error of kind KindNotFound.
func (cs *contextStore) state(ctx context.Context, d turnstone.Digest) (*State, error) {
	if d == "" {
		return nil, turnstone.NewError("executor.state", turnstone.KindNotFound, "state",
			errNoState)
	}
	st := &State{}
	if err := cs.object(ctx, "state", d, st); err != nil {
		return nil, err
	}
	return st, checkFormat("state", d, st.Format, stateFormat)
}

// object reads an object that is JSON.
func (cs *contextStore) object(ctx context.Context, what string, d turnstone.Digest, v any) error {
	b, err := cs.store.Get(ctx, d)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return turnstone.NewError(turnstone.Op("executor."+what), turnstone.KindIntegrity, "the "+what+" of a turn",
			err).
			WithHint("turn fsck lists all that is missing; if the turn was kept elsewhere, set TURN_STORE as it was then")
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
		"is a %s of format %d, and this program knows %d", what, format, known).
		WithHint("use the turn that made it")
}

// read returns a content of at most limit bytes.
func (cs *contextStore) read(ctx context.Context, c tree.Content, limit int64) ([]byte, error) {
	if c.Size > limit {
		return nil, turnstone.Errorf("executor.read", turnstone.KindExhausted, string(c.Digest),
			"it has %d bytes", c.Size)
	}
	in, err := cs.store.OpenContent(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	return io.ReadAll(io.LimitReader(in, limit))
}

// errNoState is the cause when a turn left nothing that another could begin on.
var errNoState = errors.New("left no state")
