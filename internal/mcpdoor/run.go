package mcpdoor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/sandboxes"
)

type runIn struct {
	Document string `json:"document"`
	Session  string `json:"session"`
	Branch   string `json:"branch"`
}

// A turnOut is a turn in results.
type turnOut struct {
	Turn       turnstone.TurnID `json:"turn"`
	Session    string           `json:"session"`
	Number     int              `json:"number"`
	Branch     string           `json:"branch"`
	Result     turnstone.Result `json:"result"`
	Error      string           `json:"error,omitempty"`
	Hint       string           `json:"hint,omitempty"`
	Receipt    string           `json:"receipt"`
	ReceiptURI string           `json:"receipt_uri"`
}

// maxDocument bounds a document in bytes.
const maxDocument = 1 << 20

// parse returns the document of a call, which asks for no file of the host.
func parse(text string) (*document.Document, error) {
	if len(text) > maxDocument {
		return nil, turnstone.Errorf("mcp.run", turnstone.KindInvalid, "the document",
			"has %d bytes, and may have %d", len(text), maxDocument).
			WithHint("write large files with write_file, or let a step fetch them")
	}
	doc, err := document.Parse("document.md", []byte(text))
	if err != nil {
		return nil, err
	}
	if files := doc.Front.Files; len(files) > 0 {
		return nil, turnstone.Errorf("mcp.run", turnstone.KindInvalid, "files: "+files[0],
			"is a file of the host, which no document of this connection reads").
			WithHint("remove files: and write the files with write_file")
	}
	return doc, nil
}

// run runs a document on the head of a branch.
func run(ctx context.Context, c call, in runIn) (out turnOut, texts []mcp.Content, err error) {
	if err := need("document", in.Document); err != nil {
		return out, nil, err
	}
	doc, err := parse(in.Document)
	if err != nil {
		return out, nil, err
	}
	t := c.target(in.Session, in.Branch)
	p := c.newProgress(ctx, len(doc.Steps))
	defer p.end()
	var report *turnstone.TurnReport
	err = c.settled(ctx, t, func() error {
		req := executor.Request{Document: doc, Piped: true, Dir: noFolder, Session: t.session,
			Branch: t.branch}
		report, err = c.place.Turns.Run(ctx, req, observer(p))
		return err
	})
	if report == nil {
		return out, nil, err
	}
	out, texts = c.answer(report)
	return out, texts, nil
}

// noFolder is no folder: a document has none.
const noFolder = "/dev/null"

// observer returns p as an executor's observer: a nil interface if it is nil.
func observer(p *progress) executor.Observer {
	if p == nil {
		return nil
	}
	return p
}

// answer returns the results about a turn.
func (c call) answer(r *turnstone.TurnReport) (turnOut, []mcp.Content) {
	receipt := []byte(r.Receipt)
	if text, _, found := document.CutEvidence(receipt); found {
		receipt = text // a resource has the signatures
	}
	uri := receiptsURI + string(r.ID)
	out := turnOut{Turn: r.ID, Session: r.Session, Number: r.Number, Branch: r.Branch,
		Result: r.Result, Error: cut(r.Error, maxError), Hint: cut(r.Hint, maxError),
		Receipt: cut(string(receipt), maxInline), ReceiptURI: uri}
	if c.place.Hide != nil {
		out.Error, out.Hint = c.place.Hide(out.Error), c.place.Hide(out.Hint)
	}
	texts := []mcp.Content{&mcp.TextContent{Text: out.Receipt}}
	if out.Error != "" {
		texts = append(texts, &mcp.TextContent{Text: strings.TrimSpace(
			"error: " + out.Error + "\nhint: " + out.Hint)})
	}
	if len(receipt) > maxInline {
		texts = append(texts, &mcp.ResourceLink{URI: uri, Name: "receipt of " + string(r.ID),
			MIMEType: markdown})
	}
	return out, texts
}

type execIn struct {
	Command string  `json:"command"`
	Cwd     string  `json:"cwd"`
	Stdin   string  `json:"stdin"`
	Timeout float64 `json:"timeout"`
	Session string  `json:"session"`
	Branch  string  `json:"branch"`
}

type execOut struct {
	ExitCode  int64  `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	StdoutURI string `json:"stdout_uri,omitempty"`
	StderrURI string `json:"stderr_uri,omitempty"`
	TimedOut  bool   `json:"timed_out"`
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
	case strings.ContainsRune(in.Command+in.Cwd, 0):
		return bad("command", "has a zero byte")
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
	p := c.newProgress(ctx, 0)
	defer p.end()
	err = c.use(ctx, c.target(in.Session, in.Branch), p.say, func(id turnstone.SandboxID) error {
		p.say("the command runs")
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeUp)
		defer cancel()
		exit, err := c.place.Sandboxes.Exec(ctx, id, cmd)
		out.ExitCode = exit.ExitCode
		if err != nil && errors.Is(context.Cause(ctx), errTimeUp) {
			out.TimedOut, out.ExitCode = true, exitTimedOut
			return nil
		}
		return err
	})
	if err != nil {
		return out, nil, err
	}
	out.Stdout, out.StdoutURI = c.inline(stdout.result())
	out.Stderr, out.StderrURI = c.inline(stderr.result())
	return out, nil, nil
}

// exitTimedOut is the exit code of a command that had no more time, as turn exec has it.
const exitTimedOut = 124
