// Package owners knows whose the sessions of a node are: the client keys that made them, and those
// that an owner admitted. A token says nothing about that, so a gateway or a controller in hostile
// hands reads no session.
package owners

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Caller is who uses a channel of the node.
type Caller struct {
	Key channel.PublicKey // the handshake proved it
	// Owner is "TYPE BASE64" of the key that may admit others to what the caller makes, as the
	// channel's statement names it; empty: none.
	Owner string
	// Operator: the channel was opened over the operator's socket. It may use everything, and what
	// it makes has no entry.
	Operator bool
	// Tokens narrow what the key may use; nil: nothing does. What they allow, they allow beside the
	// key.
	Tokens Tokens
}

// Tokens are what the tokens of a connection grant, such as a *rights.Rights. The error is of kind
// Denied.
type Tokens interface {
	AllowSession(name string) error
	AllowTemplate(name string) error
}

// A Need is what an operation does with a session.
type Need int

// The needs. Each includes those before it.
const (
	Read  Need = iota // what a granted key with the scope read may do
	Write             // what one with the scope write may do
	Own               // remove or rename the session, and admit others: only its owner
)

// A Store keeps a file for each session that a client made, or a row where several nodes have the same
// sessions; templates, which each node has for itself, have files. Its methods are safe for concurrent
// use, also by several processes.
type Store struct {
	dir  string
	rows Rows // of sessions; nil: they have files
	now  func() time.Time
}

// lockFile serializes changes.
const lockFile = ".lock"

