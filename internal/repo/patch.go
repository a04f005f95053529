package repo

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"znkr.io/diff/textdiff"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// maxPatchTextFile is the maximum size of a content that is compared by lines.
const maxPatchTextFile = 16 << 20

// compareText counts the lines in which c's two sides differ, and with patch creates the patch.
func (cs *ContextStore) compareText(ctx context.Context, c *comparison, patch bool) error {
	if c.old == nil && c.new == nil {
		return nil
	}
	before, isText, err := cs.text(ctx, c.old)
	if err != nil {
		return err
	}
	after, alsoText, err := cs.text(ctx, c.new)
	if err != nil {
		return err
	}
	// A directory has no text; the paths below it show its removal.
	body := ""
	switch {
	case sameContent(c.old, c.new):
	case !isText || !alsoText:
		c.Binary = true
	default:
		body = noLines(textdiff.Unified(before, after))
		c.Plus, c.Minus = countLines(body)
	}
	switch {
	case !patch || !hasText(c.old) && !hasText(c.new):
	case c.Status == turnstone.ChangeRetyped && hasText(c.old) &&
		hasText(c.new): // git has no patch between types
		only := turnstone.FileChange{Path: c.Path}
		gone, came := comparison{only, c.old, nil}, comparison{only, nil, c.new}
		if err := cs.compareText(ctx, &gone, true); err != nil {
			return err
		}
		if err := cs.compareText(ctx, &came, true); err != nil {
			return err
		}
		c.Patch = gone.Patch + came.Patch
	default:
		c.Patch = patchHeader(c, body) + body
	}
	return nil
}

// hasText reports whether a patch can contain e.
func hasText(e *tree.Entry) bool {
	return e != nil && (e.Type == tree.File || e.Type == tree.Symlink)
}

func sameContent(a, b *tree.Entry) bool {
	return a != nil && b != nil && a.Type == b.Type && a.Content.Digest == b.Content.Digest &&
		a.Target == b.Target
}

// text returns the representation of e in a patch: its content, or its target. ok is false if it is
// not text, or is too long.
func (cs *ContextStore) text(ctx context.Context, e *tree.Entry) (text string, ok bool, err error) {
	switch {
	case e == nil:
		return "", true, nil
	case e.Type == tree.Symlink:
		return e.Target, true, nil
	case e.Type != tree.File:
		return "", true, nil
	case e.Size > maxPatchTextFile:
		return "", false, nil
	}
	b, err := cs.Read(ctx, e.Content, maxPatchTextFile)
	if err != nil {
		return "", false, err
	}
	return string(b), bytes.IndexByte(b, 0) < 0, nil
}

func countLines(body string) (plus, minus int) {
	for line := range strings.Lines(body) {
		switch line[0] {
		case '+':
			plus++
		case '-':
			minus++
		}
	}
	return plus, minus
}

// patchHeader returns git's header above a patch's hunks.
func patchHeader(c *comparison, body string) string {
	oldPath := c.Path
	if c.OldPath != "" {
		oldPath = c.OldPath
	}
	a, b := gitPath("a", oldPath), gitPath("b", c.Path)
	var h strings.Builder
	fmt.Fprintf(&h, "diff --git %s %s\n", a, b)
	isOld, isNew := hasText(c.old), hasText(c.new)
	switch {
	case !isOld:
		fmt.Fprintf(&h, "new file mode %s\n", gitMode(c.new))
		a = "/dev/null"
	case !isNew:
		fmt.Fprintf(&h, "deleted file mode %s\n", gitMode(c.old))
		b = "/dev/null"
	case gitMode(c.old) != gitMode(c.new):
		fmt.Fprintf(&h, "old mode %s\nnew mode %s\n", gitMode(c.old), gitMode(c.new))
	}
	if c.Status == turnstone.ChangeRenamed {
		fmt.Fprintf(&h, "similarity index 100%%\nrename from %s\nrename to %s\n",
			gitQuote(oldPath[1:]), gitQuote(c.Path[1:]))
	}
	switch {
	case c.Binary:
		fmt.Fprintf(&h, "Binary files %s and %s differ\n", a, b)
	case body != "":
		fmt.Fprintf(&h, "--- %s\n+++ %s\n", endBlank(a), endBlank(b))
	}
	return h.String()
}

// endBlank adds the tab that ends a name with blanks, as in diff(1) and git.
func endBlank(name string) string {
	if strings.Contains(name, " ") {
		return name + "\t"
	}
	return name
}

// noLines changes the range of an empty text to begin at line 0, as POSIX requires for the format
// of diff -u.
func noLines(body string) string {
	head, rest, ok := strings.Cut(body, "\n")
	if !ok {
		return body
	}
	head = strings.Replace(head, "@@ -1,0 ", "@@ -0,0 ", 1)
	head = strings.Replace(head, " +1,0 @@", " +0,0 @@", 1)
	return head + "\n" + rest
}

// gitMode returns a file's mode as in git: type and all permission bits.
func gitMode(e *tree.Entry) string {
	if e.Type == tree.Symlink {
		return "120000"
	}
	return fmt.Sprintf("10%04o", e.Mode)
}

func gitPath(side, p string) string { return gitQuote(side + p) }

// gitQuote quotes a path as git does (core.quotePath=false, except for bytes that are not text), so
// that it stays on one line and can be parsed.
func gitQuote(p string) string {
	plain := true
	var q strings.Builder
	for i := range len(p) {
		switch b := p[i]; {
		case b == '"' || b == '\\':
			plain = false
			q.WriteString(`\` + string(rune(b)))
		case b == '\n':
			plain = false
			q.WriteString(`\n`)
		case b == '\t':
			plain = false
			q.WriteString(`\t`)
		case b < 0x20 || b >= 0x7f:
			plain = false
			fmt.Fprintf(&q, `\%03o`, b)
		default:
			q.WriteByte(b)
		}
	}
	if plain {
		return p
	}
	return `"` + q.String() + `"`
}
