package syntax

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/subprocess"
)

const (
	checkTime   = 5 * time.Second
	checkMemory = 2 << 30  // bytes of address space
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

// askBash returns bash's message about a script, or "" if bash accepts the script.
func askBash(ctx context.Context, bash, shell string, src []byte,
	options ...string) (string, error) {
	failed := func(err error) error {
		return turnstone.NewError("syntax.check", turnstone.KindUnavailable, bash, err).
			WithHint("put a working bash in PATH, or mark the step as unparsed to run it without " +
				"this check")
	}
	script, err := scriptFile(src)
	if err != nil {
		return "", failed(err)
	}
	defer script.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	args := []string{"--norc", "--noprofile"}
	if shell == "sh" {
		args = append(args, "--posix")
	}
	args = append(append(args, options...), "-n", "/dev/fd/3")
	var stderr limitedBuffer
	cmd := exec.Command(bash, args...)
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{script}
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	err = subprocess.Run(ctx, cmd, subprocess.Options{Started: func() { limit(cmd.Process.Pid) }})
	var exit *exec.ExitError
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return "", nil // too slow to decide
	case ctx.Err() != nil:
		return "", turnstone.NewError("syntax.check", turnstone.KindCanceled, "",
			context.Cause(ctx))
	case err == nil:
		return "", nil
	case !errors.As(err, &exit):
		return "", failed(err)
	case exit.ExitCode() != 2 && exit.ExitCode() != 1:
		return "", nil // bash died, or could not run: no verdict on the script
	}
	return stderr.String(), nil
}

// limit sets limits of a process.
func limit(pid int) {
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_CPU:   uint64(checkTime / time.Second),
		unix.RLIMIT_AS:    checkMemory,
		unix.RLIMIT_FSIZE: 0,
		unix.RLIMIT_CORE:  0,
	} {
		// An error means that the process has ended.
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: limit, Max: limit}, nil)
	}
}

// scriptFile puts a script into memory under a descriptor. bash reads it like a file: in blocks,
// and with its check of the first line.
func scriptFile(src []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "script")
	if _, err := f.Write(src); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
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
