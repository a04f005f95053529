//go:build cgo

package syntax

import (
	"fmt"

	tree "github.com/tree-sitter/go-tree-sitter"
)

// recoverFrom finds the commands in the rest of a script whose parser gave up. tree-sitter, which
// always returns a tree, finds the statements; the shell's parser then parses each statement again
// for its exact structure.
func (p *scriptParser) recoverFrom(at int, why *shellFault) {
	src := p.script.Source
	at = min(at, len(src))
	r := &recovery{p: p, base: at, work: 8*len(src) + 1<<20}
	why.at = min(max(why.at, 0), len(src))
	line, _ := p.lines.position(why.at)
	if len(src)-at > maxTreeCode {
		p.fault(why.at, why.at, why.message)
		p.partial(fmt.Sprintf("line %d is not understood: %s", line, why.message))
		return
	}
	ok := withTree(grammarOf("bash"), plain(src[at:]), maxGrammar, r.walk)
	if ok && !r.broken {
		return // only the first parser does not support this
	}
	p.fault(why.at, why.at, why.message)
	p.partial(fmt.Sprintf("line %d is not understood: %s", line, why.message))
}

// recovery is the state of a recoverFrom.
type recovery struct {
	p      *scriptParser
	base   int // start of the tree's text in the script
	work   int // remaining bytes to parse again
	broken bool
	open   []openNode // the commands that contain the node
}

// An openNode is a compound statement that could not be parsed as a whole.
type openNode struct {
	id     int
	depth  uint32
	stages int // stages of a pipeline, so far
}

// walk walks the tree in order. It does not enter nodes of statements that were parsed as a whole.
func (r *recovery) walk(t *tree.Tree) {
	cursor := t.RootNode().Walk()
	defer cursor.Close()
	for range maxVisits {
		depth := cursor.Depth()
		for len(r.open) > 0 && r.open[len(r.open)-1].depth >= depth {
			r.open = r.open[:len(r.open)-1]
		}
		if r.enter(cursor.Node(), depth) && cursor.GotoFirstChild() {
			continue
		}
		for !cursor.GotoNextSibling() {
			if !cursor.GotoParent() {
				return
			}
		}
	}
	r.broken = true
}

// statementKind maps the tree's statement kinds to this package's kinds.
func statementKind(kind string) Kind {
	switch kind {
	case "command", "declaration_command", "unset_command",
		"variable_assignment", "variable_assignments":
		return KindSimple
	case "pipeline":
		return KindPipeline
	case "list":
		return KindList
	case "for_statement", "c_style_for_statement":
		return KindFor
	case "while_statement":
		return KindWhile
	case "if_statement":
		return KindIf
	case "case_statement":
		return KindCase
	case "compound_statement":
		return KindGroup
	case "subshell":
		return KindSubshell
	case "function_definition":
		return KindFunction
	case "test_command":
		return KindTest
	}
	return ""
}

// enter adds the command of a node, and reports whether there may be more inside.
func (r *recovery) enter(n *tree.Node, depth uint32) bool {
	if n.IsError() || n.IsMissing() {
		r.broken = true
		return true
	}
	start, end := r.base+int(n.StartByte()), r.base+int(n.EndByte())
	kind := statementKind(n.Kind())
	if kind == "" && n.Kind() != "redirected_statement" && n.Kind() != "negated_command" {
		return n.IsNamed()
	}
	parent, stage := -1, 0
	if len(r.open) > 0 {
		top := &r.open[len(r.open)-1]
		parent = top.id
		if r.p.script.Commands[parent].Kind == KindPipeline {
			top.stages++
			stage = top.stages
		}
	}
	if r.reread(start, end, parent, stage) {
		return false
	}
	if kind == "" {
		return true
	}
	w := &walker{p: r.p, src: &source{data: r.p.script.Source}}
	id := w.open(kind, parent, stage)
	w.close(id, start, end)
	if kind == KindSimple {
		r.broken = true
	} else if id >= 0 {
		r.open = append(r.open, openNode{id: id, depth: depth})
	}
	return id >= 0
}

// reread parses a part of the script as a separate script.
func (r *recovery) reread(start, end, parent, stage int) bool {
	r.work -= end - start
	if r.work < 0 || r.p.budget.commands <= 0 {
		r.broken = true
		return false
	}
	part := r.p.script.Source[start:end]
	var list []*stmt
	_, fault := readShell(part, "bash", r.p.budget, func(s *stmt) bool {
		list = append(list, s)
		return true
	})
	if fault != nil || len(list) == 0 {
		return false
	}
	w := &walker{p: r.p, src: &source{data: part, base: start}}
	for _, s := range list {
		w.stmt(s, parent, stage)
	}
	return true
}
