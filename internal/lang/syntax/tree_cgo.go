//go:build cgo

package syntax

import (
	"time"
	"unsafe"

	tree "github.com/tree-sitter/go-tree-sitter"
	bash "github.com/tree-sitter/tree-sitter-bash/bindings/go"
	javascript "github.com/tree-sitter/tree-sitter-javascript/bindings/go"
	json "github.com/tree-sitter/tree-sitter-json/bindings/go"
	python "github.com/tree-sitter/tree-sitter-python/bindings/go"
	ruby "github.com/tree-sitter/tree-sitter-ruby/bindings/go"
)

const treeChunk = 16 << 10 // bytes that tree-sitter gets at once

// parseTree parses code with its language's tree-sitter grammar, as parseCode does.
func parseTree(language string, src []byte, left time.Duration) (faults []codeFault, parsed bool) {
	grammar := grammarOf(language)
	if grammar == nil || len(src) > maxTreeCode {
		return nil, false
	}
	parsed = withTree(grammar, src, left, func(t *tree.Tree) { faults = treeFaults(t) })
	return faults, parsed
}

// grammarOf returns the function that returns a language's tree-sitter grammar. The grammars are
// tables in read-only memory: an unused grammar costs nothing.
func grammarOf(language string) func() unsafe.Pointer {
	switch language {
	case "bash":
		return bash.Language
	case "python":
		return python.Language
	case "javascript":
		return javascript.Language
	case "json":
		return json.Language
	case "ruby":
		return ruby.Language
	}
	return nil
}

// withTree parses src and passes the tree to use. It returns false if there is no tree, such as
// after a timeout.
func withTree(grammar func() unsafe.Pointer, src []byte, left time.Duration,
	use func(*tree.Tree)) bool {
	plainAllocator()
	parser := tree.NewParser()
	defer parser.Close()
	if err := parser.SetLanguage(tree.NewLanguage(grammar())); err != nil {
		return false
	}
	// The callback that is to replace it calls Go for every hundred operations of the parser.
	//lint:ignore SA1019 see above
	parser.SetTimeoutMicros(uint64(left.Microseconds()))
	t := parser.ParseWithOptions(func(at int, _ tree.Point) []byte {
		// The binding copies its input, and asks again whenever the parser goes back.
		return src[min(at, len(src)):min(at+treeChunk, len(src))]
	}, nil, nil)
	if t == nil {
		return false
	}
	defer t.Close()
	use(t)
	return true
}

// maxVisits bounds the nodes that are searched for faults.
const maxVisits = 100_000

// treeFaults returns the outermost errors of a tree and its missing nodes.
func treeFaults(t *tree.Tree) []codeFault {
	var faults []codeFault
	cursor := t.RootNode().Walk()
	defer cursor.Close()
	for range maxVisits {
		n := cursor.Node()
		descend := false
		switch {
		case n.IsMissing():
			faults = append(faults, codeFault{int(n.StartByte()),
				int(n.EndByte()), "missing " + n.Kind()})
		case n.IsError():
			faults = append(faults, codeFault{int(n.StartByte()), int(n.EndByte()), "syntax error"})
		default:
			descend = n.HasError()
		}
		if len(faults) == maxFaults {
			break
		}
		if descend && cursor.GotoFirstChild() {
			continue
		}
		for !cursor.GotoNextSibling() {
			if !cursor.GotoParent() {
				return faults
			}
		}
	}
	return faults
}
