package syntax

import (
	sh "mvdan.cc/sh/v3/syntax"
)

// words adds the commands of the substitutions in words.
func (w *walker) words(list []*sh.Word, parent int) {
	for _, word := range list {
		if word != nil {
			w.parts(word.Parts, parent)
		}
	}
}

func (w *walker) parts(list []sh.WordPart, parent int) {
	for _, part := range list {
		switch x := part.(type) {
		case *sh.DblQuoted:
			w.parts(x.Parts, parent)
		case *sh.CmdSubst:
			w.substitution(x.Stmts, x.Backquotes, parent)
		case *sh.ProcSubst:
			w.substitution(x.Stmts, false, parent)
		case *sh.ArithmExp:
			w.arithmetic(parent, x.X)
		case *sh.ParamExp:
			w.parameter(x, parent)
		case *sh.BraceExp:
			w.words(x.Elems, parent)
		}
	}
}

func (w *walker) substitution(list []*sh.Stmt, backquotes bool, parent int) {
	w.subst++
	if backquotes {
		w.backquotes++
	}
	w.stmts(list, parent)
	if backquotes {
		w.backquotes--
	}
	w.subst--
}

func (w *walker) parameter(x *sh.ParamExp, parent int) {
	w.arithmetic(parent, x.Index)
	if x.NestedParam != nil {
		w.parts([]sh.WordPart{x.NestedParam}, parent)
	}
	if x.Slice != nil {
		w.arithmetic(parent, x.Slice.Offset, x.Slice.Length)
	}
	if x.Repl != nil {
		w.words([]*sh.Word{x.Repl.Orig, x.Repl.With}, parent)
	}
	if x.Exp != nil {
		w.words([]*sh.Word{x.Exp.Word}, parent)
	}
}

// arithmetic adds the commands of the substitutions in expressions. A long sum is a deep tree, so
// it uses a work list.
func (w *walker) arithmetic(parent int, exprs ...sh.ArithmExpr) {
	todo := append([]sh.ArithmExpr{}, exprs...)
	for len(todo) > 0 {
		e := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch x := e.(type) {
		case *sh.BinaryArithm:
			todo = append(todo, x.Y, x.X)
		case *sh.UnaryArithm:
			todo = append(todo, x.X)
		case *sh.ParenArithm:
			todo = append(todo, x.X)
		case *sh.FlagsArithm:
			todo = append(todo, x.X)
		case *sh.Word:
			if x != nil {
				w.parts(x.Parts, parent)
			}
		}
	}
}

// arithmeticStart returns the start of an expression.
func arithmeticStart(e sh.ArithmExpr) int {
	for {
		switch x := e.(type) {
		case *sh.BinaryArithm:
			e = x.X
		case *sh.UnaryArithm:
			if !x.Post {
				return int(x.OpPos.Offset())
			}
			e = x.X
		default:
			return int(e.Pos().Offset())
		}
	}
}

// test adds the commands of the substitutions in a [[ … ]].
func (w *walker) test(expr sh.TestExpr, parent int) {
	todo := []sh.TestExpr{expr}
	for len(todo) > 0 {
		e := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch x := e.(type) {
		case *sh.BinaryTest:
			todo = append(todo, x.Y, x.X)
		case *sh.UnaryTest:
			todo = append(todo, x.X)
		case *sh.ParenTest:
			todo = append(todo, x.X)
		case *sh.Word:
			if x != nil {
				w.parts(x.Parts, parent)
			}
		}
	}
}
