package turns

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/hostpath"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/server/trail"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// An Executor runs turns: see executor.Executor.
type Executor interface {
	Run(ctx context.Context, r executor.Request, o executor.Observer) (*turnstone.TurnReport, error)
	Times(ctx context.Context, r executor.Request, n int, o executor.Observer) (
		*turnstone.TurnReport, error)
}

const (
	// keepFor is how long a ticket and its journal stay after the turn's end.
	keepFor = 24 * time.Hour
	// sweepEvery is the time between two removals of old tickets.
	sweepEvery = time.Hour
)

// A Service runs the turns of a node. It is safe for concurrent use.
type Service struct {
	dir    string
	x      Executor
	now    func() time.Time
	paths  *hostpath.Hider // of the node's paths in journals
	places chan struct{}   // turns that may run at the same time
	queue  *Queue          // of turns that wait for a place
	tenant string
	secret func(context.Context, Ticket) (string, error) // see Private; may be nil
	warm   *Warm                                         // see Ahead; may be nil
	most   int                                           // see Retries
	common *common                                       // see Common; may be nil

	ctx  context.Context // of all turns
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running map[string]*running
	late    map[string]*running      // ended, and not stored yet: see keepEnd
	starts  map[string]chan struct{} // tickets whose turns are being started; closed when they are
	swept   time.Time                // when old tickets were removed
	idle    []chan struct{}          // closed when no turn runs and nobody reads a journal of one
	changed func(id string)          // nil: nobody is told
}

// A running turn.
type running struct {
	journal *journal
	cancel  context.CancelFunc
	started time.Time
	outcome Outcome // after its end
	readers int     // under the service's mu
	ended   bool    // the same
}

