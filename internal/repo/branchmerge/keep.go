package branchmerge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// keep commits the merge as a turn, and moves the branch.
func (m *merging) keep(ctx context.Context, batch *store.Batch) (err error) {
	t, err := m.cs.DB.Start(ctx, session.StartTurn{Session: m.session.ID, Branch: m.req.Into,
		Parent: &m.ours.ID, Second: &m.theirs.ID,
		Kind: turnstone.TurnKindMerge, Title: m.title()})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = m.cs.DB.Abandon(context.WithoutCancel(ctx), t.ID)
		}
	}()
	unlock, err := m.lockHead(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m.report.Branch, m.report.Diverged, err = m.cs.DB.Landing(ctx, t.ID, m.req.Into, &m.ours.ID)
	if err != nil {
		return err
	}
	state, err := putJSON(ctx, batch, m.result)
	if err != nil {
		return err
	}
	rec, record, err := m.putRecord(ctx, batch, t, state)
	if err != nil {
		return err
	}
	link, err := m.keys.Sign(ctx, m.cs, batch, t, rec, record, m.result.Tree.Hash)
	if err != nil {
		return err
	}
	m.report.Receipt = string(link.Attach([]byte(m.report.Receipt)))
	if err := batch.Flush(ctx); err != nil {
		return err
	}
	m.report.ID, m.report.Number = t.ID, t.Number
	end := session.Finish{Turn: t.ID, Result: turnstone.ResultPassed, Record: record, State: state,
		Statement: link.Statement, Envelope: link.Envelope,
		MoveBranch: true, ExpectedHead: &m.ours.ID, Needs: m.cs.Needs(batch)}
	m.report.Branch, m.report.Diverged, err = m.cs.DB.Finish(ctx, end)
	return err
}

// putRecord puts the record of the merge, with its document and receipt.
func (m *merging) putRecord(ctx context.Context, batch *store.Batch, t turnstone.Turn,
	state turnstone.Digest) (*turnstone.TurnRecord, turnstone.Digest, error) {
	before, err := m.cs.Record(ctx, *m.ours)
	if err != nil {
		return nil, "", err
	}
	doc, err := document.Parse("merge.md", []byte(m.document()))
	if err != nil {
		return nil, "", fmt.Errorf("a merge's own receipt: %w", err)
	}
	info := m.info(t, before.Template)
	m.report.Receipt = string(doc.Receipt(info, nil))
	rec := &turnstone.TurnRecord{Format: repo.RecordFormat, ID: t.ID, Session: t.Session,
		Number: t.Number,
		Branch: m.report.Branch, Parents: t.Parents, Kind: turnstone.TurnKindMerge,
		Image:    m.result.Image,
		Template: before.Template, Shape: before.Shape, Started: m.started,
		Millis: info.Duration.Milliseconds(), Result: turnstone.ResultPassed, State: state,
		Layer: m.report.Layer}
	put := func(text []byte) (turnstone.Content, error) {
		return batch.PutContent(ctx, bytes.NewReader(text), int64(len(text)))
	}
	if rec.Document, err = put(doc.Clean()); err != nil {
		return nil, "", err
	}
	if rec.Receipt, err = put([]byte(m.report.Receipt)); err != nil {
		return nil, "", err
	}
	record, err := putJSON(ctx, batch, rec)
	return rec, record, err
}

func putJSON(ctx context.Context, p tree.Putter, v any) (turnstone.Digest, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return p.Put(ctx, b)
}

// layerOf counts the differences of two trees, except directories that differ in their timestamps
// only.
func layerOf(ctx context.Context, g tree.Getter, a, b turnstone.TreeRef) (turnstone.LayerInfo,
	error) {
	var l turnstone.LayerInfo
	if a == b {
		return l, nil
	}
	for c, err := range tree.Diff(ctx, g, a, b) {
		switch {
		case err != nil:
			return l, err
		case c.Old == nil && c.New != nil:
			l.Added++
		case c.New == nil && c.Old != nil:
			l.Removed++
		case c.Old == nil || c.Old.Type != tree.Dir || !onlyTouched(c.Old, c.New):
			l.Changed++
		}
	}
	var err error
	l.Digest, err = layer.Digest(ctx, g, a, b)
	return l, err
}

// onlyTouched reports whether two directories differ in their timestamps at most.
func onlyTouched(a, b *tree.Entry) bool {
	if a.Type != b.Type || a.Mode != b.Mode || a.UID != b.UID || a.GID != b.GID ||
		len(a.Xattrs) != len(b.Xattrs) {
		return false
	}
	for i, x := range a.Xattrs {
		if x.Name != b.Xattrs[i].Name || !bytes.Equal(x.Value, b.Xattrs[i].Value) {
			return false
		}
	}
	return true
}

