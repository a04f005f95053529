package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes/performed"
)

// SessionInfo says to which session a sandbox belongs, and where its next turn goes.
type SessionInfo struct {
	ID     turnstone.SessionID `json:"id"`
	Name   string              `json:"name"` // the session's name, or its ID
	Branch string              `json:"branch"`
	// Begun is the turn whose state the sandbox began with; empty: its template.
	Begun turnstone.TurnID `json:"begun,omitempty"`
	// Turn is the turn that the next turn of the sandbox follows, and Number its number; empty: the
	// session had no turn.
	Turn   turnstone.TurnID `json:"turn,omitempty"`
	Number int              `json:"number,omitempty"`
}

// after names what the sandbox's next turn follows.
func (s *SessionInfo) after() string {
	if s.Number == 0 {
		return "the template"
	}
	return fmt.Sprintf("turn %d", s.Number)
}

// lost is the part of a reason about a sandbox whose last turn could not be kept.
func (s *SessionInfo) lost() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("; session %s has nothing of it since %s", s.Name, s.after())
}

// A Committer is a Machine of a session's sandbox.
type Committer interface {
	Controlled
	// Commit keeps the work of the sandbox, whose machine is paused, as a turn. The report is nil if
	// there is nothing to keep. The new place of the sandbox is returned with the report.
	Commit(ctx context.Context, w Work) (*turnstone.TurnReport, SessionInfo, error)
}

// Work is what was done in a sandbox since it began, or since its last turn.
type Work struct {
	performed.Work
	Sandbox Info
	Session SessionInfo
	Env     []string // KEY=VALUE of the sandbox's processes
	// Last keeps a turn without a state if the files cannot be kept: nobody can try again.
	Last bool
}

const opCommitted turnstone.Op = "sandbox.commit"

// Commit keeps what was done in a session's sandbox as a turn. The sandbox continues, and its next
// turn follows the new one. The report is nil if nothing was done. The error is of kind KindInvalid
// if the sandbox belongs to no session. After an error the session is as it was, and Commit may be
// called again.
func (s *Store) Commit(ctx context.Context, id turnstone.SandboxID) (*turnstone.TurnReport, error) {
	c, err := s.Control(ctx, id)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	a, _, err := c.do(ctx, controlRequest{Op: opCommit})
	return a.Turn, err
}

// Discard is Stop for a session's sandbox without a turn: what was done in it since its last turn is
// lost.
func (s *Store) Discard(ctx context.Context, id turnstone.SandboxID) error {
	i, err := s.read(id)
	if err == nil && i.State == StateReady && i.Session != nil {
		if c, err := s.Control(ctx, id); err == nil {
			_, _, _ = c.do(ctx, controlRequest{Op: opDiscard}) // a holder that does not answer is killed
			_ = c.Close()
		}
	}
	lock, err := s.halt(ctx, id)
	lock.Release()
	return err
}

// commitLast makes the holder of a session's sandbox keep the last turn and end. It does nothing for
// other sandboxes, and for those that have ended.
func (s *Store) commitLast(ctx context.Context, id turnstone.SandboxID) error {
	i, err := s.read(id)
	if err != nil || i.State != StateReady || i.Session == nil {
		return nil // what follows finds the error
	}
	c, err := s.Control(ctx, id)
	if err == nil {
		defer c.Close()
		_, _, err = c.do(ctx, controlRequest{Op: opClose})
	}
	if now, readErr := s.read(id); readErr != nil || now.State.Final() {
		return nil // it ended by itself, and its reason says what is kept
	}
	if err != nil {
		return turnstone.NewError(opCommitted, turnstone.KindOf(err), "sandbox "+i.Title(),
			fmt.Errorf("it still runs, because its turn in session %s could not be kept: %w",
				i.Session.Name, err)).WithHint(cmp.Or(turnstone.HintOf(err), "try again") +
			"; --discard ends the sandbox without a turn")
	}
	return nil
}

