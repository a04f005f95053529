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
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/store/session"
)

// The session at hand is the one that was used last from this state directory by this
// user, or one that the caller names. References name it in short:
//
//	-           the session at hand, as SESSION names one
//	-@REF       what SESSION@REF is of it; also @REF
//	-~K         the K-th parent of its head
//	turn-N      its turn number N, unless there is a session that is called so
//
// Only callers that serve one user ask for it: Expand makes such a reference into one
// that Show, Diff and the others take, and NoteUse remembers which session was used.

// atHandForm is the form of the file that remembers it: a session's ID.
var atHandForm = lazyregexp.New(`^s_[0-9a-v]{18}$`)

// Expand returns ref with the label of the session at hand in it, or ref itself when
// it does not name that. named is the name or ID of the session at hand; empty: the one
// that was used last.
func (x *Repo) Expand(ctx context.Context, ref, named string) (string, error) {
	short, rest := x.cutAtHand(ref)
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
	s, err := x.atHand(ctx, cs, named)
	if err != nil {
		return "", err
	}
	return s.Label() + rest, nil
}

// cutAtHand reports whether ref names the session at hand, and returns what stands
// behind the name.
func (x *Repo) cutAtHand(ref string) (short bool, rest string) {
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

// AtHand returns the session at hand. The error is of kind KindNotFound when there is none.
func (x *Repo) AtHand(ctx context.Context, named string) (session.Session, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return session.Session{}, err
	}
	return x.atHand(ctx, cs, named)
}

func (x *Repo) atHand(ctx context.Context, cs *ContextStore, named string) (session.Session, error) {
	if named != "" {
		s, err := cs.DB.Find(ctx, named)
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			err = turnstone.NewError("executor.athand", turnstone.KindNotFound, "the session at hand",
				err).
				WithHint("TURN_SESSION names it: set it to a session that there is, or unset it")
		}
		return s, err
	}
	none := turnstone.Errorf("executor.athand", turnstone.KindNotFound, "the session at hand",
		"no session was used yet").WithHint("name the session: turn session ls lists them")
	f, err := os.Open(x.atHandPath())
	if errors.Is(err, os.ErrNotExist) {
		return session.Session{}, none
	}
	if err != nil {
		none.Kind, none.Err = turnstone.KindUnavailable, err
		return session.Session{}, none
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil || !atHandForm.Match(b) {
		none.Err = errors.New("it is not known which session was used last")
		return session.Session{}, none
	}
	s, err := cs.DB.Find(ctx, string(b))
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		none.Err = fmt.Errorf("the session that was used last (%s) is gone", b)
		return session.Session{}, none
	}
	return s, err
}

// NoteUse makes the session that ref names, by its name or ID, the session at hand. A
// reference that does not name a session, such as a turn's ID, changes nothing. Nothing
// depends on it, so that what keeps it from being written is logged only.
func (x *Repo) NoteUse(ctx context.Context, ref string) {
	if short, _ := x.cutAtHand(ref); short || strings.HasPrefix(ref, "t_") {
		return
	}
	name, _, _ := strings.Cut(ref, "@")
	name, _, _ = strings.Cut(name, "~")
	_, s, err := x.findSession(ctx, name)
	if err == nil {
		err = x.writeAtHand(s.ID)
	}
	if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		slog.Info("the session at hand was not noted", "session", name, "error", err)
	}
}

// atHandPath is a file of each user's: root may work in another user's state directory,
// and is not to leave a file there that the other cannot replace.
func (x *Repo) atHandPath() string {
	return x.Dir.Path(fmt.Sprintf("last-session-%d", os.Getuid()))
}

// writeAtHand replaces the file as a whole: a reader beside it has the old ID or the new
// one. It is not made durable, because a file that a crash left empty counts as none.
func (x *Repo) writeAtHand(id turnstone.SessionID) error {
	path := x.atHandPath()
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
