package session

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// minPrefix is the minimum length of an ID's prefix that identifies it, including "t_" or "s_".
const minPrefix = 8

var turnID = lazyregexp.New(`^t_[0-9a-v]{18}$`)

func validTurnID(id turnstone.TurnID) bool { return turnID.MatchString(string(id)) }

// Resolve returns the turn that ref names:
//
//	SESSION              the head of its branch main
//	SESSION@N            its turn number N
//	SESSION@BRANCH       the head of a branch
//	SESSION@TAG          a tag's turn
//	t_…                  a turn's ID, or an ID's prefix ("t_" and at least 6 characters)
//
// SESSION is a name, an s_ ID or its prefix. "@" may also be followed by a turn's ID, or by
// "turn-N" for N. Each form may end in ~K: K times the first parent ("~" is "~1"). Text that is a
// valid number is a number, even if a branch or a tag has that name; a branch or a tag of an older
// program called "turn-N" is found under that name. The error is of kind NotFound, with the nearest
// name as a hint, or Invalid.
func (db *DB) Resolve(ctx context.Context, ref string) (turnstone.Turn, error) {
	base, up, err := splitUp(ref)
	if err != nil {
		return turnstone.Turn{}, err
	}
	var t turnstone.Turn
	name, sel, selected := strings.Cut(base, "@")
	switch {
	case !selected && strings.HasPrefix(base, "t_"):
		t, err = db.byID(ctx, base, "")
	default:
		var s turnstone.Session
		if s, err = db.Find(ctx, name); err != nil {
			return turnstone.Turn{}, err
		}
		if !selected {
			sel = Main
		}
		t, err = db.sel(ctx, s, sel)
	}
	if err != nil {
		return turnstone.Turn{}, err
	}
	return db.up(ctx, t, up, ref)
}

// ResolveIn is Resolve within a known session: ref may then be a number, a branch or a tag alone,
// such as "explore" or "2~1". Other references, and those with an "@", are passed to Resolve.
func (db *DB) ResolveIn(ctx context.Context, in turnstone.SessionID, ref string) (turnstone.Turn,
	error) {
	base, up, err := splitUp(ref)
	if err != nil {
		return turnstone.Turn{}, err
	}
	if strings.Contains(base, "@") || strings.HasPrefix(base, "t_") {
		return db.Resolve(ctx, ref)
	}
	s, err := db.Find(ctx, string(in))
	if err != nil {
		return turnstone.Turn{}, err
	}
	t, err := db.sel(ctx, s, base)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		if other, otherErr := db.Resolve(ctx, ref); otherErr == nil {
			return other, nil
		}
		return turnstone.Turn{}, err
	}
	if err != nil {
		return turnstone.Turn{}, err
	}
	return db.up(ctx, t, up, ref)
}

// splitUp splits the ~K off a reference.
func splitUp(ref string) (base string, up int, err error) {
	base = ref
	for {
		i := strings.LastIndexByte(base, '~')
		if i < 0 {
			break
		}
		k := 1
		if digits := base[i+1:]; digits != "" {
			if k, err = strconv.Atoi(digits); err != nil || k < 0 || k > 1<<30 {
				return "", 0, malformed(ref)
			}
		}
		base, up = base[:i], min(up+k, 1<<30)
	}
	if base == "" || len(ref) > 1024 {
		return "", 0, malformed(ref)
	}
	return base, up, nil
}

func malformed(ref string) error {
	return turnstone.Errorf("session.resolve", turnstone.KindInvalid, fmt.Sprintf("%.100q", ref),
		"names no turn").
		WithHint("write SESSION, SESSION@NUMBER, SESSION@BRANCH, SESSION@TAG or a turn's ID, and " +
			"~K for its parents")
}

