package mcpdoor

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lang/diagnose"
	"turnstone.dev/turnstone/internal/template/builtin"
	"turnstone.dev/turnstone/sandboxes"
)

type execIn struct {
	Command string  `json:"command"`
	Cwd     string  `json:"cwd"`
	Stdin   string  `json:"stdin"`
	Timeout float64 `json:"timeout"`
	Image   string  `json:"image"`
	Session string  `json:"session"`
	Branch  string  `json:"branch"`
}

type execOut struct {
	ExitCode     int64  `json:"exit_code"`
	Stdout       string `json:"stdout"`
	Stderr       string `json:"stderr"`
	StdoutBase64 []byte `json:"stdout_base64,omitempty"` // if it is no text
	StderrBase64 []byte `json:"stderr_base64,omitempty"`
	StdoutURI    string `json:"stdout_uri,omitempty"`
	StderrURI    string `json:"stderr_uri,omitempty"`
	TimedOut     bool   `json:"timed_out"`
	Note         string `json:"note,omitempty"`
	Session      string `json:"session,omitempty"` // that the call has begun
}

// Bounds of commands.
const (
	defaultTimeout = 2 * time.Minute
	maxTimeout     = time.Hour
	maxCommand     = 128<<10 - 1 // what a process may have as one argument
)

var errTimeUp = errors.New("the time is up")

// command returns the command of a call, and its time.
func (in execIn) command() (sandboxes.Command, time.Duration, error) {
	bad := func(what, format string, args ...any) (sandboxes.Command, time.Duration, error) {
		return sandboxes.Command{}, 0, turnstone.Errorf("mcp.exec", turnstone.KindInvalid, what,
			format, args...)
	}
	timeout := defaultTimeout
	switch {
	case in.Command == "":
		return bad("command", "is missing")
	case len(in.Command) > maxCommand:
		return bad("command", "has more than %d bytes", maxCommand)
	case strings.ContainsRune(in.Command, 0):
		return bad("command", "has a zero byte")
	case strings.ContainsRune(in.Cwd, 0):
		return bad("cwd", "has a zero byte")
	case in.Timeout != 0 && !(in.Timeout > 0 && in.Timeout <= maxTimeout.Seconds()):
		return bad("timeout", "is not from 0 to %d seconds", int(maxTimeout.Seconds()))
	case in.Timeout != 0:
		timeout = time.Duration(in.Timeout * float64(time.Second))
	}
	cmd := sandboxes.Command{Argv: []string{"bash", "-c", in.Command}}
	if in.Cwd != "" {
		cmd.Cwd = inSandbox(in.Cwd)
	}
	if in.Stdin != "" {
		cmd.Stdin = strings.NewReader(in.Stdin)
	}
	return cmd, timeout, nil
}

// exec runs a command in the sandbox of a branch.
func exec(ctx context.Context, c call, in execIn) (out execOut, _ []mcp.Content, err error) {
	cmd, timeout, err := in.command()
	if err != nil {
		return out, nil, err
	}
	stdout, stderr := &output{}, &output{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	t := c.work(in.Session, in.Branch)
	p := c.newProgress(ctx, 0)
	defer p.end()
	missing := ""
	err = c.use(ctx, t, in.Image, p.say, func(id turnstone.SandboxID) error {
		p.say("the command runs")
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeUp)
		defer cancel()
		exit, err := c.place.Sandboxes.Exec(ctx, id, cmd)
		out.ExitCode = exit.ExitCode
		if err != nil && errors.Is(context.Cause(ctx), errTimeUp) {
			out.TimedOut, out.ExitCode = true, exitTimedOut
			return nil
		}
		missing = c.missing(id, exit.ExitCode, stderr, stdout)
		return err
	})
	if err != nil {
		return out, nil, err
	}
	o, e := c.show("stdout", stdout), c.show("stderr", stderr)
	out.Stdout, out.StdoutBase64, out.StdoutURI = o.text, o.bytes, o.uri
	out.Stderr, out.StderrBase64, out.StderrURI = e.text, e.bytes, e.uri
	out.Session, out.Note = *c.begun, notes(missing, o.note, e.note)
	return out, nil, nil
}

// notes joins notes, of which some may be empty.
func notes(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// exitMissing is the exit code of a shell that does not find a program.
const exitMissing = 127

// maxTail bounds the end of an output in bytes in which a message is looked for.
const maxTail = 4 << 10

// missing returns a note with an image that has the program which a command did not find; empty: there
// is none. Another exit code than the shell's is that of the last program, such as of a pipeline.
func (c call) missing(id turnstone.SandboxID, exit int64, all ...*output) string {
	for _, o := range all {
		data, _ := o.result()
		for line := range bytes.Lines(data[max(0, len(data)-maxTail):]) {
			text := string(bytes.TrimSpace(line))
			program := diagnose.MissingProgram(text)
			if program == "" || exit != exitMissing && !strings.HasPrefix(text, "bash: ") {
				continue
			}
			if builtin.OtherWithProgram("", program) == "" {
				continue
			}
			i, err := c.place.Sandboxes.Get(id)
			if err != nil {
				return ""
			}
			if image := builtin.OtherWithProgram(i.Image, program); image != "" {
				return "image " + image + " has " + program + ": begin a session with it"
			}
		}
	}
	return ""
}

// exitTimedOut is the exit code of a command that had no more time, as turn exec has it.
const exitTimedOut = 124