// commit keeps the work so far. The machine continues unless last is set and there is no error.
func (h *holder) commit(ctx context.Context, last, forced bool) (*turnstone.TurnReport, error) {
	k, ok := h.machine.(Committer)
	h.mu.Lock()
	belongs := h.info.Session
	h.mu.Unlock()
	if !ok || belongs == nil || h.recorder == nil {
		return nil, turnstone.Errorf(opCommitted, turnstone.KindInvalid, "sandbox "+string(h.id),
			"it belongs to no session").WithHint("create it with turn sandbox create --session NAME")
	}
	paused := h.status().Paused
	if !paused {
		h.recorder.Settle(ctx)
	}
	h.still.Lock()
	defer h.still.Unlock()
	var w Work
	var rep *turnstone.TurnReport
	now := *belongs
	_, err := k.Pause(ctx)
	if err == nil {
		w = h.work(*belongs)
		w.Last = forced
		rep, now, err = k.Commit(ctx, w)
	}
	h.log.Info("commit", "turn", now.Turn, "err", err)
	if err == nil {
		h.mu.Lock()
		h.info.Session = &now
		writeErr := writeInfo(h.dir, h.info)
		h.watched.tell()
		h.mu.Unlock()
		if writeErr != nil {
			h.log.Error("the sandbox's new turn is not in its state.json", "err", writeErr)
		}
		h.recorder.Committed(w.Commands)
	}
	if paused || last && err == nil {
		return rep, err
	}
	if resumeErr := k.Resume(context.WithoutCancel(ctx)); resumeErr != nil {
		return rep, errors.Join(err, resumeErr)
	}
	h.followAgain(ctx)
	return rep, err
}

// work returns what was done in the sandbox.
func (h *holder) work(belongs SessionInfo) Work {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Work{Work: h.recorder.Work(), Sandbox: h.info, Session: belongs, Env: h.env}
}

// belong gives the sandbox its place in its session, and begins to record its commands.
func (h *holder) belong(ctx context.Context, spec Spec, d Details) (err error) {
	h.mu.Lock()
	if d.Session != nil {
		h.info.Session = d.Session
	}
	h.info.Image = cmp.Or(h.info.Image, d.Image)
	belongs := h.info.Session != nil
	h.mu.Unlock()
	if !belongs {
		return nil
	}
	if _, ok := h.machine.(Committer); !ok {
		return turnstone.Errorf("sandbox.create", turnstone.KindInternal, "sandbox",
			"its machine cannot be kept as a turn")
	}
	dir := cmp.Or(d.Records, filepath.Join(h.dir, performed.Dir))
	if spec.From != "" {
		if err := performed.Copy(spec.From+commandsSuffix, dir); err != nil {
			return createError(err)
		}
	}
	h.recorder, err = performed.NewRecorder(dir, performed.Options{Secrets: spec.Secrets, Log: h.log,
		Room: d.Room, Held: h.hold})
	if err != nil {
		return createError(err)
	}
	return h.recorder.Follow(ctx, h.machine)
}

// commandsSuffix follows the name of a snapshot, for the folder with the commands of its sandbox.
const commandsSuffix = ".commands"

// maxHeld bounds the names of secrets, which an agent may make up.
const maxHeld = 1024

// hold notes the names of secrets that commands were given, so that no copy is made without consent.
func (h *holder) hold(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.info.Secrets)
	for _, name := range names {
		if !slices.Contains(all, name) && len(all) < maxHeld && len(name) <= maxLabel {
			all = append(all, name)
		}
	}
	if len(all) == len(h.info.Secrets) {
		return
	}
	h.info.Secrets = all
	if err := writeInfo(h.dir, h.info); err != nil {
		h.log.Warn("a secret's name is not in the sandbox's state.json", "err", err)
	}
}

// end executes the requests about the last turn.
func (h *holder) end(ctx context.Context, op string, a *controlAnswer) error {
	if op != opDiscard {
		rep, err := h.commit(ctx, op == opClose, false)
		if rep != nil {
			short := *rep
			short.Receipt, a.Turn = "", &short // it may be long, and the store has it
		}
		if err != nil || op == opCommit {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed && op == opClose {
		close(h.stop)
	}
	h.closed = true
	return nil
}

// settle keeps the last turn of a sandbox that ends, and returns what the sandbox's reason says
// about it.
func (h *holder) settle(e event) string {
	if e != eventMachineDied {
		return h.commitAtEnd()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.info.Session.lost()
}

// commitAtEnd keeps the last turn of a sandbox that nobody asked about: its time is up, or the host
// shuts down. It returns what the sandbox's reason says about the turn.
func (h *holder) commitAtEnd() string {
	h.mu.Lock()
	belongs, done := h.info.Session, h.closed
	h.mu.Unlock()
	if belongs == nil || done {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastCommitTime)
	defer cancel()
	rep, err := h.commit(ctx, true, true)
	h.mu.Lock()
	belongs = h.info.Session
	h.mu.Unlock()
	switch {
	case err != nil:
		return fmt.Sprintf("%s: %v", belongs.lost(), err)
	case rep == nil:
		return ""
	}
	return fmt.Sprintf("; turn %d of session %s keeps it", rep.Number, rep.Session)
}

// lastCommitTime bounds the last commit of a sandbox.
const lastCommitTime = 10 * time.Minute
