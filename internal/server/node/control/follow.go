package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/sandboxes"
)

// Times between two looks at what other processes change: local commands of the node's operator.
const (
	lookSandboxes = time.Second
	lookSessions  = 3 * time.Second
	lookRest      = 15 * time.Second
)

// follow keeps the board up to date, until the service ends.
func (s *Service) follow() {
	tick := time.NewTicker(lookSandboxes)
	defer tick.Stop()
	var sessions, rest time.Time
	for {
		now := time.Now()
		for _, st := range s.o.Tenants.All() {
			s.attach(st)
			s.lookSandboxes(st)
			if now.Sub(sessions) >= lookSessions {
				s.lookSessions(s.ctx, st, false)
			}
			if now.Sub(rest) >= lookRest {
				s.lookTurns(st)
				s.lookSnapshots(st)
			}
		}
		if now.Sub(sessions) >= lookSessions {
			sessions = now
		}
		if now.Sub(rest) >= lookRest {
			s.lookTemplates(s.ctx)
			s.o.Tenants.Forget()
			s.detach()
			rest = now
		}
		s.measure(now)
		s.describe()
		s.o.Tenants.Queue().Wake() // a sandbox may have ended
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// A tenant is what the service notes of a tenant.
type tenant struct {
	mu       sync.Mutex // held while its sessions are listed
	database string     // stamp of the list of sessions
	followed map[turnstone.SandboxID]bool
}

// attach makes a tenant's objects known, once.
func (s *Service) attach(st *tenants.State) *tenant {
	s.mu.Lock()
	t := s.tenants[st]
	fresh := t == nil
	if fresh {
		t = &tenant{followed: make(map[turnstone.SandboxID]bool)}
		s.tenants[st] = t
	}
	s.mu.Unlock()
	if !fresh {
		return t
	}
	if dir, err := st.Folder(sandboxFolder); err == nil {
		st.ServeSandboxes(kept.Works{Store: st.Sandboxes, Dir: dir})
	}
	st.Turns.Notify(func(id string) { s.lookTurn(st, id) })
	s.lookSessions(s.ctx, st, true)
	s.lookTurns(st)
	if dir, err := st.Folder(snapshotFolder); err == nil {
		if err := kept.Sweep(dir); err != nil {
			slog.Warn("an unfinished snapshot stays", "tenant", st.Tenant, "err", err)
		}
	}
	s.lookSnapshots(st)
	s.restorePorts(st)
	return t
}

// detach drops the notes and sizes of tenants whose state is forgotten.
func (s *Service) detach() {
	all := s.o.Tenants.All()
	names := make(map[string]bool)
	for _, st := range all {
		names[st.Tenant] = true
	}
	s.sizes.keep(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tenants, func(st *tenants.State, _ *tenant) bool { return !slices.Contains(all, st) })
}

// lookSandboxes follows the sandboxes that are new, and drops those that are gone.
func (s *Service) lookSandboxes(st *tenants.State) {
	entries, err := os.ReadDir(st.Sandboxes.Dir())
	if err != nil && !os.IsNotExist(err) {
		slog.Warn("sandboxes cannot be listed", "tenant", st.Tenant, "err", err)
		return
	}
	ids := make(map[string]bool)
	for _, e := range entries {
		if e.IsDir() && sandboxForm.MatchString(e.Name()) {
			ids[e.Name()] = true
			s.followSandbox(st, turnstone.SandboxID(e.Name()))
		}
	}
	s.board.keep(kindSandbox, st.Tenant, ids)
	t := s.attach(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range t.followed {
		if !ids[string(id)] {
			delete(t.followed, id)
		}
	}
}

// followSandbox notes the states of a sandbox until it ends.
func (s *Service) followSandbox(st *tenants.State, id turnstone.SandboxID) {
	t := s.attach(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.followed[id] || s.ctx.Err() != nil {
		return
	}
	t.followed[id] = true
	s.wg.Go(func() {
		err := st.Sandboxes.Watch(s.ctx, id, func(i sandboxes.Info) {
			s.noteSandbox(st, i)
			if _, err := os.Stat(filepath.Join(st.Sandboxes.Dir(), string(id))); err != nil {
				s.board.drop(name{kindSandbox, st.Tenant, string(id)}) // it was removed meanwhile
			}
		})
		final := err == nil
		if turnstone.KindOf(err) == turnstone.KindUnavailable { // such as while it is created
			if i, err := st.Sandboxes.Get(id); err == nil {
				s.noteSandbox(st, i)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !final { // look again
			delete(t.followed, id)
		}
	})
}

// noteSandbox puts a sandbox on the board.
func (s *Service) noteSandbox(st *tenants.State, i sandboxes.Info) *v1.Sandbox {
	r, err := s.record(st, i.ID)
	if err != nil {
		slog.Warn("what is kept of a sandbox cannot be read", "sandbox", i.ID, "err", err)
	}
	out := s.sandboxOf(i, r)
	s.board.set(name{kindSandbox, st.Tenant, string(i.ID)}, &v1.WatchNodeResponse{
		Object: &v1.WatchNodeResponse_Sandbox{Sandbox: &v1.OwnedSandbox{Tenant: st.Tenant,
			Sandbox: out}}})
	return out
}

// lookTurn puts the turn of a ticket on the board.
func (s *Service) lookTurn(st *tenants.State, id string) {
	i, err := st.Turns.Get(id)
	if err != nil {
		return
	}
	if i.State == turns.Done { // its session may be new
		s.lookSessions(s.ctx, st, false)
	}
	turn := s.turnOf(i)
	if was := s.board.get(name{kindTurn, st.Tenant, id}); turn.SessionId == "" {
		turn.SessionId = was.GetTurn().GetTurn().GetSessionId()
	}
	if turn.SessionId == "" && i.In != "" {
		turn.SessionId = s.sessionNamed(st, i.In)
	}
	s.board.set(name{kindTurn, st.Tenant, id}, &v1.WatchNodeResponse{
		Object: &v1.WatchNodeResponse_Turn{Turn: &v1.OwnedTurn{Tenant: st.Tenant, Turn: turn}}})
}

func (s *Service) lookTurns(st *tenants.State) {
	all, err := st.Turns.IDs()
	if err != nil {
		slog.Warn("tickets cannot be listed", "tenant", st.Tenant, "err", err)
		return
	}
	ids := make(map[string]bool)
	for _, id := range all {
		ids[id] = true
		switch s.board.get(name{kindTurn, st.Tenant, id}).GetTurn().GetTurn().GetState() {
		case v1.TurnState_TURN_STATE_DONE, v1.TurnState_TURN_STATE_EXPIRED: // for ever
		default:
			s.lookTurn(st, id)
		}
	}
	s.board.keep(kindTurn, st.Tenant, ids)
}

// sessionNamed returns the ID of a tenant's session; empty if there is none of this name.
func (s *Service) sessionNamed(st *tenants.State, label string) (id string) {
	s.board.each(kindSession, func(d *v1.WatchNodeResponse) {
		if o := d.GetSession(); o.Tenant == st.Tenant && o.Session.Name == label {
			id = o.Session.SessionId
		}
	})
	return id
}

// lookSessions puts a tenant's sessions on the board, unless the database is as it was.
func (s *Service) lookSessions(ctx context.Context, st *tenants.State, all bool) {
	s.mu.Lock()
	t := s.tenants[st]
	s.mu.Unlock()
	if t == nil {
		return // its state was forgotten since
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := databaseStamp(st)
	if now == "" || now == t.database && !all {
		return // without a database, a look would make one
	}
	infos, err := st.Executor.Sessions(ctx)
	if err != nil {
		if ctx.Err() == nil {
			slog.Warn("sessions cannot be listed", "tenant", st.Tenant, "err", err)
		}
		return
	}
	t.database = now
	ids := make(map[string]bool)
	for _, i := range infos {
		ids[string(i.ID)] = true
		s.board.set(name{kindSession, st.Tenant, string(i.ID)}, &v1.WatchNodeResponse{
			Object: &v1.WatchNodeResponse_Session{Session: &v1.OwnedSession{Tenant: st.Tenant,
				Session: s.sessionOf(st.Tenant, i)}}})
	}
	s.board.keep(kindSession, st.Tenant, ids)
}

// databaseStamp changes when the sessions may have changed. It is empty if there is no database.
func databaseStamp(st *tenants.State) (stamp string) {
	if st.Database != "" { // other machines change it
		return time.Now().String()
	}
	for _, file := range []string{"context.db", "context.db-wal"} {
		if info, err := os.Stat(st.Dir.Path(file)); err == nil {
			stamp += fmt.Sprintf("%s %d %d ", file, info.Size(), info.ModTime().UnixNano())
		}
	}
	return stamp
}

func (s *Service) lookSnapshots(st *tenants.State) {
	dir, err := st.Folder(snapshotFolder)
	if err != nil {
		return
	}
	all, err := kept.Snapshots(dir)
	if err != nil {
		slog.Warn("snapshots cannot be listed", "tenant", st.Tenant, "err", err)
		return
	}
	ids := make(map[string]bool)
	for _, k := range all {
		ids[k.ID] = true
		s.board.set(name{kindSnapshot, st.Tenant, k.ID}, &v1.WatchNodeResponse{
			Object: &v1.WatchNodeResponse_Snapshot{Snapshot: &v1.OwnedSnapshot{
				Tenant: st.Tenant, Snapshot: snapshotOf(k)}}})
	}
	s.board.keep(kindSnapshot, st.Tenant, ids)
}
