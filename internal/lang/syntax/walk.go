package syntax

import (
	"bytes"

	sh "mvdan.cc/sh/v3/syntax"
)

// A walker converts the statements of a source to commands. In code inside a command it creates no
// commands and only searches for code in other languages.
type walker struct {
	p          *scriptParser
	src        *source
	into       *[]Embedded // receives code inside code; nil in the script itself
	subst      int         // number of enclosing substitutions
	backquotes int         // number of enclosing backquotes
	tested     int         // number of enclosing commands that examine the exit status
}

// open begins a command. Its children are opened before it is closed.
func (w *walker) open(kind Kind, parent, stage int) int {
	if w.into != nil {
		return -1
	}
	w.p.budget.commands--
	if w.p.budget.commands < 0 {
		return -1
	}
	id := len(w.p.script.Commands)
	w.p.script.Commands = append(w.p.script.Commands, Command{
		ID: id, Parent: parent, Kind: kind, Stage: stage, Language: "bash",
		Substituted: w.subst > 0, Tested: w.tested > 0,
	})
	return id
}

// close sets a command's span.
func (w *walker) close(id, start, end int) {
	if id >= 0 {
		w.p.script.Commands[id].Span = w.span(start, end)
	}
}

func (w *walker) span(start, end int) Span {
	start, end = w.clamp(start, end)
	return w.p.lines.span(w.src.place(start), w.src.placeEnd(start, end))
}

func (w *walker) stmts(list []*sh.Stmt, parent int) {
	for _, s := range list {
		w.stmt(s, parent, 0)
	}
}

// condition adds statements whose exit status the enclosing command examines.
func (w *walker) condition(list []*sh.Stmt, parent int) {
	w.tested++
	w.stmts(list, parent)
	w.tested--
}

// stmt adds a statement and returns its bounds: without a preceding "!" or "time", with its
// redirections, without the bodies of here-documents.
func (w *walker) stmt(s *sh.Stmt, parent, stage int) (start, end int) {
	start, end = int(s.Position.Offset()), int(s.Position.Offset())
	if s.Cmd != nil || len(s.Redirs) > 0 {
		start, end = -1, -1
	}
	for _, r := range s.Redirs {
		if at := int(r.Pos().Offset()); start < 0 || at < start {
			start = at
		}
		end = max(end, int(r.Word.End().Offset()))
	}
	if w.p.budget.commands < 0 {
		return max(start, 0), end
	}
	if s.Negated {
		w.tested++
		defer func() { w.tested-- }()
	}
	switch x := s.Cmd.(type) {
	case *sh.TimeClause:
		if x.Stmt == nil {
			return int(x.Pos().Offset()), int(x.End().Offset())
		}
		return w.stmt(x.Stmt, parent, stage)
	case nil, *sh.CallExpr, *sh.DeclClause, *sh.LetClause:
		return w.simple(s, parent, stage, start, end)
	case *sh.BinaryCmd:
		return w.binary(s, x, parent, stage)
	}
	id := w.open(kindOf(s.Cmd), parent, stage)
	from, to := w.compound(s.Cmd, id)
	if start < 0 || from < start {
		start = from
	}
	end = max(end, to)
	w.redirects(s.Redirs, id)
	w.close(id, start, end)
	return start, end
}

func kindOf(c sh.Command) Kind {
	switch x := c.(type) {
	case *sh.IfClause:
		return KindIf
	case *sh.WhileClause:
		return KindWhile
	case *sh.ForClause:
		return KindFor
	case *sh.CaseClause:
		return KindCase
	case *sh.Block:
		return KindGroup
	case *sh.Subshell:
		return KindSubshell
	case *sh.FuncDecl:
		return KindFunction
	case *sh.ArithmCmd:
		return KindArithmetic
	case *sh.TestClause:
		return KindTest
	case *sh.CoprocClause:
		return KindCoprocess
	case *sh.BinaryCmd:
		if isPipe(x.Op) {
			return KindPipeline
		}
		return KindList
	}
	return KindSimple
}

func isPipe(op sh.BinCmdOperator) bool { return op == sh.Pipe || op == sh.PipeAll }

// binary adds a pipeline or list with all of its parts, for any nesting.
func (w *walker) binary(s *sh.Stmt, root *sh.BinaryCmd, parent, stage int) (start, end int) {
	id := w.open(kindOf(root), parent, stage)
	pipe, n := isPipe(root.Op), 0
	todo := []*sh.Stmt{root.Y, root.X}
	for len(todo) > 0 {
		part := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if b, ok := part.Cmd.(*sh.BinaryCmd); ok && isPipe(b.Op) == pipe &&
			!part.Negated && len(part.Redirs) == 0 {
			todo = append(todo, b.Y, b.X)
			continue
		}
		n++
		place := 0
		if pipe {
			place = n
		}
		looked := !pipe && len(todo) > 0 // by the following && or ||
		if looked {
			w.tested++
		}
		from, to := w.stmt(part, id, place)
		if looked {
			w.tested--
		}
		if n == 1 {
			start = from
		}
		end = max(end, to)
	}
	w.redirects(s.Redirs, id)
	for _, r := range s.Redirs {
		end = max(end, int(r.Word.End().Offset()))
	}
	w.close(id, start, end)
	return start, end
}

