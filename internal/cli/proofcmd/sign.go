package proofcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote/hosts"
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
is printed. The name of a file has a / or ends with .md.

Exit status: 0 signed; 2 there is no such receipt or turn, you have no key, or there is
nothing to sign, because no node or already a caller signed it; 3 it cannot be read or
written; 5 it does not verify.`
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
			trust, err := hosts.Trusted(r.Dir, nil)
			if err != nil {
				return err
			}
			signed, t, err := proof.SignReceipt(ctx, r, trust, c.What, file)
			if err != nil {
				return unproven(err)
			}
			return c.write(a, signed, t)
		})
	}
	if c.Output != "" {
		return cli.Usage(errors.New("-o needs the file of a receipt, such as ./" + c.What))
	}
	return a.WithRefs([]*string{&c.What}, func(ctx context.Context, x cli.Executor) error {
		t, err := x.SignTurn(ctx, c.What)
		if err != nil {
			return unproven(err)
		}
		return a.Result(nil, nil, func(w io.Writer) { printSigned(w, c.What, t) })
	})
}

// printSigned says what the caller has signed now, and when the node signed it.
func printSigned(w io.Writer, what string, t *turnstone.VerifiedTurn) {
	node, caller := t.Vouchers[0], t.Vouchers[len(t.Vouchers)-1]
	terminal.Println(w, fmt.Sprintf("%s: signed on %s by %s: turn %d (%s), %s, statement %s, "+
		"which %s signed on %s", terminal.Name(what), time.Now().UTC().Format(time.RFC3339),
		voucher(caller), t.Number, t.ID, t.Result, t.Statement.Short(), voucher(node),
		t.Time.UTC().Format(time.RFC3339)))
}

// unproven gives an error about evidence the exit status that turn verify has for it.
func unproven(err error) error {
	if turnstone.KindOf(err) == turnstone.KindIntegrity {
		return cli.Exit(cli.ExitUnproven, err)
	}
	return err
}

// write writes the signed receipt, and says what was signed.
func (c *SignCmd) write(a *cli.App, signed []byte, t *turnstone.VerifiedTurn) error {
	to, mode := cmp.Or(c.Output, c.What), os.FileMode(0o644)
	if to == "-" {
		_, err := a.Stdout.Write(signed)
		printSigned(a.Stderr, c.What, t)
		return err
	}
	if info, err := os.Stat(to); err == nil {
		mode = info.Mode().Perm()
	}
	if err := filestamp.WriteFile(to, signed, mode); err != nil {
		return turnstone.NewError("sign", turnstone.KindUnavailable, to, err)
	}
	printSigned(a.Stdout, to, t)
	return nil
}
