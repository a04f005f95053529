package syntax

import (
	"errors"
	"time"
	"unsafe"

	awk "github.com/benhoyt/goawk/parser"
	"github.com/itchyny/gojq"
	tree "github.com/tree-sitter/go-tree-sitter"
	bash "github.com/tree-sitter/tree-sitter-bash/bindings/go"
	javascript "github.com/tree-sitter/tree-sitter-javascript/bindings/go"
	json "github.com/tree-sitter/tree-sitter-json/bindings/go"
	python "github.com/tree-sitter/tree-sitter-python/bindings/go"
	ruby "github.com/tree-sitter/tree-sitter-ruby/bindings/go"
)

const (
	maxTreeCode  = 1 << 20  // bytes that tree-sitter parses at once
	maxSmallCode = 16 << 10 // bytes of a jq or awk program: their parsers are recursive
	treeChunk    = 16 << 10 // bytes that tree-sitter gets at once
)

// A codeFault is a fault at offsets of a piece of code.
type codeFault struct {
	start, end int
	message    string
}

// parseCode parses code with its language's grammar. parsed is false if there is no grammar, or if
// the code is too large or takes too long.
func parseCode(language string, src []byte, b *budget) (faults []codeFault, parsed bool) {
	left := min(b.grammars, time.Until(b.until))
	if left <= 0 {
		return nil, false
	}
	began := time.Now()
	defer func() { b.grammars -= time.Since(began) }()
	switch language {
	case "jq":
		return guarded(src, parseJQ)
	case "awk":
		return guarded(src, parseAwk)
	}
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

// guarded runs a parser that was not made for hostile text: its input is small, and a panic counts
// as "not parsed".
func guarded(src []byte, parse func([]byte) []codeFault) (faults []codeFault, parsed bool) {
	if len(src) > maxSmallCode {
		return nil, false
	}
	defer func() {
		if recover() != nil {
			faults, parsed = nil, false
		}
	}()
	return parse(src), true
}

func parseJQ(src []byte) []codeFault {
	_, err := gojq.Parse(string(src))
	var fault *gojq.ParseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &fault):
		end := min(max(fault.Offset, 0), len(src)) // after the token
		return []codeFault{{max(end-len(fault.Token), 0), end, err.Error()}}
	}
	return []codeFault{{0, len(src), err.Error()}}
}

func parseAwk(src []byte) []codeFault {
	_, err := awk.ParseProgram(src, nil)
	var fault *awk.ParseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &fault):
		at := offsetOf(src, fault.Position.Line, fault.Position.Column)
		return []codeFault{{at, at, fault.Message}}
	}
	return []codeFault{{0, len(src), err.Error()}}
}

// offsetOf returns the offset of a line and column, both from 1, columns in bytes.
func offsetOf(src []byte, line, column int) int {
	at := 0
	for ; line > 1 && at < len(src); at++ {
		if src[at] == '\n' {
			line--
		}
	}
	return min(at+max(column-1, 0), len(src))
}