// Open returns the service with its tickets in the folder dir, which it creates. At most limit turns
// run at the same time. Recover gives the turns that a former process of the node left an end.
func Open(dir string, x Executor, limit int) (*Service, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("", err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Service{dir: dir, x: x, now: time.Now, most: 1, places: make(chan struct{}, limit),
		queue: NewQueue(0, 0), ctx: ctx, stop: stop, running: make(map[string]*running),
		late: make(map[string]*running), starts: make(map[string]chan struct{})}
	if err := s.clean(); err != nil {
		stop(nil)
		return nil, err
	}
	return s, nil
}

// Hide makes the service hide the node's paths in the journals of turns, which clients get. It is
// called before the first turn.
func (s *Service) Hide(paths *hostpath.Hider) { s.paths = paths }

// clean removes the files that a former process left, and old tickets.
func (s *Service) clean() error {
	all, err := os.ReadDir(s.dir)
	if err != nil {
		return failed("", err)
	}
	for _, e := range all {
		dir := filepath.Join(s.dir, e.Name())
		if !validID.MatchString(e.Name()) {
			_ = os.RemoveAll(dir) // what Reserve left
			continue
		}
		left, _ := filepath.Glob(filepath.Join(within(dir), filesFolder+"*"))
		for _, files := range left {
			_ = os.RemoveAll(files)
		}
	}
	return s.sweep()
}

// sweep is Sweep, once an hour.
func (s *Service) sweep() error {
	s.mu.Lock()
	due := s.now().Sub(s.swept) >= sweepEvery || s.now().Before(s.swept) // the clock was set back
	if due {
		s.swept = s.now()
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.Sweep()
}

// Sweep removes the tickets that are no longer kept.
func (s *Service) Sweep() error {
	all, err := os.ReadDir(s.dir)
	if err != nil {
		return failed("", err)
	}
	for _, e := range all {
		if !validID.MatchString(e.Name()) || !s.old(e.Name()) {
			continue
		}
		if err := remove(filepath.Join(s.dir, e.Name())); err != nil {
			slog.Warn("an old ticket was not removed", "ticket", e.Name(), "err", err)
		}
	}
	return nil
}

// old reports whether a ticket and its journal are no longer kept: since their last change, and
// since the ticket expired.
func (s *Service) old(id string) bool {
	s.mu.Lock()
	busy := s.running[id] != nil || s.starts[id] != nil || s.late[id] != nil
	s.mu.Unlock()
	t, dir, err := s.load(id)
	if busy || err != nil {
		return false
	}
	newest := t.Expires
	for _, path := range []string{filepath.Join(dir, begunFile), journalOf(dir)} {
		if info, err := os.Stat(path); err == nil &&
			info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return s.now().Sub(newest) > keepFor
}

// Close ends the running turns, and waits for them.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(turnstone.Errorf("turn.run", turnstone.KindCanceled, "the node", "stops"))
	s.wg.Wait()
	s.lateEnds()
	return nil
}

// A Limit returns a context whose operations use only the sessions of a client: see owners.Limit.
type Limit func(context.Context) context.Context

// For returns the commands of the domain Turn for a client whose key the channel has proved. limit
// is that of its turns, also while they run without the client.
func (s *Service) For(client channel.PublicKey, limit Limit) wire.TurnServer {
	return &served{s: s, client: client, limit: limit}
}

// ForOperator is For with a client on the operator's socket.
func (s *Service) ForOperator(client channel.PublicKey, limit Limit) wire.TurnServer {
	return &served{s, client, limit, true}
}

// served answers one client.
type served struct {
	s        *Service
	client   channel.PublicKey
	limit    Limit
	operator bool
}

// Start starts the turn of a ticket.
func (v *served) Start(ctx context.Context, c *wire.Conn, p *wire.TurnStartParams) error {
	s := v.s
	t, dir, err := s.of(v.client, p.Ticket)
	if err != nil {
		return err
	}
	doc, err := readDocument(c, p)
	if err != nil {
		return err
	}
	settings := p.Settings
	if settings == nil {
		settings = new(wire.TurnSettings)
	}
	done, err := s.starting(ctx, t.ID)
	if err != nil {
		return err
	}
	defer done()
	if err := s.hide(v.limit(ctx), t, dir); err != nil {
		return err
	}
	if settings.Resume != "" {
		w, err := s.resuming(t, settings)
		if err != nil {
			return err
		}
		return s.start(ctx, t, dir, w, v)
	}
	req, times, err := request(doc, t, settings)
	if err != nil {
		return err
	}
	req.Document.Front.Retry = min(req.Document.Front.Retry, s.most)
	// each attempt has files of its own
	if req.Dir, err = os.MkdirTemp(within(dir), filesFolder); err != nil {
		return failed(t.ID, err)
	}
	if err = receiveFiles(ctx, c, p.Files, req.Dir); err == nil {
		req.Add, err = transfers(settings, req.Dir)
	}
	if err == nil {
		req.ID = turnstone.NewTurnID()
		err = s.start(ctx, t, dir, work{turn: req.ID, files: req.Dir, times: times > 0,
			retry: req.Document.Front.Retry,
			do: func(ctx context.Context, o executor.Observer) (*turnstone.TurnReport, error) {
				if times > 0 {
					return s.x.Times(ctx, req, times, o)
				}
				return s.x.Run(ctx, req, o)
			}}, v)
	}
	if err != nil {
		_ = os.RemoveAll(req.Dir)
	}
	return err
}

// resuming returns the work of a ticket that resumes an interrupted turn.
func (s *Service) resuming(t Ticket, settings *wire.TurnSettings) (work, error) {
	req, err := resumption(t, settings)
	if err != nil {
		return work{}, err
	}
	x, ok := s.x.(Resumer)
	if !ok {
		return work{}, turnstone.Errorf("turn.run", turnstone.KindUnavailable, "the node",
			"resumes no turns")
	}
	return work{turn: turnstone.TurnID(req.Ref),
		do: func(ctx context.Context, o executor.Observer) (*turnstone.TurnReport, error) {
			return x.ResumeTurn(ctx, req, o)
		}}, nil
}

// work is what a ticket's turn does.
type work struct {
	turn  turnstone.TurnID
	times bool   // it runs several times
	files string // a folder that is removed after the turn; empty: none
	why   string // it runs again; empty: it does not, or at the same node
	retry int    // how often it may start again, as its document says
	// attempt counts the nodes that were lost with the turn; shared: other nodes know the ticket.
	attempt int
	shared  bool
	do      func(ctx context.Context, o executor.Observer) (*turnstone.TurnReport, error)
}

// starting notes that a ticket's turn is being started: one command at a time receives its files. It
// waits for the one before, which is that of a connection that its client has lost.
func (s *Service) starting(ctx context.Context, id string) (done func(), err error) {
	for {
		s.mu.Lock()
		before := s.starts[id]
		if before == nil {
			now := make(chan struct{})
			s.starts[id] = now
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.starts, id)
				close(now)
			}, nil
		}
		s.mu.Unlock()
		if err := ended(ctx, before); err != nil {
			return nil, err
		}
	}
}

