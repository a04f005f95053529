package syntax

import (
	"errors"
	"time"

	awk "github.com/benhoyt/goawk/parser"
	"github.com/itchyny/gojq"
)

const (
	maxTreeCode  = 1 << 20  // bytes that tree-sitter parses at once
	maxSmallCode = 16 << 10 // bytes of a jq or awk program: their parsers are recursive
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
	return parseTree(language, src, left)
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