// compound walks the contents of a compound command and returns its bounds.
func (w *walker) compound(c sh.Command, id int) (start, end int) {
	start = int(c.Pos().Offset())
	switch x := c.(type) {
	case *sh.IfClause:
		for part := x; part != nil; part = part.Else {
			w.condition(part.Cond, id)
			w.stmts(part.Then, id)
		}
	case *sh.WhileClause:
		w.condition(x.Cond, id)
		w.stmts(x.Do, id)
	case *sh.ForClause:
		switch loop := x.Loop.(type) {
		case *sh.WordIter:
			w.words(loop.Items, id)
		case *sh.CStyleLoop:
			w.arithmetic(id, loop.Init, loop.Cond, loop.Post)
		}
		w.stmts(x.Do, id)
	case *sh.CaseClause:
		w.words([]*sh.Word{x.Word}, id)
		for _, item := range x.Items {
			w.words(item.Patterns, id)
			w.stmts(item.Stmts, id)
		}
	case *sh.Block:
		w.stmts(x.Stmts, id)
	case *sh.Subshell:
		w.stmts(x.Stmts, id)
	case *sh.FuncDecl:
		_, end = w.stmt(x.Body, id, 0)
		return start, end
	case *sh.CoprocClause:
		_, end = w.stmt(x.Stmt, id, 0)
		return start, end
	case *sh.ArithmCmd:
		w.arithmetic(id, x.X)
	case *sh.TestClause:
		w.test(x.X, id)
	}
	return start, int(c.End().Offset())
}

// simple adds a simple command.
func (w *walker) simple(s *sh.Stmt, parent, stage, start, end int) (from, to int) {
	id := w.open(KindSimple, parent, stage)
	var args []*sh.Word
	var words []string
	put := func(a, b int, parts []sh.WordPart) {
		if start < 0 || a < start {
			start = a
		}
		// Inside nested backquotes, the parser takes the backslash of the inner end for a part of
		// the word.
		for w.backquotes > 1 && b > a+1 && b <= len(w.src.data) && w.src.data[b-1] == '\\' {
			b--
		}
		end = max(end, b)
		if w.into == nil {
			a, b = w.clamp(a, b)
			words = append(words, w.rawWord(a, b, parts))
		}
	}
	assign := func(list []*sh.Assign) {
		for _, a := range list {
			put(int(a.Pos().Offset()), int(a.End().Offset()), partsOf(a.Value))
			w.assign(a, id)
		}
	}
	switch x := s.Cmd.(type) {
	case *sh.CallExpr:
		assign(x.Assigns)
		for _, word := range x.Args {
			put(int(word.Pos().Offset()), int(word.End().Offset()), word.Parts)
		}
		args = x.Args
		w.words(args, id)
	case *sh.DeclClause:
		put(int(x.Variant.Pos().Offset()), int(x.Variant.End().Offset()), nil)
		assign(x.Args)
	case *sh.LetClause:
		at := int(x.Let.Offset())
		put(at, at+len("let"), nil)
		for _, e := range x.Exprs {
			put(arithmeticStart(e), int(e.End().Offset()), nil)
		}
		w.arithmetic(id, x.Exprs...)
	}
	w.redirects(s.Redirs, id)
	w.close(id, start, end)
	if id < 0 && w.into == nil {
		return start, end // too many: not kept
	}
	c := &Command{Language: "bash"}
	if id >= 0 {
		c = &w.p.script.Commands[id]
		c.Words = words
		c.Program = w.program(s.Cmd)
	}
	w.embed(c, args, s.Redirs)
	return start, end
}

// program returns the first word of a simple command if it is literal.
func (w *walker) program(c sh.Command) string {
	switch x := c.(type) {
	case *sh.CallExpr:
		if len(x.Args) > 0 {
			if lit, ok := w.literal(x.Args[0]); ok {
				return lit
			}
		}
	case *sh.DeclClause:
		return x.Variant.Value
	case *sh.LetClause:
		return "let"
	}
	return ""
}

// literal returns the value of a word without expansions.
func (w *walker) literal(word *sh.Word) (string, bool) {
	if len(word.Parts) == 1 {
		if _, ok := word.Parts[0].(*sh.Lit); ok {
			start, end := w.bounds(word)
			if raw := w.src.data[start:end]; !bytes.ContainsAny(raw, `\*?[{~`) {
				return string(raw), true
			}
		}
	}
	c := w.wordCode(word)
	return string(c.data), c.exact
}

func partsOf(word *sh.Word) []sh.WordPart {
	if word == nil {
		return nil
	}
	return word.Parts
}

func (w *walker) assign(a *sh.Assign, id int) {
	w.arithmetic(id, a.Index)
	if a.Value != nil {
		w.words([]*sh.Word{a.Value}, id)
	}
	if a.Array != nil {
		for _, e := range a.Array.Elems {
			w.arithmetic(id, e.Index)
			if e.Value != nil {
				w.words([]*sh.Word{e.Value}, id)
			}
		}
	}
}

// redirects walks redirections and records the here-documents of command id.
func (w *walker) redirects(list []*sh.Redirect, id int) {
	for _, r := range list {
		w.words([]*sh.Word{r.Word}, id)
		if r.Hdoc != nil {
			w.words([]*sh.Word{r.Hdoc}, id)
		}
		if id < 0 {
			continue
		}
		if h, c := w.heredoc(r); c != nil {
			h.Span = w.span(c.start, c.end)
			h.Verbatim = c.verbatim
			w.p.script.Commands[id].Heredocs = append(w.p.script.Commands[id].Heredocs, h)
		}
	}
}

// heredoc returns the here-document or here-string of a redirection, if any.
func (w *walker) heredoc(r *sh.Redirect) (Heredoc, *code) {
	h := Heredoc{String: r.Op == sh.WordHdoc}
	if r.N != nil {
		h.FD = descriptor(r.N.Value)
	}
	switch r.Op {
	case sh.Hdoc, sh.DashHdoc:
		return h, w.heredocCode(r)
	case sh.WordHdoc:
		return h, w.wordCode(r.Word)
	}
	return h, nil
}

// descriptor returns the number of a file descriptor, or -1 for a {variable}.
func descriptor(s string) int {
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' || n > 1<<20 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}
