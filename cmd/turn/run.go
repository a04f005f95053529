package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/cli/proofcmd"
	"turnstone.dev/turnstone/internal/terminal"
)

type runCmd struct {
	File string   `arg:"" help:"Document to run; - reads standard input."`
	More []string `arg:"" optional:"" name:"receipt" help:"More receipts, with --frozen."`

	Frozen bool `help:"Run receipts again; fail if they differ."`

	Write  bool   `short:"w" help:"Write the receipt into the document."`
	Output string `short:"o" help:"Write the receipt into FILE." placeholder:"FILE" type:"path"`
	JSON   bool   `name:"json" help:"Print the turn and its receipt as JSON."`
	Quiet  bool   `short:"q" help:"Print no progress."`

	Commands bool `help:"List the commands of each step in the receipt."`

	NoEvidence bool `help:"Print the receipt without its signatures."`

	Session    *string  `help:"Add the turn to this session; create it if needed." placeholder:"NAME"`
	Branch     string   `help:"Use this branch of the session (default: main)." placeholder:"NAME"`
	Secret     []string `help:"Set a secret variable (repeatable)." placeholder:"NAME[=VALUE]" sep:"none"`
	Lifetime   string   `help:"Set the lifetime of the sandbox (default: turn)." enum:",turn,session" default:"" placeholder:"turn|session"`
	Home       string   `help:"Mount this persistent home directory at /root." placeholder:"NAME"`
	Grant      []string `help:"Grant the document's request for KEY (repeatable)." placeholder:"KEY" sep:","`
	Snapshot   string   `help:"Save the machine for turn resume." enum:",none,vm" default:"" placeholder:"vm"`
	Checkpoint string   `help:"Keep the finished steps for turn resume." enum:",none,step" default:"" placeholder:"step|none"`
	Times      int      `help:"Run it N times; fail if two runs differ." placeholder:"N"`
	flags.ForManifest
	flags.ForDeterminism
	flags.ForSandbox
}

// Help returns the text below the command's summary.
func (c *runCmd) Help() string {
	return `The receipt is the document with the result of each step below the step. The
receipt goes to standard output, or into a file with -w or -o. Progress and the
output of the steps go to standard error.

PATH[:DEST] is split at its last colon; add a colon at the end of a PATH that
contains a colon. A relative DEST is below the working directory: that of the
sandbox for --add, that of turn for --get. --add follows a symlink that it names.
--get skips symlinks that lead out of the copied folder, and reports them.

The document is untrusted. Everything beyond its own sandbox requires a flag: a
session, a home, local addresses, a private registry, a machine that outlives the
turn. --grant KEY accepts the document's request for that key: files (of a
document on standard input), home, image, lifetime, network, session, snapshot.

--network record stores the traffic of the turn, and --network replay=TURN serves
the traffic of that turn. RULE is a host, an address or a range, such as
api.example.com:443. With --allow everything else is denied.

--secret NAME takes the value from turn's environment. Secrets are masked and not
stored. --secret-header HOST=NAME=VARIABLE sets a header from a variable of turn's
environment; the sandbox never has the value.

SIZE is a number with a unit, such as 512MiB or 2GiB. Substrates are auto, firecracker,
qemu and gvisor; turn doctor reports which of them work here.

With --lifetime session the sandbox is paused after the turn, and the next turn
resumes it. A home is used by one sandbox at a time.

With --checkpoint step the turn stores its state before each step but the first. If it
is interrupted, turn resume TURN continues after the last finished step.

turnstone.toml beside the document, or above it, has the project's defaults. They
are as untrusted as the document, and flags and the document win: docs/manifest.md.

--frozen runs the documents of receipts again, and compares each with its receipt:
results, exit codes, outputs and the FS hash. It writes no file and adds no turn to a
session. A receipt of a turn that started from another turn needs its session here,
and --session or --grant session.

Exit status: 0 all steps passed; 1 a step failed or timed out, or with --frozen a
receipt differs; 2 the document or the command line is invalid, nothing was started;
3 the turn could not run, or was interrupted.`
}

// Examples returns command lines for the help.
func (c *runCmd) Examples() []string {
	return []string{
		"turn run weather.md",
		"turn run -w --session research 02-analyse.md",
		"turn run --network off --add data.csv -o receipt.md task.md",
		"turn run --image python:3.12 --allow api.example.com:443 task.md",
		"turn run --frozen docs/*.md",
	}
}

