package proofcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// A FrozenReport is the output of turn run --frozen.
type FrozenReport struct {
	Same     bool         `json:"same"` // no receipt differs, and all could run
	Receipts []FrozenFile `json:"receipts"`
}

// A FrozenFile is one receipt that ran again, or that could not.
type FrozenFile struct {
	File string `json:"file"`
	// Again compares the new run with the receipt; absent: nothing was started.
	Again *turnstone.FrozenReport `json:"again,omitempty"`
	Error *cli.ErrorBody          `json:"error,omitempty"` // why it could not run
}

// Frozen runs receipts again.
type Frozen struct {
	Files       []string
	Quiet, JSON bool
	// Request returns the request of a file.
	Request func(ctx context.Context, x cli.Executor, file string) (executor.Request, error)
}

// Run runs the receipts, one after the other, and reports each.
func (c *Frozen) Run(a *cli.App) error {
	x, err := a.Open(context.Background())
	if err != nil {
		return err
	}
	defer func() { _ = x.Close() }()
	all, code := FrozenReport{Same: true, Receipts: []FrozenFile{}}, cli.ExitOK
	for _, file := range c.Files {
		p := a.Progress(c.Quiet, 0)
		ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
		one := FrozenFile{File: file}
		one.Again, err = c.one(ctx, a, x, file, p)
		interrupted := ctx.Err() != nil
		p.Close()
		stop()
		status := one.status(err)
		if err != nil {
			body := cli.NewErrorBody(err)
			one.Error = &body
		}
		switch {
		case c.JSON:
		case err != nil:
			a.Complain(err)
		default:
			if err := one.print(a); err != nil {
				return err
			}
		}
		code = max(code, status)
		all.Same = all.Same && status == cli.ExitOK
		all.Receipts = append(all.Receipts, one)
		if interrupted {
			break
		}
	}
	if c.JSON {
		a.Command = "run frozen"
		if err := a.WriteJSON(all); err != nil {
			return err
		}
	}
	if code == cli.ExitOK {
		return nil
	}
	return cli.Exit(code, nil)
}

// one runs one receipt again.
func (c *Frozen) one(ctx context.Context, a *cli.App, x cli.Executor, file string,
	p *terminal.Progress) (*turnstone.FrozenReport, error) {
	src, err := readReceipt(a, file)
	if err != nil {
		return nil, err
	}
	req, err := c.Request(ctx, x, file)
	if err != nil {
		return nil, err
	}
	p.Hide(req.Secrets)
	name := file
	if file == "-" {
		name = "<stdin>"
	}
	return x.Frozen(ctx, name, src, req, p)
}

func readReceipt(a *cli.App, file string) ([]byte, error) {
	in := a.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, turnstone.NewError("read", turnstone.KindInvalid, file, pathCause(err))
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	src, err := io.ReadAll(io.LimitReader(in, document.MaxFile+document.MaxEvidence+1))
	if err != nil {
		return nil, turnstone.NewError("read", turnstone.KindInvalid, file, pathCause(err))
	}
	return src, nil
}

// pathCause returns the cause of an error about a path, which the caller names.
func pathCause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// status is the exit status of one receipt.
func (f *FrozenFile) status(err error) int {
	switch {
	case f.Again == nil:
		return cli.CodeOf(err)
	case err != nil:
		return cli.ExitAborted
	case f.Again.Same:
		return cli.ExitOK
	case f.Again.Turn.Result == turnstone.ResultError:
		return cli.ExitAborted
	}
	return cli.ExitFailed
}

// print prints one receipt for people. The names and the diffs are untrusted.
func (f *FrozenFile) print(a *cli.App) error {
	name := terminal.Name(f.File)
	var b strings.Builder
	for _, d := range f.Again.Differences {
		what := d.What
		if d.Step != "" {
			what = fmt.Sprintf("step %s (line %d): %s", d.Step, d.Line, d.What)
		}
		terminal.Printf(&b, "--- %s: %s\n+++ run again\n", name, what)
		b.WriteString(d.Diff)
	}
	if f.Again.Home != "" {
		terminal.Printf(&b, "home %s belongs to no state, and was not mounted\n", f.Again.Home)
	}
	if f.Again.Template != "" {
		terminal.Printf(&b, "the template was rebuilt: %s\n", f.Again.Template)
	}
	if f.Again.Same {
		terminal.Printf(&b, "%s: the same again: results, outputs, fs %s\n", name,
			f.Again.Turn.FSHash.Short())
	} else {
		terminal.Printf(&b, "%s: differs\n", name)
	}
	_, err := io.WriteString(a.Stdout, terminal.Patch(a.Stdout, b.String()))
	return err
}