// title returns the title of the turn in lists.
func (m *merging) title() string {
	return cmp.Or(brief.Line(m.req.Message),
		fmt.Sprintf("Merge %s into %s", m.req.From, m.req.Into))
}

// maxRows bounds a table in a receipt; --json has all.
const maxRows = 500

// document returns the merge as a markdown document without steps. File names are untrusted: each
// is on one line and escaped.
func (m *merging) document() string {
	r := m.report
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", plainText(m.title()))
	fmt.Fprintf(&b, "Turn %d (%s) was merged into turn %d (%s, branch %s). ", r.Theirs.Number,
		codeSpan(string(r.Theirs.ID)), r.Ours.Number, codeSpan(string(r.Ours.ID)), codeSpan(r.Into))
	if r.Base != nil {
		fmt.Fprintf(&b, "Their nearest common ancestor is turn %d (%s).\n", r.Base.Number,
			codeSpan(string(r.Base.ID)))
	} else {
		b.WriteString("They have no common ancestor.\n")
	}
	fmt.Fprintf(&b, "Against turn %d: %s.\n", r.Ours.Number,
		cmp.Or(r.Layer.String(), "no file changed"))
	if r.CwdGone != "" {
		fmt.Fprintf(&b, "\nThe working directory %s is not in the merged tree: it is %s.\n",
			codeSpan(r.CwdGone), codeSpan(r.Cwd))
	}
	if r.RenamesSkipped {
		b.WriteString("\nThe search for renamed and changed files was skipped, because too many " +
			"files changed.\n")
	}
	conflict := func(c turnstone.Conflict) []string {
		return []string{conflictPath(c), string(c.Kind), shortDigest(c.Base), shortDigest(c.Ours),
			shortDigest(c.Theirs), string(c.Resolution)}
	}
	path := func(p string) []string { return []string{codeSpan(p)} }
	rename := func(n turnstone.MergeRename) []string {
		by := strconv.Itoa(n.Similarity) + "%"
		return []string{codeSpan(n.From), codeSpan(n.To), n.Side, by}
	}
	mergeTable(&b, "Conflicts that were decided", "path | kind | base | ours | theirs | taken",
		r.Resolved, conflict)
	mergeTable(&b, "Files whose lines were merged", "path", r.Merged, path)
	mergeTable(&b, "Renames that were followed", "from | to | by | similarity", r.Renames, rename)
	return b.String()
}

// mergeTable writes a section with a table; nothing without rows.
func mergeTable[T any](b *strings.Builder, heading, columns string, rows []T,
	cells func(T) []string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n| %s |\n|%s\n", heading, columns,
		strings.Repeat("---|", strings.Count(columns, "|")+1))
	for _, r := range rows[:min(len(rows), maxRows)] {
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells(r), " | "))
	}
	if more := len(rows) - maxRows; more > 0 {
		fmt.Fprintf(b, "\nand %d more\n", more)
	}
}

func conflictPath(c turnstone.Conflict) string {
	s := codeSpan(c.Path)
	for _, v := range []struct {
		who string
		*turnstone.ConflictVersion
	}{{"base", c.Base}, {"ours", c.Ours}, {"theirs", c.Theirs}} {
		if v.ConflictVersion != nil && v.Path != "" {
			s += fmt.Sprintf(" (%s: %s)", v.who, codeSpan(v.Path))
		}
	}
	if c.Detail != "" {
		s += " " + codeSpan(c.Detail)
	}
	return s
}

func shortDigest(v *turnstone.ConflictVersion) string {
	if v == nil {
		return "nothing"
	}
	return codeSpan(v.Digest.Short())
}

// codeSpan returns s as code in a table's cell.
func codeSpan(s string) string {
	s = brief.Clip(s, 1024)
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unprintable) {
		s = strconv.Quote(s)
	}
	s = strings.ReplaceAll(s, "|", `\|`)
	if !strings.Contains(s, "`") {
		return "`" + s + "`"
	}
	fence := "``"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return fence + " " + s + " " + fence
}

// plainText returns s as text without markdown and without unprintable characters.
func plainText(s string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if !unicode.IsPrint(r) {
			continue
		}
		if r < utf8.RuneSelf && unicode.In(r, unicode.Punct, unicode.Symbol) && r != '-' &&
			r != '.' && r != ',' && r != '@' {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
