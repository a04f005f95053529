package diagnose

import (
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

var (
	nodeHead = lazyregexp.New(
		`^((?:file://)?(?:/[^:]*/)?\[(?:eval|stdin)\d*\]|(?:file://)?/[^:]+|node:[\w/.:-]+|evalmachine\.<anonymous>|<anonymous_script>):(\d+)$`)
	nodeStack = lazyregexp.New(`^\s+at (?:.*\()?((?:file://)?[^()\s][^()]*?):(\d+):(\d+)\)?(?: \{)?$`)
	nodeError = lazyregexp.New(`^(?:Uncaught )?(?:[A-Z]\w*(?:Error|Exception|Warning|Rejection)\b|Error\b)`)
)

// nodeLookahead bounds the lines between node's head and its stack.
const nodeLookahead = 40

// scanNode parses node's report of an uncaught error: its position with the source line and a
// caret, the error, and its stack, innermost first (V8's stack trace API). A stack without a
// position is a program's own output.
func scanNode(c *search, ls []string, i int) (*report, int) {
	r := &report{tool: "node", code: true}
	var head *frame
	if m := nodeHead.FindStringSubmatch(ls[i]); m != nil {
		f := frame{name: m[1], line: number(m[2]), mark: -1}
		f.from = nodeSource(m[1])
		f.quoteOf(at(ls, i+1), at(ls, i+2))
		head = &f
		i += 2
		if strings.Contains(at(ls, i), "^") {
			i++
		}
		for at(ls, i) == "" && i < len(ls) {
			i++
		}
	} else if !nodeError.MatchString(ls[i]) || !nodeStackNear(ls, i+1) {
		return nil, 0
	}
	r.message = at(ls, i)
	end := min(len(ls), i+nodeLookahead)
	for i++; i < end && !nodeStack.MatchString(ls[i]); i++ {
		if ls[i] == "" {
			end = i
		}
	}
	for ; i < len(ls) && strings.HasPrefix(strings.TrimLeft(ls[i], " "), "at "); i++ {
		m := nodeStack.FindStringSubmatch(ls[i])
		if m == nil || nodeSource(m[1]) == nowhere {
			continue
		}
		f := frame{from: nodeSource(m[1]), name: m[1], line: number(m[2]),
			column: number(m[3]), mark: -1}
		if head != nil && head.name == f.name && head.line == f.line {
			f.quote, f.mark, f.markEnd = head.quote, head.mark, head.markEnd
			if f.markEnd <= f.mark+1 {
				f.mark = -1 // a caret at the statement; the stack's column is more precise
			}
		}
		r.frames = append(r.frames, f)
	}
	slices.Reverse(r.frames)
	if head != nil && head.from != nowhere {
		r.earlier = []frame{*head}
		if strings.HasPrefix(r.message, "SyntaxError") &&
			!slices.ContainsFunc(r.frames, func(f frame) bool { return f.name == head.name }) {
			r.frames = append(r.frames, *head) // code that never ran is in no stack
		}
	}
	r.whole = c.runs("node", "npm", "npx", "yarn", "pnpm", "tsx", "ts-node")
	if r.message == "" || !r.whole && !nodeError.MatchString(r.message) {
		return nil, 0
	}
	return r, i
}

func nodeStackNear(ls []string, i int) bool {
	for end := min(len(ls), i+8); i < end; i++ {
		if nodeStack.MatchString(ls[i]) {
			return true
		}
	}
	return false
}

// nodeSource returns the source of the code that node names; nowhere if it is not the author's
// text.
func nodeSource(name string) source {
	switch {
	case strings.HasSuffix(name, "]") && strings.Contains(name, "[eval"):
		return argument
	case strings.HasSuffix(name, "]") && strings.Contains(name, "[stdin"):
		return input
	case strings.HasPrefix(name, "node:"), strings.HasPrefix(name, "<"),
		strings.HasPrefix(name, "evalmachine"), strings.Contains(name, "-wrapper"):
		return nowhere
	}
	return file
}