// settled waits until no command starts the ticket's turn.
func (s *Service) settled(ctx context.Context, id string) error {
	s.mu.Lock()
	start := s.starts[id]
	s.mu.Unlock()
	if start == nil {
		return nil
	}
	return ended(ctx, start)
}

func ended(ctx context.Context, start <-chan struct{}) error {
	select {
	case <-start:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// filesFolder begins the names of folders with a turn's files.
const filesFolder = "files-"

func readDocument(c *wire.Conn, p *wire.TurnStartParams) (*document.Document, error) {
	in, err := c.Receiver(p.Document)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	text, err := io.ReadAll(io.LimitReader(in, document.MaxFile+1)) // the parser rejects longer ones
	if err != nil {
		return nil, err
	}
	return document.Parse(p.Name, text)
}

// receiveFiles writes the files of a turn into dir; no stream has none.
func receiveFiles(ctx context.Context, c *wire.Conn, id wire.StreamID, dir string) error {
	if id == 0 {
		return nil
	}
	in, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return tarfiles.Unpack(ctx, in, dir+"/", tarfiles.Any(), tarfiles.Limits{
		Room: diskspace.DefaultRoom})
}

// start begins the ticket of v and its turn when there is a place for it. A ticket that has waited
// in vain can be used again.
func (s *Service) start(ctx context.Context, t Ticket, dir string, w work, v *served) (err error) {
	release, err := s.place(ctx, t)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return turnstone.Errorf("turn.run", turnstone.KindUnavailable, "the node", "stops")
	}
	b := begun{Turn: w.turn, Times: w.times, Operator: v.operator, Retry: w.retry}
	if err := s.begin(t, dir, b); err != nil {
		return err
	}
	j, told, err := s.announce(ctx, t, dir, b)
	if err != nil { // the turn does not run, so that the ticket can be used again
		return errors.Join(err, failed(t.ID, os.Remove(filepath.Join(dir, begunFile))))
	}
	w.shared = told
	s.launch(t, j, s.now().UTC(), w, v.limit, func(context.Context) (func(), error) {
		return release, nil
	})
	return nil
}

// launch runs a turn, and ends its journal. place waits for a place. The context that limit returns
// ends with the turn. The caller has s.mu.
func (s *Service) launch(t Ticket, j *journal, started time.Time, w work, limit Limit,
	place func(context.Context) (release func(), err error)) {
	id := t.ID
	ctx, cancel := context.WithCancel(trail.From(s.ctx, t.Trail))
	r := &running{journal: j, cancel: cancel, started: started}
	s.running[id] = r
	// Now, and not when the turn has its place: a client's key that limit holds would be forgotten
	// meanwhile, if the client is gone.
	ctx = limit(ctx)
	s.wg.Go(func() {
		defer cancel()
		s.tell(id)
		release, err := place(ctx)
		if err != nil {
			w.do = func(context.Context, executor.Observer) (*turnstone.TurnReport, error) {
				return nil, err
			}
			s.run(ctx, id, r, w)
			return
		}
		defer release()
		ctx = limit(ctx) // again: a key may have come while it waited
		s.run(s.warmed(ctx, t), id, r, w)
	})
}

// run runs a turn, and ends its journal.
func (s *Service) run(ctx context.Context, id string, r *running, what work) {
	if what.files != "" {
		defer func() { _ = os.RemoveAll(what.files) }()
	}
	w := turnlog.NewWriter(r.journal)
	w.Hide(s.paths)
	used := new(metered.Meter)
	ctx = metered.NewContext(ctx, used)
	report, err := what.do(ctx, w)
	if what.shared && !s.settle(id, what.attempt) {
		s.abandon(id, r)
		return
	}
	if err := w.End(report, err); err != nil {
		slog.WarnContext(ctx, "the journal of a turn is not complete", "ticket", id, "err", err)
	}
	r.outcome = outcomeOf(r.started, s.now(), report, used.Sum())
	s.keepEnd(id, r) // the turn itself is in the store
	r.journal.end()
	s.mu.Lock()
	r.ended = true
	s.leave(id, r)
	s.mu.Unlock()
	s.tell(id)
}

// leave forgets an ended turn that nobody reads; its journal stays on disk. The caller has s.mu.
func (s *Service) leave(id string, r *running) {
	if !r.ended || r.readers > 0 {
		return
	}
	if s.running[id] == r {
		delete(s.running, id)
	}
	if s.late[id] != r {
		_ = r.journal.f.Close()
	}
	if len(s.running) == 0 {
		for _, c := range s.idle {
			close(c)
		}
		s.idle = nil
	}
}

// Attach sends the journal of a turn.
func (v *served) Attach(ctx context.Context, c *wire.Conn, p *wire.TurnAttachParams) (
	*wire.TurnAttachResult, error) {
	_, dir, err := v.s.of(v.client, p.Ticket)
	if err != nil {
		return nil, err
	}
	if p.Offset < 0 {
		return nil, turnstone.Errorf("turn.attach", turnstone.KindInvalid, "the offset",
			"is below zero")
	}
	out, err := c.Sender(p.Journal)
	if err != nil {
		return nil, err
	}
	// its client may have lost the connection over which it started the turn
	err = v.s.settled(ctx, p.Ticket)
	var size int64
	if err == nil {
		size, err = v.s.copyJournal(ctx, p.Ticket, dir, out, p.Offset)
	}
	if err != nil {
		out.Abort(err)
		return nil, err
	}
	return &wire.TurnAttachResult{Size: size}, out.Close()
}

// copyJournal sends a journal from offset on, while its turn runs and after its end.
func (s *Service) copyJournal(ctx context.Context, id, dir string, w io.Writer, offset int64) (
	int64, error) {
	late := s.lateEnd(id)
	s.mu.Lock()
	r := s.running[id]
	if r == nil && late != nil && s.late[id] == late {
		r = late
	}
	if r != nil {
		r.readers++
	}
	s.mu.Unlock()
	if r != nil {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			r.readers--
			s.leave(id, r)
		}()
		return r.journal.copyTo(ctx, w, offset)
	}
	f, err := os.Open(journalOf(dir))
	if errors.Is(err, fs.ErrNotExist) && forgotten(dir) {
		return 0, turnstone.Errorf("turn.attach", turnstone.KindNotFound, "ticket "+id,
			"its turn is of a sealed session, and what it printed is no longer in memory").
			WithHint("turn log shows the turn, and turn show --receipt its receipt")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, turnstone.Errorf("turn.attach", turnstone.KindNotFound, "ticket "+id,
			"has no turn yet").WithHint("start the turn first")
	}
	if err != nil {
		return 0, failed(id, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return 0, failed(id, err)
	}
	_, err = io.Copy(w, io.NewSectionReader(f, offset, max(0, info.Size()-offset)))
	return info.Size(), err
}

// Cancel ends a running turn.
func (v *served) Cancel(_ context.Context, _ *wire.Conn, p *wire.TurnCancelParams) error {
	if _, _, err := v.s.of(v.client, p.Ticket); err != nil {
		return err
	}
	if err := v.s.Forbid(p.Ticket); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if r := v.s.running[p.Ticket]; r != nil {
		r.cancel()
	}
	return nil
}