// Validate is called by kong.
func (c *runCmd) Validate() error {
	switch {
	case c.Frozen:
		return c.validateFrozen()
	case len(c.More) > 0:
		return errors.New("one document at a time; only receipts with --frozen may be several")
	case c.Write && c.Output != "":
		return errors.New("-w and -o cannot be used together")
	case c.NoEvidence && (c.Write || c.Output != ""):
		return errors.New("--no-evidence is for receipts on standard output, not for -w and -o")
	case c.Write && c.File == "-":
		return errors.New("-w requires a file: standard input cannot be written")
	case c.Times != 0 && (c.Times < 2 || c.Times > 100):
		return fmt.Errorf("--times: %d is not between 2 and 100", c.Times)
	case c.Session != nil && *c.Session == "":
		return errors.New("--session: the name is empty")
	}
	return c.ForSandbox.Validate()
}

// validateFrozen rejects flags that would change a session or a file.
func (c *runCmd) validateFrozen() error {
	for flag, set := range map[string]bool{"-w": c.Write, "-o": c.Output != "",
		"--branch": c.Branch != "", "--lifetime": c.Lifetime != "", "--home": c.Home != "",
		"--snapshot": c.Snapshot != "", "--checkpoint": c.Checkpoint != "", "--get": len(c.Get) > 0, "--commands": c.Commands,
		"--times": c.Times != 0, "--no-evidence": c.NoEvidence} {
		if set {
			return fmt.Errorf("%s cannot be used with --frozen, which keeps nothing", flag)
		}
	}
	return c.ForSandbox.Validate()
}

// frozen runs receipts again.
func (c *runCmd) frozen(a *cli.App) error {
	f := proofcmd.Frozen{Files: append([]string{c.File}, c.More...), Quiet: c.Quiet, JSON: c.JSON}
	f.Request = func(ctx context.Context, x cli.Executor, file string) (
		executor.Request, error) {
		req, err := c.request(nil, file)
		if err == nil {
			var project *flags.Project
			project, err = c.Project(documentDir(file), a.Stderr)
			req.Defaults = project.Values()
		}
		if err == nil {
			err = c.expand(ctx, a, x, &req)
		}
		return req, err
	}
	return f.Run(a)
}

// Run runs the document.
func (c *runCmd) Run(a *cli.App) error {
	if c.Frozen {
		return c.frozen(a)
	}
	doc, err := readDocument(a, c.File)
	if err != nil {
		return err
	}
	project, err := c.Project(documentDir(c.File), a.Stderr)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	doc = doc.With(project.Values(), c.session())
	if c.Branch != "" && c.session() == "" && doc.Front.Session == "" {
		return cli.Usage(turnstone.Errorf("usage", turnstone.KindInvalid, "",
			"--branch requires --session").WithHint("name the session with --session"))
	}
	out, err := c.output(doc)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	x, err := a.Open(context.Background())
	if err != nil {
		return err
	}
	if len(doc.Steps) == 0 {
		warnNoSteps(a, doc.Name)
	}
	if names := ignoredNames(doc); names != "" && !c.Quiet {
		terminal.Printf(a.Stderr, "turn: %s: ignored, because they are for other tools: %s\n", terminal.Name(doc.Name), names)
	}
	req, err := c.request(doc, c.File)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	p := a.Progress(c.Quiet, len(doc.Steps))
	p.Hide(req.Secrets)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
	var turn *turnstone.TurnReport
	if err = c.expand(ctx, a, x, &req); err == nil {
		if c.Times == 0 {
			turn, err = x.Run(ctx, req, p)
		} else {
			turn, err = x.Times(ctx, req, c.Times, p)
		}
	}
	p.Close()
	stop()
	if turn == nil {
		return cli.Fail(project.ToBuild(cmp.Or(c.Image, doc.Front.Image), err))
	}
	if err := c.deliver(a, turn, out); err != nil {
		return cli.Exit(cli.ExitAborted, undelivered(x, turn, err))
	}
	if named := c.session() != "" || doc.Front.Session != ""; named {
		x.NoteUse(context.Background(), turn.Session)
		if _, here := x.(*executor.Executor); here { // a host prepares by itself
			prepareNext(a, turn)
		}
	}
	c.summary(a, turn)
	if t := turn.Times; t != nil {
		if err := c.sameAgain(a, turn, err); err != nil {
			return err
		}
	}
	return verdict(turn, err)
}