var sessionID = regexp.MustCompile(`^s_[0-9a-v]{18}$|^template[+][A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// templateWord begins what stands for a template in the place of a session.
const templateWord = "template+"

// Template returns what stands for a template of this name in the place of a session.
func Template(name string) turnstone.SessionID { return turnstone.SessionID(templateWord + name) }

// label returns what an entry is about, for messages.
func label(session turnstone.SessionID) string {
	if name, ok := strings.CutPrefix(string(session), templateWord); ok {
		return "template " + name
	}
	return "session " + string(session)
}

// Open returns the store in the folder dir, which it creates. The caller makes sure that nobody else
// can write in it.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("", err)
	}
	return &Store{dir: dir, now: time.Now}, nil
}

// May returns nil if the caller may do with the session what it needs. The error is of kind NotFound
// if the caller may not know of the session, Invalid if it may not do this, and Integrity if the
// session's entry is damaged.
func (s *Store) May(session turnstone.SessionID, c Caller, need Need) error {
	if c.Operator {
		return nil
	}
	e, err := s.load(session)
	if errors.Is(err, fs.ErrNotExist) {
		return hidden(session) // the operator's
	}
	if err != nil {
		return err
	}
	has, ok := e.has(c.Key, s.now())
	switch {
	case !ok:
		return hidden(session)
	case has < need:
		return turnstone.Errorf("session.owner", turnstone.KindInvalid, "session "+string(session),
			"is only shared with your key, which may %s", has).
			WithHint("ask an owner of the session to do it, or to admit your key for more")
	}
	return nil
}

// Owned reports whether a client owns what stands for a session. If not, it is the operator's or the
// tenant's, or does not exist. The error is of kind Integrity if the entry is damaged.
func (s *Store) Owned(session turnstone.SessionID) (bool, error) {
	if !sessionID.MatchString(string(session)) {
		return false, nil
	}
	_, err := s.load(session)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// String returns what the need is, for messages.
func (n Need) String() string { return [...]string{"read it", "change it", "own it"}[n] }

func hidden(session turnstone.SessionID) error {
	what, _, _ := strings.Cut(label(session), " ")
	return turnstone.Errorf("session.owner", turnstone.KindNotFound, label(session),
		"there is no such %s of yours", what).WithHint("list yours with turn " + what + " ls")
}

// Claim makes the caller the owner of a new session, durably. The error is of kind Invalid if the
// session has another owner.
func (s *Store) Claim(ctx context.Context, session turnstone.SessionID, c Caller) error {
	if c.Operator {
		return nil
	}
	return s.change(ctx, session, func(e *entry, fresh bool) error {
		if !fresh {
			if slices.Contains(e.Clients, c.Key) {
				return nil
			}
			return turnstone.Errorf("session.owner", turnstone.KindInvalid,
				label(session), "has another owner")
		}
		e.Clients, e.Owner = []channel.PublicKey{c.Key}, c.Owner
		return nil
	})
}

// Admit admits the key of a grant, or withdraws what it may, if the session's owner signed the grant
// and no grant since. Anybody may bring a grant. The error has the fault FaultForged if the grant is
// none of the owner's, and FaultReplayed or FaultExpired if it is too late.
func (s *Store) Admit(ctx context.Context, envelope []byte) (turnstone.SessionID, error) {
	g, err := attest.OpenGrant(ctx, envelope)
	if err != nil {
		return "", err
	}
	now := s.now()
	if !now.Before(g.Expires) || now.Add(time.Minute).Before(g.Time) {
		return "", channel.Fail("session.admit", channel.FaultExpired, "the grant",
			"is valid from %s to %s", g.Time.Format(time.RFC3339), g.Expires.Format(time.RFC3339))
	}
	return g.Session, s.change(ctx, g.Session, func(e *entry, fresh bool) error {
		owner, err := key.Parse(e.Owner)
		signer, bad := key.Parse(g.Signer)
		if fresh || err != nil || bad != nil || !owner.Equal(signer) {
			return channel.Fail("session.admit", channel.FaultForged, "the grant",
				"is not signed by the session's owner")
		}
		if g.Number <= e.Number {
			return channel.Fail("session.admit", channel.FaultReplayed, "the grant",
				"is number %d, and number %d was used", g.Number, e.Number)
		}
		e.Number = g.Number
		return e.admit(g.Client, g.Scopes, g.Expires)
	})
}

// Allow admits a key on behalf of an owner of the session, until expires; no scopes withdraw what
// the key may. The error is that of May if the caller is no owner.
func (s *Store) Allow(ctx context.Context, session turnstone.SessionID, c Caller,
	client channel.PublicKey, scopes []attest.Scope, expires time.Time) error {
	if err := s.May(session, c, Own); err != nil {
		return err
	}
	return s.change(ctx, session, func(e *entry, _ bool) error {
		return e.admit(client, scopes, expires)
	})
}

// An Owners lists whose a session is.
type Owners struct {
	Clients  []channel.PublicKey `json:"clients"` // empty: the operator's
	Owner    string              `json:"owner,omitempty"`
	Admitted []Admitted          `json:"admitted"`
}

// An Admitted is a key that an owner admitted.
type Admitted struct {
	Client  channel.PublicKey `json:"client"`
	Scopes  []attest.Scope    `json:"scopes"`
	Expires time.Time         `json:"expires"`
}

// Show returns whose a session is, for one of its owners. The error is that of May for others.
func (s *Store) Show(session turnstone.SessionID, c Caller) (*Owners, error) {
	if err := s.May(session, c, Own); err != nil {
		return nil, err
	}
	e, err := s.load(session)
	if errors.Is(err, fs.ErrNotExist) {
		e, err = &entry{}, nil
	}
	if err != nil {
		return nil, err
	}
	o := &Owners{Clients: append([]channel.PublicKey{}, e.Clients...), Owner: e.Owner,
		Admitted: []Admitted{}}
	for _, a := range e.Admitted {
		if s.now().Before(a.Expires) {
			o.Admitted = append(o.Admitted, a)
		}
	}
	return o, nil
}

// Forget removes the entry of a session that was removed.
func (s *Store) Forget(session turnstone.SessionID) error {
	if !sessionID.MatchString(string(session)) {
		return nil
	}
	if s.inRows(session) {
		ctx, end := soon()
		defer end()
		return s.rows.RemoveEntry(ctx, session)
	}
	err := os.Remove(s.path(session))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return failed(session, err)
}

// Sweep removes the entries of sessions that do not exist any more, such as those that a garbage
// collection removed. exists returns an error of kind NotFound for these.
func (s *Store) Sweep(exists func(turnstone.SessionID) error) error {
	if s.rows != nil {
		return s.sweepRows(exists)
	}
	all, err := os.ReadDir(s.dir)
	if err != nil {
		return failed("", err)
	}
	for _, f := range all {
		id := turnstone.SessionID(strings.TrimSuffix(f.Name(), suffix))
		info, err := f.Info()
		if err != nil || s.now().Sub(info.ModTime()) < time.Hour {
			continue // its session may be about to be made
		}
		if strings.HasPrefix(f.Name(), unfinished) {
			_ = os.Remove(filepath.Join(s.dir, f.Name()))
			continue
		}
		if !sessionID.MatchString(string(id)) || strings.HasPrefix(f.Name(), templateWord) ||
			turnstone.KindOf(exists(id)) != turnstone.KindNotFound {
			continue
		}
		if err := s.Forget(id); err != nil {
			slog.Warn("the owners of a removed session stay", "session", id, "err", err)
		}
	}
	return nil
}

// Names of files: a session's ID and suffix, or a file that is being written.
const (
	suffix     = ".json"
	unfinished = ".new-"
)

func (s *Store) path(session turnstone.SessionID) string {
	return filepath.Join(s.dir, string(session)+suffix)
}

// load reads the entry of a session. The error has fs.ErrNotExist if there is none.
func (s *Store) load(session turnstone.SessionID) (*entry, error) {
	if !sessionID.MatchString(string(session)) {
		return nil, hidden(session)
	}
	if s.inRows(session) {
		return s.loadRow(session)
	}
	f, err := os.Open(s.path(session))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, failed(session, err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return nil, failed(session, err)
	}
	return decodeOf(session, text, filepath.Base(s.dir)+"/"+string(session)+suffix)
}

// decodeOf decodes the entry of a session, which is in the place where.
func decodeOf(session turnstone.SessionID, text []byte, where string) (*entry, error) {
	e, err := decode(text)
	if err == nil && e.Session != session {
		err = errors.New("is that of another session")
	}
	if err != nil {
		return nil, turnstone.NewError("session.owner", turnstone.KindIntegrity,
			"the owners of "+label(session), err).
			WithHint("let the node's operator look at " + where)
	}
	return e, nil
}

// change replaces the entry of a session, or makes it. With an error of f nothing changes.
func (s *Store) change(ctx context.Context, session turnstone.SessionID,
	f func(e *entry, fresh bool) error) error {
	if !sessionID.MatchString(string(session)) {
		return hidden(session)
	}
	if s.inRows(session) {
		return s.changeRow(ctx, session, f)
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(s.dir, lockFile), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	e, err := s.load(session)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := s.changed(session, e, f)
	if err != nil {
		return err
	}
	return failed(session, s.write(session, text))
}

// changed returns what f makes of the entry e of a session; nil: there is none.
func (s *Store) changed(session turnstone.SessionID, e *entry,
	f func(e *entry, fresh bool) error) ([]byte, error) {
	fresh := e == nil
	if fresh {
		e = &entry{Version: version, Session: session}
	}
	e.forgetExpired(s.now())
	if err := f(e, fresh); err != nil {
		return nil, err
	}
	return e.encode()
}

// write replaces a file, durably.
func (s *Store) write(session turnstone.SessionID, text []byte) error {
	f, err := os.CreateTemp(s.dir, unfinished) // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path(session))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func failed(session turnstone.SessionID, err error) error {
	if err == nil {
		return nil
	}
	return turnstone.Classify("session.owner", turnstone.KindUnavailable,
		"the owners of "+label(session), err,
		"free space in the node's state directory")
}
