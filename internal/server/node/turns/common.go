package turns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/shared"
)

// Common are the options of a service whose sessions other nodes have too.
type Common struct {
	DB   *shared.DB
	Node string // the name of this one
	// Limit is that of the turns of a ticket's client.
	Limit func(t Ticket, operator bool) Limit
	// Room returns why this node has no room for another attempt of a lost node's turn; nil: it has.
	Room func() error
}

// A Shared is a tenant's part of a database that nodes share.
type Shared = shared.DB

// OpenShared opens it: see shared.Open.
func OpenShared(ctx context.Context, url string) (*Shared, error) { return shared.Open(ctx, url) }

// common is Common with the tickets whose end is still to come.
type common struct {
	Common
	mu   sync.Mutex
	open map[string]bool // of an earlier process of this node, whose turns may have a lease yet
}

// Common makes the service tell other nodes of its turns, and end or restart those of nodes that were
// lost. It is called before Recover.
func (s *Service) Common(c Common) {
	s.common = &common{Common: c, open: map[string]bool{}}
	s.wg.Go(s.watch)
}

// has reports whether the end of a ticket of an earlier process is still to come.
func (c *common) has(id string) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[id]
}

func (c *common) set(id string, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.open, id); open {
		c.open[id] = true
	}
}

// told reports whether other nodes know of a turn that has begun. What a sealed session's turn says is in
// this computer's memory alone, so that no other node can continue it.
func (s *Service) told(dir string, b begun) bool {
	return s.common != nil && b.Turn != "" && !b.Times && within(dir) == dir
}

// awaits reports whether what becomes of a ticket of an earlier process, of which other nodes know, is
// decided when its turn has no lease: another node may be faster. Without a ticket in the database the turn
// has its end: this node, or another one, has told it.
func (s *Service) awaits(id string) (bool, error) {
	ctx, end := context.WithTimeout(s.ctx, 10*time.Second)
	defer end()
	has, err := s.common.DB.HasTicket(ctx, id)
	if err == nil && has {
		s.common.set(id, true)
	}
	return has, err
}

// Retries bounds how often a turn starts again, whatever its document asks for. The default is 1. It is
// called before the first turn.
func (s *Service) Retries(most int) { s.most = most }

// moved drops the tickets of an earlier process of this node that another node has taken.
func (s *Service) moved(ctx context.Context) error {
	s.common.mu.Lock()
	open := slices.Collect(maps.Keys(s.common.open))
	s.common.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	still, err := s.common.DB.Tickets(ctx, s.common.Node, open)
	for _, id := range open {
		if _, mine := still[id]; err == nil && !mine {
			s.drop(id)
		}
	}
	return err
}

// publish tells other nodes of a turn that is about to begin.
func (s *Service) publish(ctx context.Context, t Ticket, dir string, b begun) (told bool, err error) {
	if !s.told(dir, b) {
		return false, nil
	}
	ticket, err := json.Marshal(t)
	if err != nil {
		return false, err
	}
	text, err := json.Marshal(b)
	if err != nil {
		return false, err
	}
	return true, s.common.DB.PutTicket(ctx, shared.Ticket{ID: t.ID, Turn: b.Turn, Node: s.common.Node,
		Ticket: ticket, Begun: text, Started: s.now()})
}

// announce makes the journal of a turn that is about to begin, and tells other nodes of the turn. After an
// error neither is left, except what a database that is away has of it: the next attempt replaces that.
func (s *Service) announce(ctx context.Context, t Ticket, dir string, b begun) (j *journal, told bool,
	err error) {
	if j, err = createJournal(journalOf(dir)); err != nil {
		return nil, false, failed(t.ID, err)
	}
	if told, err = s.publish(ctx, t, dir, b); err != nil {
		return nil, false, errors.Join(err, j.f.Close(), failed(t.ID, os.Remove(journalOf(dir))))
	}
	return j, told, nil
}

// Elsewhere returns a ticket of another node, whose turn runs as far as this node knows. The error is of
// kind NotFound if there is none.
func (s *Service) Elsewhere(ctx context.Context, id string) (Info, error) {
	if s.common == nil {
		return Info{}, unknown(id)
	}
	text, err := s.common.DB.Ticket(ctx, id)
	if err != nil {
		return Info{}, err
	}
	i := Info{State: Running}
	if text == nil || json.Unmarshal(text, &i.Ticket) != nil || i.ID != id {
		return Info{}, unknown(id)
	}
	return i, nil
}

// Forbid makes a turn that was cancelled not start again.
func (s *Service) Forbid(id string) error {
	if s.common == nil {
		return nil
	}
	ctx, end := context.WithTimeout(context.Background(), 10*time.Second)
	defer end()
	_, err := s.common.DB.CancelTicket(ctx, id)
	return err
}

// settle reports whether the end of a turn is this node's to tell: no other node has taken the ticket.
// Without an answer the ticket stays, and whoever takes it finds the turn's end.
func (s *Service) settle(id string, attempt int) bool {
	ctx, end := context.WithTimeout(context.Background(), 10*time.Second)
	defer end()
	mine, err := s.common.DB.EndTicket(ctx, id, s.common.Node, attempt)
	return mine || err != nil
}

// abandon ends the journal of a turn that another node has, without a result, and forgets the ticket:
// its client finds it there.
func (s *Service) abandon(id string, r *running) {
	slog.Warn("another node has the turn", "ticket", id)
	r.journal.end()
	s.mu.Lock()
	r.ended = true
	s.leave(id, r)
	s.mu.Unlock()
	s.drop(id)
}