// sameAgain reports the comparison of a turn's runs.
func (c *runCmd) sameAgain(a *cli.App, turn *turnstone.TurnReport, err error) error {
	switch t := turn.Times; {
	case err != nil:
		return cli.Exit(cli.ExitAborted, err)
	case t.Difference != nil:
		return cli.Exit(cli.ExitFailed, turnstone.Errorf("run", turnstone.KindIntegrity,
			fmt.Sprintf("run %d of %d", t.Difference.Run, t.Asked),
			"differs from run 1: %s", t.Difference).WithHint(c.moreDeterministic(turn)))
	case !c.Quiet:
		terminal.Printf(a.Stderr, "%d runs: the same results, outputs and files\n", len(t.Runs))
	}
	return nil
}

// moreDeterministic returns a hint for a turn whose runs differ.
func (c *runCmd) moreDeterministic(turn *turnstone.TurnReport) string {
	switch d := turn.Determinism; {
	case d == nil:
		return "run the document with --deterministic"
	case d.Tier == turnstone.TierSeeded && turn.Network != nil && turn.Network.Replayed != "":
		// a recording, which the tier strict does not serve
		return "find the command with turn bisect " + string(turn.ID) +
			"; without a recording (--network off), --tier strict is the same on every run"
	case d.Tier == turnstone.TierSeeded && c.Substrate == "gvisor":
		return "run the document with --tier strict --substrate qemu"
	case d.Tier == turnstone.TierSeeded:
		return "run the document with --tier strict"
	}
	return "report this as a bug, unless the timeout of the turn ended a run"
}

// session returns the session of the flag, or "".
func (c *runCmd) session() string {
	if c.Session == nil {
		return ""
	}
	return *c.Session
}

// expand expands references to the current session. A session in TURN_SESSION need not exist yet.
func (c *runCmd) expand(
	ctx context.Context, a *cli.App, x cli.Executor, req *executor.Request,
) error {
	if named := a.Env.Session; req.Session == "-" && named != "" {
		req.Session = named
	}
	refs := []*string{&req.Session}
	if req.NetworkRules != nil && c.Network.Rules.ReplayOf != "" {
		refs = append(refs, &req.NetworkRules.ReplayOf)
	}
	return a.Expand(ctx, x, refs...)
}

// documentDir returns the folder to which a document's files: are relative.
func documentDir(file string) string {
	if file == "-" {
		return "."
	}
	return filepath.Dir(file)
}

// request converts the flags to the executor's request.
func (c *runCmd) request(doc *document.Document, file string) (executor.Request, error) {
	req := executor.Request{
		Document: doc, Dir: documentDir(file), Piped: file == "-", Grant: c.Grant,
		Image: c.Image, Env: c.Environ(), Add: flags.Transfers(c.Add), Get: flags.Transfers(c.Get),
		Memory: c.Memory, Disk: c.Disk, Network: c.On(), NetworkRules: c.Rules(),
		Substrate: c.Substrate, Commands: c.Commands,
		Session: c.session(), Branch: c.Branch, Lifetime: turnstone.Lifetime(c.Lifetime),
		Home: c.Home, Snapshot: document.Snapshot(c.Snapshot),
		Checkpoint:    turnstone.Checkpoint(c.Checkpoint),
		Deterministic: c.Deterministic, Tier: turnstone.Tier(c.Tier), Seed: c.SeedValue(),
		Clock: c.ClockValue(),
	}
	if c.Timeout != nil {
		req.Timeout = *c.Timeout
	}
	if c.CPUs != nil {
		req.CPUs = *c.CPUs
	}
	var err error
	if req.Secrets, err = flags.ReadSecrets(c.Secret); err == nil {
		req.SecretHeaders, err = c.SecretHeaders()
	}
	return req, err
}

// output returns the receipt's destination; nil is standard output.
func (c *runCmd) output(doc *document.Document) (*cli.Output, error) {
	if c.Output != "" {
		return cli.NewOutput(c.Output)
	}
	if !c.Write {
		return nil, nil
	}
	o, err := cli.NewOutput(c.File)
	if err == nil {
		o.Old = doc.Source
	}
	return o, err
}

