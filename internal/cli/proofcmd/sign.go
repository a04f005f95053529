package proofcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/terminal"
)

// SignCmd is turn sign.
type SignCmd struct {
	What   string `arg:"" help:"Receipt (a file, or -), or turn."`
	Output string `short:"o" help:"Write the receipt to this file." placeholder:"FILE"`
}

// Help is shown below the flags' summary.
func (c *SignCmd) Help() string {
	return `A node signs a turn alone if you have no key when the turn runs, or if the node is not
yours. turn sign adds your signature to such a receipt or stored turn later. The receipt
must verify. The chain of turns stays the same.

The signed receipt replaces the file, or is written to -o. A receipt from standard input
is printed.`
}

// Examples returns command lines for the help.
func (c *SignCmd) Examples() []string {
	return []string{
		"turn sign receipt.md",
		"turn sign research@2",
	}
}

// Run signs.
func (c *SignCmd) Run(a *cli.App) error {
	file, err := openWhat(a, c.What)
	if err != nil {
		return cli.Fail(err)
	}
	if file != nil {
		return withRing(a, func(ctx context.Context, r key.Ring) error {
			signed, err := chain.SignReceipt(ctx, r, c.What, file)
			if err == nil {
				err = c.write(a, signed)
			}
			return unproven(err)
		})
	}
	if c.Output != "" {
		return cli.Usage(errors.New("-o needs the file of a receipt"))
	}
	return a.WithRefs([]*string{&c.What}, func(ctx context.Context, x *executor.Executor) error {
		t, err := x.SignTurn(ctx, c.What)
		if err != nil {
			return unproven(err)
		}
		return a.Result(nil, nil, func(w io.Writer) {
			terminal.Println(w, fmt.Sprintf("signed turn %d (%s)", t.Number, t.ID))
		})
	})
}

// unproven gives an error about evidence the exit status that turn verify has for it.
func unproven(err error) error {
	if turnstone.KindOf(err) == turnstone.KindIntegrity {
		return cli.Exit(cli.ExitUnproven, err)
	}
	return err
}

// write writes the signed receipt.
func (c *SignCmd) write(a *cli.App, signed []byte) error {
	to, mode := c.Output, os.FileMode(0o644)
	if to == "" && c.What == "-" {
		_, err := a.Stdout.Write(signed)
		return err
	}
	if to == "" {
		to = c.What
	}
	if info, err := os.Stat(to); err == nil {
		mode = info.Mode().Perm()
	}
	if err := filestamp.WriteFile(to, signed, mode); err != nil {
		return turnstone.NewError("sign", turnstone.KindUnavailable, to, err)
	}
	return nil
}
