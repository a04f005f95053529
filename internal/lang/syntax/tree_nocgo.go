//go:build !cgo

package syntax

import (
	"fmt"
	"time"
)

// parseTree parses nothing: tree-sitter is written in C.
func parseTree(string, []byte, time.Duration) ([]codeFault, bool) { return nil, false }

// recoverFrom ends the parse of a script whose parser gave up.
func (p *scriptParser) recoverFrom(_ int, why *shellFault) {
	at := min(max(why.at, 0), len(p.script.Source))
	line, _ := p.lines.position(at)
	p.fault(at, at, why.message)
	p.partial(fmt.Sprintf("line %d is not understood: %s", line, why.message))
}
