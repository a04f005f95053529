package repo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/session"
)

// The current session is this user's last used session of this state directory, or a session that
// the caller names. References have short forms for it:
//
//	-           the current session, like SESSION
//	-@REF       like SESSION@REF; also @REF
//	-~K         the K-th parent of its head
//	turn-N      its turn number N, unless there is a session of that name
//
// Only callers that serve one user use it: Expand turns such a reference into a reference for Show,
// Diff and others, and NoteUse records the used session.

// Expand returns ref with the label of the current session in it, or ref itself if it does not name
// that session. named is the name or ID of the current session; empty: the last used session.
func (x *Repo) Expand(ctx context.Context, ref, named string) (string, error) {
	short, rest := x.cutCurrent(ref)
	if !short {
		return ref, nil
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return "", err
	}
	if word, _, _ := strings.Cut(ref, "~"); turnstone.ReadsAsTurn(word) {
		_, err := cs.DB.Find(ctx, word)
		if err == nil {
			return ref, nil // a session of an older program
		}
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			return "", err
		}
	}
	s, err := x.current(ctx, cs, named)
	if err != nil {
		return "", err
	}
	return s.Label() + rest, nil
}

// cutCurrent reports whether ref names the current session, and returns the rest after the name.
func (x *Repo) cutCurrent(ref string) (short bool, rest string) {
	word, up, _ := strings.Cut(ref, "~")
	if up != "" || strings.HasSuffix(ref, "~") {
		up = "~" + up
	}
	switch {
	case turnstone.ReadsAsTurn(word):
		return true, "@" + word + up
	case word == "-", strings.HasPrefix(word, "-@"):
		return true, ref[1:]
	case strings.HasPrefix(word, "@"):
		return true, ref
	}
	return false, ""
}

// CurrentSession returns the current session. The error is of kind KindNotFound if there is none.
func (x *Repo) CurrentSession(ctx context.Context, named string) (turnstone.Session, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return turnstone.Session{}, err
	}
	return x.current(ctx, cs, named)
}

func (x *Repo) current(ctx context.Context, cs *ContextStore,
	named string) (turnstone.Session, error) {
	if named != "" {
		s, err := cs.DB.Find(ctx, named)
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			err = turnstone.NewError("executor.athand", turnstone.KindNotFound,
				"the current session", err).
				WithHint("set TURN_SESSION to an existing session, or unset it")
		}
		return s, err
	}
	none := turnstone.Errorf("executor.athand", turnstone.KindNotFound, "the current session",
		"no session was used yet").WithHint("name a session, as turn session ls lists them")
	f, err := os.Open(x.currentPath())
	if errors.Is(err, os.ErrNotExist) {
		return turnstone.Session{}, none
	}
	if err != nil {
		none.Kind, none.Err = turnstone.KindUnavailable, err
		return turnstone.Session{}, none
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil || !session.IsID(string(b)) {
		none.Err = errors.New("it is not known which session was used last")
		return turnstone.Session{}, none
	}
	s, err := cs.DB.Find(ctx, string(b))
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		none.Err = fmt.Errorf("the session that was used last (%s) is gone", b)
		return turnstone.Session{}, none
	}
	return s, err
}

// NoteUse makes the session that ref names, by its name or ID, the current session. A reference
// without a session, such as a turn's ID, changes nothing. Errors are only logged, because nothing
// depends on the record.
func (x *Repo) NoteUse(ctx context.Context, ref string) {
	if short, _ := x.cutCurrent(ref); short || strings.HasPrefix(ref, "t_") {
		return
	}
	name, _, _ := strings.Cut(ref, "@")
	name, _, _ = strings.Cut(name, "~")
	_, s, err := x.findSession(ctx, name)
	if err == nil {
		err = x.writeCurrent(s.ID)
	}
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		slog.Info("the current session was not noted", "session", name, "error", err)
	}
}

// currentPath returns a separate file for each user: root may use another user's state directory,
// and must not leave a file there that the other user cannot replace.
func (x *Repo) currentPath() string {
	return x.Dir.Path(fmt.Sprintf("last-session-%d", os.Getuid()))
}

// writeCurrent replaces the file atomically: a concurrent reader gets the old ID or the new ID. The
// file is not durable, because a file that a crash left empty counts as missing.
func (x *Repo) writeCurrent(id turnstone.SessionID) error {
	path := x.currentPath()
	if b, err := os.ReadFile(path); err == nil && string(b) == string(id) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".last-session-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(string(id))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
