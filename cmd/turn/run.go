package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

type runCmd struct {
	File string `arg:"" help:"Document to run; - reads standard input."`

	Write  bool   `short:"w" help:"Write the receipt into FILE, not to standard output."`
	Output string `short:"o" help:"Write the receipt into this file, not to standard output." placeholder:"FILE" type:"path"`
	JSON   bool   `name:"json" help:"Print the turn as one JSON document on standard output, with the receipt in it."`
	Quiet  bool   `short:"q" help:"Show no progress."`

	Commands bool `help:"List the commands that ran in the receipt, below each step."`

	Session  *string  `help:"Session to add the turn to: it begins where the last one ended. A new name begins a session." placeholder:"NAME"`
	Branch   string   `help:"Branch of the session (default: main)." placeholder:"NAME"`
	Secret   []string `help:"Secret for the steps' environment, masked and never kept; NAME takes it from turn's own environment. May be given again." placeholder:"NAME[=VALUE]" sep:"none"`
	Lifetime string   `help:"How long the sandbox lives: turn, or session (paused after the turn, goes on in the next)." enum:",turn,session" default:"" placeholder:"turn|session"`
	Home     string   `help:"Persistent home directory, mounted at /root; one sandbox at a time." placeholder:"NAME"`
	Grant    []string `help:"Grant what the front matter asks for under KEY; repeatable." placeholder:"KEY" sep:","`
	Snapshot string   `help:"vm keeps the whole machine at the end, for turn resume." enum:",none,vm" default:"" placeholder:"vm"`
	sandboxFlags
}

// Help is shown below the flags' summary.
func (c *runCmd) Help() string {
	return `The receipt is the document with the result of each step below it. It goes to
standard output, or into a file with -w or -o. Progress and the steps' output go
to standard error.

PATH[:DEST] is split at its last colon; a PATH that has a colon ends with one
more. A DEST that is relative is below the working directory: the sandbox's for
--add, this one for --get. A symlink that --add names is followed. --get leaves
out symlinks that lead out of the folder that it copies, and says so.

A document may come from anybody. What goes beyond its own sandbox needs a flag:
a session, a home, closed addresses, a registry that is not public, a machine that
outlives the turn. --grant KEY accepts what the document asks for under that key:
files (of a document on standard input), home, image, lifetime, network, session,
snapshot.

Exit status: 0 all steps passed; 1 a step failed or timed out; 2 the document or
the command line is wrong, nothing was started; 3 the turn could not be run, or
was cut off.`
}

// Validate is called by kong.
func (c *runCmd) Validate() error {
	switch {
	case c.Write && c.Output != "":
		return errors.New("-w and -o cannot be used together")
	case c.Write && c.File == "-":
		return errors.New("-w needs a file: standard input cannot be written")
	case c.Session != nil && *c.Session == "":
		return errors.New("--session: the name is empty")
	}
	return c.sandboxFlags.Validate()
}

// Run runs the document.
func (c *runCmd) Run(a *app) error {
	doc, err := a.readDocument(c.File)
	if err != nil {
		return err
	}
	if c.Branch != "" && c.session() == "" && doc.Front.Session == "" {
		return usage(errors.New("--branch needs --session: it is a session's branch"))
	}
	out, err := c.output(doc)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	x, err := a.open(context.Background())
	if err != nil {
		return err
	}
	if len(doc.Steps) == 0 {
		a.warnNoSteps(doc.Name)
	}
	req, err := c.request(doc)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	p := newProgress(a.stderr, styleOf(a.stderr, c.Quiet), len(doc.Steps))
	p.hide(req.Secrets)
	a.logTo(p)
	ctx, stop := interruptible(func(s string) { p.Say("turn: %s", s) }, exitAborted)
	var turn *executor.Turn
	if err = c.expand(ctx, a, x, &req); err == nil {
		turn, err = x.Run(ctx, req, p)
	}
	p.Close()
	stop()
	if turn == nil {
		return &exitError{codeOf(err), err}
	}
	if err := c.deliver(a, turn, out); err != nil {
		return &exitError{exitAborted, undelivered(x, turn, err)}
	}
	if named := c.session() != "" || doc.Front.Session != ""; named {
		x.NoteUse(context.Background(), turn.Session)
		a.prepareNext(turn)
	}
	c.summary(a, turn)
	return verdict(turn, err)
}

// session is the one that was named by the flag, or "".
func (c *runCmd) session() string {
	if c.Session == nil {
		return ""
	}
	return *c.Session
}

// expand replaces what stands for the session at hand. A session that TURN_SESSION names
// need not exist yet.
func (c *runCmd) expand(ctx context.Context, a *app, x *executor.Executor, req *executor.Request) error {
	if named := a.env.session; req.Session == "-" && named != "" {
		req.Session = named
	}
	refs := []*string{&req.Session}
	if req.NetworkRules != nil && c.Network.rules.ReplayOf != "" {
		refs = append(refs, &req.NetworkRules.ReplayOf)
	}
	return a.expand(ctx, x, refs...)
}

// documentDir is what the files: of a document are relative to.
func documentDir(file string) string {
	if file == "-" {
		return "."
	}
	return filepath.Dir(file)
}

