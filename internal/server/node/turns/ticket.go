package turns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/server/trail"
)

// A Ticket is the permission to run one turn. The node's controller reserved it; what the client
// may do with it is the node's own decision.
type Ticket struct {
	ID      string            `json:"id"`
	Client  channel.PublicKey `json:"client"`            // the key that may use the ticket
	Session string            `json:"session,omitempty"` // of the turn; empty: none with a name
	Expires time.Time         `json:"expires"`           // the turn must be started before

	// SessionID is the ID of a session that exists; empty: Session is new, or empty.
	SessionID turnstone.SessionID `json:"session_id,omitempty"`
	// Template is the only template or image that the turn may ask for; empty: the default one.
	Template string `json:"template,omitempty"`
	// Machine bounds what the turn may ask for, and is what it gets if it asks for nothing. A zero
	// field bounds nothing.
	Machine turnstone.Machine `json:"machine,omitzero"`
	// Most bounds what the turn may ask for where Machine does not; it gets nothing of it.
	Most    turnstone.Machine `json:"most,omitzero"`
	Timeout time.Duration     `json:"timeout,omitempty"` // bounds the turn's; 0: it does not
	Created time.Time         `json:"created,omitzero"`  // Reserve sets it
	// Trail is the traceparent of the request that reserved the ticket; empty: none.
	Trail string `json:"trail,omitempty"`
}

// same reports whether both are tickets for the same request.
func (t Ticket) same(o Ticket) bool {
	t.Expires, t.Created, o.Expires, o.Created = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	t.Trail, o.Trail = "", ""
	t.Most, o.Most = turnstone.Machine{}, turnstone.Machine{}
	return t == o
}

// names reports whether a client's word for the session of its turn is the ticket's.
func (t Ticket) names(session string) bool {
	return session == t.Session || t.SessionID != "" && session == string(t.SessionID)
}

// Trail returns the Trail of a ticket that the request of ctx reserves.
func Trail(ctx context.Context) string { return trail.Text(ctx) }

// Files of a ticket's folder.
const (
	ticketFile  = "ticket.json"
	begunFile   = "begun"   // exists once the turn was started
	journalFile = "journal" // see package turnlog
)

// maxTickets bounds the tickets of a service.
const maxTickets = 20_000

var validID = regexp.MustCompile(`^[a-z0-9_]{8,64}$`)

// folder returns the folder of a ticket. The error is of kind Invalid if id is no ticket's.
func (s *Service) folder(id string) (string, error) {
	if !validID.MatchString(id) {
		return "", turnstone.Errorf("turn.ticket", turnstone.KindInvalid, "the ticket",
			"is not 8 to 64 lower-case letters, digits and underscores")
	}
	return filepath.Join(s.dir, id), nil
}

// Reserve stores a ticket, durably. The same ticket again, whatever its times, changes nothing. The
// error is of kind Invalid if there is another ticket with the ID of t, and of kind Exhausted if
// there are too many.
func (s *Service) Reserve(t Ticket) error {
	dir, err := s.folder(t.ID)
	if err != nil {
		return err
	}
	if err := t.Client.Check(); err != nil {
		return err
	}
	if err := s.sweep(); err != nil {
		return err
	}
	if _, err := os.Lstat(dir); err != nil {
		if all, err := os.ReadDir(s.dir); err != nil || len(all) >= maxTickets {
			return turnstone.Errorf("turn.ticket", turnstone.KindExhausted, "the node",
				"keeps %d tickets, and may keep no more", len(all)).WithHint("try again later")
		}
	}
	t.Expires, t.Created = t.Expires.UTC().Round(0), s.now().UTC().Round(0)
	text, err := json.Marshal(t)
	if err != nil {
		return failed(t.ID, err)
	}
	made, err := os.MkdirTemp(s.dir, ".new-")
	if err != nil {
		return failed(t.ID, err)
	}
	defer func() { _ = os.RemoveAll(made) }()
	if err := writeSynced(filepath.Join(made, ticketFile), text); err != nil {
		return failed(t.ID, err)
	}
	if err = os.Rename(made, dir); err == nil { // fails if dir has files
		err = syncFolder(s.dir)
		s.tell(t.ID)
		return failed(t.ID, err)
	}
	have, _, err := s.load(t.ID)
	if err != nil {
		return err
	}
	if !have.same(t) {
		return turnstone.Errorf("turn.ticket", turnstone.KindInvalid, "ticket "+t.ID,
			"is reserved for something else").WithHint("use another idempotency key")
	}
	return nil
}

