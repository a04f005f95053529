package turns

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// A State is a phase of a ticket's life.
type State string

// The states.
const (
	Reserved State = "reserved" // the document has not arrived
	Running  State = "running"
	Done     State = "done"    // the turn has ended
	Expired  State = "expired" // cancelled, or too late, before the document arrived
)

// An Info describes a ticket and its turn, without what the turn says.
type Info struct {
	Ticket
	State   State
	Outcome // as far as it is known
}

// An Outcome is what is known of a turn that ended. It is empty if the node was restarted.
type Outcome struct {
	Turn    turnstone.TurnID `json:"turn,omitempty"`
	Number  int              `json:"number,omitempty"` // in its session
	Result  turnstone.Result `json:"result,omitempty"`
	Started time.Time        `json:"started,omitzero"`
	Ended   time.Time        `json:"ended,omitzero"`
	// In is the name or the ID of the turn's session.
	In string `json:"in,omitempty"`
	// Used is what the turn's machines used.
	Used turnstone.Used `json:"used,omitzero"`
}

// Files of a ticket's folder.
const (
	outcomeFile = "outcome.json"
	cancelled   = "cancelled" // the content of begunFile if no turn will begin
)

// Get returns a ticket. The error is of kind NotFound if there is none, with the same text for every
// caller: whose it is, is the caller's to compare.
func (s *Service) Get(id string) (Info, error) {
	t, dir, err := s.load(id)
	if err != nil {
		return Info{}, err
	}
	i, late := Info{Ticket: t}, s.lateEnd(id)
	begunText, err := os.ReadFile(filepath.Join(dir, begunFile))
	s.mu.Lock()
	r := s.running[id]
	if i.State = Running; r != nil {
		i.Started = r.started
	}
	busy := r != nil && !r.ended || s.common.has(id)
	s.mu.Unlock()
	switch {
	case busy:
		var b begun
		if json.Unmarshal(begunText, &b) == nil {
			i.Turn = b.Turn
		}
		return i, nil
	case errors.Is(err, fs.ErrNotExist) && s.now().Before(t.Expires):
		i.State = Reserved
	case errors.Is(err, fs.ErrNotExist), err == nil && string(begunText) == cancelled:
		i.State = Expired
	case err != nil:
		return Info{}, failed(id, err)
	default:
		i.State = Done
		if late != nil {
			i.Outcome = late.outcome
			return i, nil
		}
		if i.Outcome, err = readOutcome(dir, id); err != nil {
			return Info{}, err
		}
	}
	return i, nil
}

// readOutcome returns the outcome in the folder of a ticket. A turn that a former process of the
// node left has none: its end is that of its journal.
func readOutcome(dir, id string) (o Outcome, err error) {
	err = readJSON(filepath.Join(dir, outcomeFile), id, &o)
	if !errors.Is(err, fs.ErrNotExist) {
		return o, err
	}
	o.Result, o.Started = turnstone.ResultError, startedAt(dir)
	if info, err := os.Stat(journalOf(dir)); err == nil {
		o.Ended = info.ModTime().UTC()
	}
	return o, nil
}

// startedAt returns when the turn of a ticket's folder was started; zero: not known.
func startedAt(dir string) (at time.Time) {
	if info, err := os.Stat(filepath.Join(dir, begunFile)); err == nil {
		at = info.ModTime().UTC()
	}
	return at
}

// IDs returns the IDs of all tickets.
func (s *Service) IDs() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, failed("", err)
	}
	var all []string
	for _, e := range entries {
		if validID.MatchString(e.Name()) {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

// List returns all tickets, oldest first. Damaged ones are left out.
func (s *Service) List() ([]Info, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, id := range ids {
		if i, err := s.Get(id); err == nil {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b Info) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all, nil
}

// Count returns the number of turns that run.
func (s *Service) Count() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.running {
		if !r.ended {
			n++
		}
	}
	return n
}

// Cancel ends the turn of a ticket. A ticket without a turn can have none any more. A turn that has
// ended is not changed.
func (s *Service) Cancel(id string) error {
	_, dir, err := s.load(id)
	if err != nil {
		return err
	}
	// the same file as a turn's start, so that only one of both happens
	err = writeSynced(filepath.Join(dir, begunFile), []byte(cancelled))
	if err == nil {
		err = syncFolder(dir)
		s.tell(id)
	}
	if !errors.Is(err, fs.ErrExist) {
		return failed(id, err)
	}
	if err := s.Forbid(id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.running[id]; r != nil {
		r.cancel()
	}
	return nil
}

// Notify makes s call changed with the ID of each ticket that has changed, from any goroutine. It is
// called before the first ticket is reserved.
func (s *Service) Notify(changed func(id string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
}

func (s *Service) tell(id string) {
	s.mu.Lock()
	changed := s.changed
	s.mu.Unlock()
	if changed != nil {
		changed(id)
	}
}

// outcomeOf returns the outcome of a turn. report may be nil.
func outcomeOf(started, ended time.Time, report *turnstone.TurnReport, used turnstone.Used) Outcome {
	o := Outcome{Result: turnstone.ResultError, Started: started.UTC(), Ended: ended.UTC(), Used: used}
	if report != nil {
		o.Turn, o.Number, o.Result, o.In = report.ID, report.Number, report.Result, report.Session
	}
	return o
}

// keepOutcome writes the outcome of a turn of a former process, or of another node.
func keepOutcome(dir string, started, ended time.Time, report *turnstone.TurnReport) error {
	return writeOutcome(dir, outcomeOf(started, ended, report, turnstone.Used{}))
}

func writeOutcome(dir string, o Outcome) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(dir, outcomeFile), text)
}