// sel resolves the text after "@".
func (db *DB) sel(ctx context.Context, s turnstone.Session, sel string) (turnstone.Turn, error) {
	if number, err := strconv.Atoi(sel); err == nil && number >= 0 {
		return db.byNumber(ctx, s, number)
	}
	if strings.HasPrefix(sel, "t_") {
		return db.byID(ctx, sel, s.ID)
	}
	if sel == "" {
		return turnstone.Turn{}, malformed(s.Label() + "@")
	}
	bs, err := db.Branches(ctx, s.ID)
	if err != nil {
		return turnstone.Turn{}, err
	}
	ts, err := db.Tags(ctx, s.ID)
	if err != nil {
		return turnstone.Turn{}, err
	}
	var names []string
	for _, b := range bs {
		if b.Name == sel && b.Head == "" {
			return turnstone.Turn{}, turnstone.Errorf("session.resolve", turnstone.KindNotFound,
				s.Label()+"@"+sel,
				"the branch has no finished turn yet").
				WithHint("list the turns with turn log " + s.Label())
		}
		if b.Name == sel {
			return db.Turn(ctx, b.Head)
		}
		names = append(names, b.Name)
	}
	for _, t := range ts {
		if t.Name == sel {
			return db.Turn(ctx, t.Turn)
		}
		names = append(names, t.Name)
	}
	if number, ok := turnNumber(sel); ok {
		return db.byNumber(ctx, s, number)
	}
	return turnstone.Turn{}, turnstone.Errorf("session.resolve", turnstone.KindNotFound,
		fmt.Sprintf("%s@%.80s", s.Label(), sel),
		"there is no such branch or tag").
		WithHint(meant(sel, names, "list the tags with turn session show "+s.Label()))
}

// turnNumber returns the number of a turn that is written "turn-N".
func turnNumber(ref string) (int, bool) {
	if !turnstone.ReadsAsTurn(ref) {
		return 0, false
	}
	number, err := strconv.Atoi(strings.TrimPrefix(ref, turnstone.TurnWord))
	return number, err == nil
}

func (db *DB) byNumber(ctx context.Context, s turnstone.Session, number int) (turnstone.Turn,
	error) {
	all, err := turns(ctx, db.sql, "WHERE session = ? AND number = ?", s.ID, number)
	if err != nil {
		return turnstone.Turn{}, err
	}
	if len(all) == 0 {
		return turnstone.Turn{}, turnstone.Errorf("session.resolve", turnstone.KindNotFound,
			fmt.Sprintf("%s@%d", s.Label(), number),
			"there is no such turn").WithHint("list the turns with turn log " + s.Label())
	}
	return db.Turn(ctx, all[0].ID)
}

// byID finds a turn by its ID or a prefix of its ID.
func (db *DB) byID(ctx context.Context, ref string, in turnstone.SessionID) (turnstone.Turn,
	error) {
	unknown := turnstone.Errorf("session.resolve", turnstone.KindNotFound,
		fmt.Sprintf("%.80s", ref),
		"there is no such turn").WithHint("list a session's turns with turn log SESSION")
	if len(ref) < minPrefix {
		unknown.Hint = fmt.Sprintf("write at least %d characters of an ID", minPrefix)
		return turnstone.Turn{}, unknown
	}
	found, err := turns(ctx, db.sql, "WHERE id >= ? AND id < ? AND (session = ? OR ? = '') LIMIT 2",
		ref, ref+"~", in, in)
	switch {
	case err != nil:
		return turnstone.Turn{}, err
	case len(found) > 1:
		return turnstone.Turn{}, ambiguous("turn", ref)
	case len(found) == 0:
		return turnstone.Turn{}, unknown
	}
	t, err := db.Turn(ctx, found[0].ID)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return turnstone.Turn{}, unknown // the error does not complete a prefix
	}
	return t, err
}

// up goes k first parents up.
func (db *DB) up(ctx context.Context, t turnstone.Turn, k int, ref string) (turnstone.Turn, error) {
	for range k {
		if len(t.Parents) == 0 {
			return turnstone.Turn{}, turnstone.Errorf("session.resolve", turnstone.KindNotFound,
				ref,
				"goes beyond the first turn, number %d", t.Number)
		}
		var err error
		t, err = turn(ctx, db.sql, t.Parents[0])
		if t, err = db.openedOne(ctx, t, err); err != nil {
			return turnstone.Turn{}, err
		}
	}
	return t, nil
}