// load returns a ticket and its folder. The error is of kind NotFound if there is none.
func (s *Service) load(id string) (Ticket, string, error) {
	dir, err := s.folder(id)
	if err != nil {
		return Ticket{}, "", err
	}
	var t Ticket
	err = readJSON(filepath.Join(dir, ticketFile), id, &t)
	if errors.Is(err, fs.ErrNotExist) {
		return Ticket{}, "", unknown(id)
	}
	if err == nil && t.ID != id {
		err = damaged(id, fmt.Errorf("its file is about %.80q", t.ID))
	}
	if err != nil {
		return Ticket{}, "", err
	}
	return t, dir, nil
}

// maxFile bounds the JSON files of a ticket in bytes.
const maxFile = 64 << 10

// readJSON reads a file of a ticket. The error is of kind Integrity if the file is damaged, and has
// fs.ErrNotExist in its chain if there is none.
func readJSON(path, id string, v any) error {
	info, err := os.Stat(path)
	if err != nil {
		return failed(id, err)
	}
	if info.Size() > maxFile {
		return damaged(id, fmt.Errorf("its file %s has more than %d bytes", filepath.Base(path),
			maxFile))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return failed(id, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return damaged(id, fmt.Errorf("its file %s: %w", filepath.Base(path), err))
	}
	return nil
}

func damaged(id string, err error) error {
	return turnstone.NewError("turn.ticket", turnstone.KindIntegrity, "ticket "+id, err).
		WithHint("let the node's operator look at the ticket's folder in the state directory")
}

// of returns a ticket of a client. A ticket of another client is as unknown as none.
func (s *Service) of(client channel.PublicKey, id string) (Ticket, string, error) {
	t, dir, err := s.load(id)
	if err == nil && t.Client != client {
		return Ticket{}, "", unknown(id)
	}
	return t, dir, err
}

func unknown(id string) error {
	return turnstone.Errorf("turn.ticket", turnstone.KindNotFound, "ticket "+id,
		"is not reserved for this client").
		WithHint("start the turn at the server, which answers with a ticket")
}

func failed(id string, err error) error {
	if err == nil {
		return nil
	}
	return turnstone.Classify("turn.ticket", turnstone.KindInternal, "ticket "+id, err,
		"free space in the node's state directory")
}

// begin marks a ticket as used by a turn, durably. The error is of kind Invalid if it is used or
// expired.
func (s *Service) begin(t Ticket, dir string, b begun) error {
	if !s.now().Before(t.Expires) {
		return turnstone.Errorf("turn.ticket", turnstone.KindInvalid, "ticket "+t.ID,
			"expired at %s", t.Expires.Format(time.RFC3339)).
			WithHint("start the turn at the server again")
	}
	text, err := json.Marshal(b)
	if err == nil {
		err = writeSynced(filepath.Join(dir, begunFile), text)
	}
	if errors.Is(err, fs.ErrExist) {
		return turnstone.Errorf("turn.ticket", turnstone.KindInvalid, "ticket "+t.ID,
			"was used: its turn runs, or has ended").WithHint("attach to the turn")
	}
	if err == nil {
		err = syncFolder(dir)
	}
	return failed(t.ID, err)
}

// writeSynced creates a file. It must not exist. The file is there as a whole or not at all, also on a
// full disk and after a power loss.
func writeSynced(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
