package syntax

import (
	"bytes"
	"context"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

const (
	checkTime   = 5 * time.Second
	checkOutput = 64 << 10 // bytes of bash's messages that are kept
)

// Check reports whether a script cannot run at all because bash rejects its syntax. It returns nil
// if the script can run, or if this host cannot decide: then bash reports faults when the script
// runs. Check runs nothing of the script.
//
// A script that this package's parser accepts is accepted. Otherwise Check asks the host's bash
// with -n: path names it, "" searches PATH. A host without bash rejects nothing. (bash -n reads the
// whole script before running any of it, so it rejects patterns that a shopt in the script would
// have allowed; this package's parser supports them.) The error concerns the check, never the
// script.
//
// shell is "bash" or "sh". For sh, bash reads the script with --posix.
func Check(ctx context.Context, bash, shell string, src []byte) (*Fault, error) {
	// A script for sh is parsed as bash: sh may be bash, and only scripts that no shell can read
	// are rejected.
	b := &budget{until: time.Now().Add(maxParse)}
	_, fault := readShell(src, "bash", b, func(*stmt) bool { return true })
	if fault == nil || len(src) > maxScript {
		return nil, nil
	}
	if bash == "" {
		var err error
		if bash, err = exec.LookPath("bash"); err != nil {
			return nil, nil
		}
	}
	said, err := askBash(ctx, bash, shell, src)
	if err != nil || said == "" {
		return nil, err
	}
	// A script may enable extended patterns before it uses them.
	if again, err := askBash(ctx, bash, shell, src, "-O", "extglob"); err != nil || again == "" {
		return nil, err
	}
	return checkFault(src, said, fault), nil
}

// A limitedBuffer keeps the first bytes of a stream.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), checkOutput-min(b.Len(), checkOutput))])
	return len(p), nil
}

// A message of bash: "/dev/fd/3: line 3: syntax error near unexpected token `fi'".
var bashMessage = lazyregexp.New(`^[^:\n]*: (?:-c: )?line ([0-9]+): (.*)$`)

// checkFault converts bash's messages to a fault: the first message that is not a warning contains
// the fault and its line. If the other parser stopped on that line, its column is kept.
func checkFault(src []byte, said string, other *shellFault) *Fault {
	lines := newLineIndex(src)
	at := min(max(other.at, 0), len(src))
	otherLine, _ := lines.position(at)
	for text := range strings.Lines(said) {
		m := bashMessage.FindStringSubmatch(strings.TrimRight(text, "\n"))
		if m == nil || strings.HasPrefix(m[2], "warning: ") {
			continue
		}
		line, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		message := printable(m[2])
		if line == otherLine {
			return &Fault{Span: lines.span(at, at), Message: message}
		}
		if strings.Contains(message, "unexpected end of file") ||
			strings.Contains(message, "unexpected EOF") {
			// bash reports the end; the other parser reports the unclosed construct.
			return &Fault{Span: lines.span(at, at), Message: message + " (" +
				printable(other.message) + ")"}
		}
		start, end := lineBounds(src, lines, line)
		return &Fault{Span: lines.span(start, end), Message: message}
	}
	first, _, _ := strings.Cut(said, "\n")
	if first = printable(first); first == "" {
		first = printable(other.message)
	}
	return &Fault{Span: lines.span(at, at), Message: first}
}

// lineBounds returns the bounds of a line's text without surrounding blanks.
func lineBounds(src []byte, lines lineIndex, line int) (start, end int) {
	line = min(max(line, 1), len(lines.starts)+1)
	if line > 1 {
		start = int(lines.starts[line-2])
	}
	end = len(src)
	if line <= len(lines.starts) {
		end = int(lines.starts[line-1])
	}
	text := src[start:end]
	trimmed := bytes.TrimLeft(text, " \t\r\n")
	start += len(text) - len(trimmed)
	return start, start + len(bytes.TrimRight(trimmed, " \t\r\n"))
}

// printable makes a message with a script's words safe for display, and bounds its length.
func printable(s string) string {
	const most = 300
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return brief.Clip(s, most)
}
