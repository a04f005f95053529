package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/repo"
)

// maxReceipt bounds a stored receipt, in bytes.
const maxReceipt = 8 * document.MaxFile

// ParentOf returns a turn of the session by its ID.
type ParentOf = func(context.Context, turnstone.TurnID) (turnstone.Turn, error)

// Check opens the envelope of t, and compares its statement with t, with t's record, state and
// receipt, and with the statements of its parents. Signatures are those of the keys in the
// statement; whether these are trusted is another question. An error of kind KindNotFound means that
// t is not signed; every other difference is of kind Integrity and named.
func Check(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn, parent ParentOf) (
	*proof.Signed, error) {
	if t.Status == turnstone.TurnRunning && (t.Record != "" || t.Statement != "") {
		return nil, refused(t, "the session says that it runs, and it has a record")
	}
	if t.Envelope == "" && t.Statement == "" {
		return nil, turnstone.Errorf("verify", turnstone.KindNotFound, nameOf(t), "is not signed").
			WithHint("an older program kept it, or it was interrupted")
	}
	envelope, err := cs.Store.Get(ctx, t.Envelope)
	if err != nil {
		return nil, refused(t, "its statement cannot be read: %w", err)
	}
	s, err := proof.Open(ctx, envelope)
	if err != nil {
		return nil, refused(t, "%w", err)
	}
	if s.Link != t.Statement {
		return nil, refused(t, "the session names the statement %s, and the envelope has %s",
			t.Statement.Short(), s.Link.Short())
	}
	if err := compareTurn(ctx, cs, t, s, parent); err != nil {
		return nil, err
	}
	return s, nil
}

func nameOf(t turnstone.Turn) string { return fmt.Sprintf("turn %d (%s)", t.Number, t.ID) }

// refused returns an error about t. Its cause keeps no kind: a missing object is damage here.
func refused(t turnstone.Turn, format string, args ...any) error {
	return turnstone.Errorf("verify", turnstone.KindIntegrity, nameOf(t), format, args...)
}

// compareTurn compares the statement of t with what is stored of t.
func compareTurn(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn, s *proof.Signed,
	parent ParentOf) error {
	rec, err := cs.Record(ctx, t)
	if err != nil {
		return refused(t, "its record: %w", err)
	}
	if rec.State != t.State || rec.Kind != t.Kind || rec.Result != t.Result ||
		rec.Branch != t.Branch || !slices.Equal(rec.Parents, t.Parents) {
		return refused(t, "the session does not say of it what its record says")
	}
	var fs turnstone.Digest
	if t.State != "" {
		st, err := cs.State(ctx, t.State)
		if err != nil {
			return refused(t, "its state: %w", err)
		}
		fs = st.Tree.Hash
	}
	want, err := statementOf(ctx, t, rec, fs, parent)
	if err != nil {
		return refused(t, "its parents: %w", err)
	}
	p := &s.Predicate
	want.Predicate.Signers, want.Predicate.Time = p.Signers, p.Time
	want.Predicate.Program, want.First = p.Program, s.First
	b, err := want.Encode()
	if err != nil {
		return refused(t, "what is stored of it makes no statement: %w", err)
	}
	if !bytes.Equal(b, s.Payload) {
		return refused(t, "its statement does not say what is stored: %s",
			firstDifference(s.Payload, b))
	}
	return checkReceipt(ctx, cs, t, rec)
}

// checkReceipt checks that the stored receipt is the text that the evidence follows.
func checkReceipt(ctx context.Context, cs *repo.ContextStore, t turnstone.Turn,
	rec *turnstone.TurnRecord) error {
	text, err := cs.Read(ctx, rec.Receipt, maxReceipt)
	if err == nil && turnstone.DigestBytes(text) != rec.Receipt.Digest {
		err = fmt.Errorf("it is not %s", rec.Receipt.Digest.Short())
	}
	if err != nil {
		return refused(t, "its receipt: %w", err)
	}
	return nil
}

// firstDifference names the first value that differs in two JSON documents: what was signed, and
// what is stored.
func firstDifference(signed, stored []byte) string {
	var a, b any
	if json.Unmarshal(signed, &a) != nil || json.Unmarshal(stored, &b) != nil {
		return "it differs"
	}
	path, x, y := differ("", a, b)
	return fmt.Sprintf("%s was signed as %s, and is %s", strings.TrimPrefix(path, "."), short(x),
		short(y))
}

func differ(path string, a, b any) (where string, x, y any) {
	switch a := a.(type) {
	case map[string]any:
		m, ok := b.(map[string]any)
		if !ok {
			return path, a, b
		}
		names := []string{}
		for name := range a {
			names = append(names, name)
		}
		for name := range m {
			if _, both := a[name]; !both {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			if !reflect.DeepEqual(a[name], m[name]) {
				return differ(path+"."+name, a[name], m[name])
			}
		}
	case []any:
		l, ok := b.([]any)
		if !ok || len(a) != len(l) {
			return path, a, b
		}
		for i := range a {
			if !reflect.DeepEqual(a[i], l[i]) {
				return differ(fmt.Sprintf("%s[%d]", path, i), a[i], l[i])
			}
		}
	}
	return path, a, b
}

// short returns a value for a message.
func short(v any) string {
	b, err := json.Marshal(v)
	if err != nil || v == nil {
		return "nothing"
	}
	if len(b) > 120 {
		b = append(b[:117:117], "..."...)
	}
	return string(b)
}