// deliver writes the receipt, or the JSON, to its destination.
func (c *runCmd) deliver(a *cli.App, turn *turnstone.TurnReport, out *cli.Output) error {
	if out != nil {
		if err := out.Write([]byte(turn.Receipt)); err != nil {
			return fmt.Errorf("%s: %w", out.Named, err)
		}
	}
	if c.NoEvidence {
		text, _, _ := document.CutEvidence([]byte(turn.Receipt))
		turn.Receipt = string(text)
	}
	if c.JSON {
		return a.WriteJSON(turn)
	}
	if out == nil {
		// the document may be untrusted, like the output
		if _, err := io.WriteString(a.Stdout, terminal.Text(a.Stdout, turn.Receipt)); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
	return nil
}

// undelivered reports a receipt that could not be written, and where it is kept.
func undelivered(x cli.Executor, turn *turnstone.TurnReport, err error) error {
	e := turnstone.NewError("run", turnstone.KindExhausted, "the receipt was not written", err)
	e.Hint = "read it with turn show --receipt " + string(turn.ID)
	if here, ok := x.(interface{ ReceiptFile(turnstone.TurnID) string }); ok {
		if kept := here.ReceiptFile(turn.ID); kept != "" {
			e.Hint = "read it in " + kept
		}
	}
	return e
}

// summary ends the progress with one line about the whole turn.
func (c *runCmd) summary(a *cli.App, turn *turnstone.TurnReport) {
	if turn.Diverged { // also with -q: the next turn on the old branch does not follow this one
		defer terminal.Printf(a.Stderr,
			"turn: another turn ended first: this turn is the head of the new branch %s\n",
			turn.Branch)
	}
	if c.Quiet {
		return
	}
	which := string(turn.ID)
	if turn.Number > 0 && turn.Session != "" && !strings.HasPrefix(turn.Session, "s_") {
		which += fmt.Sprintf(" %s@%d (%s)", turn.Session, turn.Number, turn.Branch)
	}
	where := ""
	if turn.Isolation != "" {
		where = ", " + turn.Isolation
	}
	terminal.Printf(a.Stderr, "turn %s: %s in %s%s\n", which, turn.Result,
		terminal.Elapsed(time.Duration(turn.Millis)*time.Millisecond), where)
	if a.Verbose > 0 {
		for _, ph := range turn.Phases {
			terminal.Printf(a.Stderr, "  %-12s %s\n", ph.Name, time.Duration(ph.Took))
		}
	}
}

// verdict returns the exit status of a turn's result.
func verdict(turn *turnstone.TurnReport, err error) error {
	said := turnstone.NewError("run", turn.Kind, "", errors.New(turn.Error)).WithHint(turn.Hint)
	switch turn.Result {
	case turnstone.ResultPassed:
		return nil
	case turnstone.ResultFailed, turnstone.ResultTimedOut:
		// in addition to the failed step, such as a file that it did not create
		if turn.Error != "" {
			if said.Kind == "" {
				said.Kind = turnstone.KindTimeout // files were added until the turn's time limit
			}
			return cli.Exit(cli.ExitFailed, said)
		}
		return cli.Exit(cli.ExitFailed, nil)
	}
	if err == nil {
		err = said
	}
	return cli.Exit(cli.ExitAborted, err)
}

// readDocument reads and parses one document. Its errors end turn with ExitUsage.
func readDocument(a *cli.App, path string) (*document.Document, error) {
	name, in := path, a.Stdin
	if path == "-" {
		name = "<stdin>"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, unreadable(path, err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	// the parser rejects longer input
	src, err := io.ReadAll(io.LimitReader(in, document.MaxFile+1))
	if err != nil {
		return nil, unreadable(name, err)
	}
	doc, err := document.Parse(name, src)
	if err != nil {
		return nil, cli.Exit(cli.ExitUsage, err)
	}
	return doc, nil
}

// warnNoSteps reports a document that would pass because nothing in it runs.
func warnNoSteps(a *cli.App, name string) {
	terminal.Printf(a.Stderr,
		"turn: %s has no steps: a step is a fenced block with the language bash or sh\n",
		terminal.Name(name))
}

// ignoredNames lists what a document has for other tools, each once.
func ignoredNames(doc *document.Document) string {
	var names []string
	for _, x := range doc.Ignored {
		if !slices.Contains(names, x.Name) {
			names = append(names, x.Name)
		}
	}
	return strings.Join(names, ", ")
}

func unreadable(name string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return cli.Exit(cli.ExitUsage, turnstone.NewError("read", turnstone.KindInvalid, name, err))
}