// drop removes a ticket that another node has.
func (s *Service) drop(id string) {
	if dir, err := s.folder(id); err == nil {
		_ = remove(dir)
	}
	s.common.set(id, false)
	s.tell(id)
}

// watch looks after the tickets of lost nodes until the service ends.
func (s *Service) watch() {
	tick := time.NewTicker(s.common.DB.Life() / 6)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.look(); err != nil && s.ctx.Err() == nil {
			slog.Warn("the turns of lost nodes cannot be looked after", "err", err)
		}
	}
}

func (s *Service) look() error {
	ctx, end := context.WithTimeout(s.ctx, s.common.DB.Life()/2)
	defer end()
	s.mu.Lock()
	var ids []string
	for id, r := range s.running {
		if !r.ended {
			ids = append(ids, id)
		}
	}
	closed := s.closed
	s.mu.Unlock()
	if _, err := s.common.DB.Seen(ctx, s.common.Node, ids); err != nil || closed {
		return err
	}
	if err := s.moved(ctx); err != nil {
		return err
	}
	lost, err := s.common.DB.LostTickets(ctx)
	for _, t := range lost {
		if err := s.takeOver(ctx, t); err != nil && ctx.Err() == nil {
			slog.Warn("the turn of a lost node has no end", "ticket", t.ID, "node", t.Node, "err", err)
		}
	}
	return err
}

// takeOver gives the turn of a lost node another attempt, or its end.
func (s *Service) takeOver(ctx context.Context, lost shared.Ticket) error {
	x, ok := s.x.(Resumer)
	var t Ticket
	var b begun
	err := errors.Join(json.Unmarshal(lost.Ticket, &t), json.Unmarshal(lost.Begun, &b))
	if err == nil && (!ok || t.ID != lost.ID || b.Turn != lost.Turn) {
		err = fmt.Errorf("the ticket is about %.80q", t.ID)
	}
	if err != nil {
		return damaged(lost.ID, err)
	}
	// It counts the turn as interrupted, so that the lost node stores nothing of it.
	report, resumable, failure := x.Ended(ctx, b.Turn)
	if turnstone.KindOf(failure) == turnstone.KindUnavailable || ctx.Err() != nil {
		return failure
	}
	attempt := lost.Attempt + 1
	again := failure == nil && resumable && !lost.Cancelled && (attempt <= b.Retry ||
		attempt == 1 && lost.Node == s.common.Node) // as a node that is restarted does
	if again {
		if err := s.common.Room(); err != nil { // another node may have some
			return err
		}
	}
	// after that of the attempt before: a controller believes the newest
	started := s.now().UTC()
	if !started.After(lost.Started) {
		started = lost.Started.Add(time.Millisecond)
	}
	dir, mine, err := s.take(ctx, lost, t, b, started)
	if err != nil || !mine {
		return err
	}
	defer s.common.set(t.ID, false)
	if _, err := os.Stat(filepath.Join(dir, outcomeFile)); err == nil { // the database was away then
		_, err = s.common.DB.EndTicket(ctx, t.ID, s.common.Node, attempt)
		return err
	}
	if again {
		slog.Info("the turn of a lost node starts again", "ticket", t.ID, "lost", lost.Node)
		return s.resumeShared(t, dir, b, x, s.common.Limit(t, b.Operator), work{attempt: attempt,
			shared: true, why: "node " + lost.Node + " was lost: the turn starts again"})
	}
	if turnstone.KindOf(failure) == turnstone.KindNotFound {
		failure = turnstone.Errorf("turn.run", turnstone.KindDead, "node "+lost.Node,
			"was lost before the turn began").WithHint("run it again")
	}
	if err := endJournal(dir, report, failure); err != nil {
		return err
	}
	if err := keepOutcome(dir, started, s.now(), report); err != nil {
		return err
	}
	s.common.set(t.ID, false)
	s.tell(t.ID)
	_, err = s.common.DB.EndTicket(ctx, t.ID, s.common.Node, attempt)
	return err
}

// take makes a lost ticket this node's, with a folder, and reports whether it did: another node may have
// been faster. The files come first: a disk that is full must not cost the turn its attempt.
func (s *Service) take(ctx context.Context, lost shared.Ticket, t Ticket, b begun, started time.Time) (
	dir string, mine bool, err error) {
	if dir, err = s.folder(t.ID); err != nil {
		return "", false, err
	}
	made := ""
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if made, err = s.settleIn(t, b); err != nil {
			return "", false, err
		}
		defer func() { _ = os.RemoveAll(made) }()
	}
	if mine, err = s.common.DB.TakeTicket(ctx, lost, s.common.Node, started); err != nil || !mine {
		return "", false, err
	}
	if made != "" {
		if err := os.Rename(made, dir); err != nil {
			return "", false, failed(t.ID, err)
		}
	}
	return dir, true, failed(t.ID, os.Chtimes(filepath.Join(dir, begunFile), started, started))
}

// settleIn makes the files of a ticket of another node in a new folder.
func (s *Service) settleIn(t Ticket, b begun) (made string, err error) {
	if made, err = os.MkdirTemp(s.dir, ".new-"); err != nil {
		return "", failed(t.ID, err)
	}
	files := map[string][]byte{journalFile: nil}
	for name, v := range map[string]any{ticketFile: t, begunFile: b} {
		if files[name], err = json.Marshal(v); err != nil {
			break
		}
	}
	for name, text := range files {
		if err == nil {
			err = writeSynced(filepath.Join(made, name), text)
		}
	}
	if err != nil {
		return "", errors.Join(failed(t.ID, err), os.RemoveAll(made))
	}
	return made, nil
}