// request makes the flags into the executor's request.
func (c *runCmd) request(doc *document.Document) (executor.Request, error) {
	req := executor.Request{
		Document: doc, Dir: documentDir(c.File), Piped: c.File == "-", Grant: c.Grant, Image: c.Image, Env: c.env(), Add: transfers(c.Add), Get: transfers(c.Get),
		Memory: c.Memory, Disk: c.Disk, Network: c.network(), NetworkRules: c.rules(), Substrate: c.Substrate, Commands: c.Commands,
		Session: c.session(), Branch: c.Branch, Lifetime: document.Lifetime(c.Lifetime), Home: c.Home, Snapshot: document.Snapshot(c.Snapshot),
	}
	if c.Timeout != nil {
		req.Timeout = *c.Timeout
	}
	if c.CPUs != nil {
		req.CPUs = *c.CPUs
	}
	var err error
	if req.Secrets, err = readSecrets(c.Secret); err == nil {
		req.SecretHeaders, err = c.secretHeaders()
	}
	return req, err
}

// readSecrets completes secrets that are only named from turn's own environment.
func readSecrets(given []string) ([]string, error) {
	var all []string
	for _, s := range given {
		name, _, ok := strings.Cut(s, "=")
		if !ok {
			value, there := os.LookupEnv(name)
			if !there {
				return nil, turnstone.Errorf("run", turnstone.KindInvalid, "--secret "+name,
					"there is no such variable in the environment").
					WithHint("export it first: a value on the command line can be seen by others")
			}
			s = name + "=" + value
		}
		all = append(all, s)
	}
	return all, nil
}

// output returns where the receipt goes; nil is standard output.
func (c *runCmd) output(doc *document.Document) (*output, error) {
	if c.Output != "" {
		return newOutput(c.Output)
	}
	if !c.Write {
		return nil, nil
	}
	o, err := newOutput(c.File)
	if err == nil {
		o.old = doc.Source
	}
	return o, err
}

// deliver puts the receipt, or the JSON, where the user wants it.
func (c *runCmd) deliver(a *app, turn *executor.Turn, out *output) error {
	if out != nil {
		if err := out.write([]byte(turn.Receipt)); err != nil {
			return fmt.Errorf("%s: %w", out.named, err)
		}
	}
	if c.JSON {
		return a.writeJSON(turn)
	}
	if out == nil {
		receipt := []byte(turn.Receipt)
		if clean := markerFor(a.stdout, false); clean != nil {
			receipt = clean.text(receipt) // the document may be anybody's, as the output is
		}
		if _, err := a.stdout.Write(receipt); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
	return nil
}

// undelivered tells of a receipt that could not be written, and where it is kept.
func undelivered(x *executor.Executor, turn *executor.Turn, err error) error {
	e := turnstone.NewError("run", turnstone.KindExhausted, "the receipt was not written", err)
	if kept := x.ReceiptFile(turn.ID); kept != "" {
		e.Hint = "it is kept in " + kept
	}
	return e
}

// summary ends the progress with one line about the whole turn.
func (c *runCmd) summary(a *app, turn *executor.Turn) {
	if turn.Diverged { // also with -q: the next turn on the old branch does not follow this one
		defer putf(a.stderr, "turn: another turn came first: this one is the head of the new branch %s\n", turn.Branch)
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
	putf(a.stderr, "turn %s: %s in %s%s\n", which, turn.Result,
		elapsed(time.Duration(turn.Millis)*time.Millisecond), where)
	if a.verbose > 0 {
		for _, ph := range turn.Phases {
			putf(a.stderr, "  %-12s %s\n", ph.Name, time.Duration(ph.Took))
		}
	}
}

// verdict makes a turn's result into the exit status.
func verdict(turn *executor.Turn, err error) error {
	said := turnstone.NewError("run", turn.Kind, "", errors.New(turn.Error)).WithHint(turn.Hint)
	switch turn.Result {
	case turnstone.ResultPassed:
		return nil
	case turnstone.ResultFailed, turnstone.ResultTimedOut:
		if turn.Error != "" { // beside the failed step, as a file that it did not make
			if said.Kind == "" {
				said.Kind = turnstone.KindTimeout // files were added until the turn's time was up
			}
			return &exitError{exitFailed, said}
		}
		return &exitError{exitFailed, nil}
	}
	if err == nil {
		err = said
	}
	return &exitError{exitAborted, err}
}

// readDocument reads and parses one document. Its errors end turn with exitUsage.
func (a *app) readDocument(path string) (*document.Document, error) {
	name, in := path, a.stdin
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
	src, err := io.ReadAll(io.LimitReader(in, document.MaxFile+1)) // the parser refuses what is longer
	if err != nil {
		return nil, unreadable(name, err)
	}
	doc, err := document.Parse(name, src)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return doc, nil
}

// warnNoSteps tells of a document that would pass because nothing in it runs.
func (a *app) warnNoSteps(name string) {
	putf(a.stderr, "turn: %s has no steps: what runs is in fenced blocks called bash or sh\n", named(name))
}

func unreadable(name string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &exitError{exitUsage, turnstone.NewError("read", turnstone.KindInvalid, name, err)}
}
