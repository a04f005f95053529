package proofcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/terminal"
)

// VerifyCmd is turn verify.
type VerifyCmd struct {
	What string `arg:"" help:"Receipt (a file, or -), turn or session."`

	All    bool     `help:"Verify all turns, the log of heads and the store."`
	Trust  []string `help:"Trust only these keys (repeatable)." placeholder:"FILE|KEY" sep:"none"`
	Format string   `help:"Print the evidence in this format." enum:",dsse,sigstore,text" default:"" placeholder:"dsse|sigstore|text"`
	JSON   bool     `name:"json" help:"Print the result as JSON."`
}

// Help is shown below the flags' summary.
func (c *VerifyCmd) Help() string {
	return `A receipt is verified offline: the signatures at its end cover every byte before them,
and the signed statement must say what the text says. A turn is verified with all of its
ancestors and every object that they need; with --all, a session with all of its turns,
its log of heads and the whole store. The output lists who signed which turns.

The name of a file has a / or ends with .md: write ./NAME. Every other name is that of
a turn or a session.

The trusted keys are those in $TURN_HOME/trusted and those of nodes that turn host add
has pinned, or with --trust only those of FILE, a list in OpenSSH's format
allowed_signers, or KEY, such as "node=ssh-ed25519 AAAA...".

--format prints the evidence of a receipt that verifies, for other programs: dsse for
in-toto; sigstore, with the signature of the node, for cosign. text prints the text that
is signed, whose digest is that of the subject "receipt".

Exit status: 0 everything verifies; 2 there is no such receipt or turn; 3 the receipt or
the store cannot be read; 4 something is not signed, and everything else verifies;
5 something does not verify.`
}

// Examples returns command lines for the help.
func (c *VerifyCmd) Examples() []string {
	return []string{
		"turn verify receipt.md",
		"turn verify receipt.md --trust node.pub.trust",
		"turn verify research@7",
		"turn verify research --all",
	}
}

// Validate is called by kong.
func (c *VerifyCmd) Validate() error {
	if c.Format != "" && (c.JSON || c.All) {
		return errors.New("--format cannot be used with --json or --all")
	}
	return nil
}

// Run verifies.
func (c *VerifyCmd) Run(a *cli.App) error {
	if !c.All {
		file, err := openWhat(a, c.What)
		if err != nil {
			return cli.Fail(err)
		}
		if file != nil {
			return c.receipt(a, file)
		}
	} else if strings.Contains(c.What, "/") && namesFile(c.What) {
		return cli.Usage(errors.New("--all needs a session, and " + c.What + " is a file"))
	}
	if c.Format != "" {
		return cli.Usage(errors.New("--format needs the file of a receipt"))
	}
	return a.WithRefs([]*string{&c.What}, func(ctx context.Context, x cli.Executor) error {
		rep, err := x.Verify(ctx, turnstone.VerifyRequest{Ref: c.What, All: c.All, Trust: c.Trust})
		return c.result(a, rep, err)
	})
}

// openWhat returns the content of the file that what names, or nil if what names a turn or a session.
// A name of a file has a "/" or ends with ".md": otherwise a file in the working directory could take
// the place of the turn that is meant. A regular file that is called like a turn is an error.
func openWhat(a *cli.App, what string) ([]byte, error) {
	in := a.Stdin
	if what != "-" {
		info, err := os.Stat(what)
		if !namesFile(what) {
			if err == nil && info.Mode().IsRegular() {
				return nil, turnstone.Errorf("verify", turnstone.KindInvalid, what,
					"names a turn or a session, and there is a file of that name").
					WithHint("write ./" + what + " for the file, or leave the folder for the turn")
			}
			return nil, nil
		}
		f, err := os.Open(what)
		if err != nil {
			return nil, turnstone.NewError("verify", turnstone.KindNotFound, what, pathCause(err))
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, document.MaxFile+document.MaxEvidence+1))
	switch {
	case err != nil:
		return nil, turnstone.NewError("verify", turnstone.KindUnavailable, what, pathCause(err))
	case len(b) > document.MaxFile+document.MaxEvidence:
		return nil, turnstone.Errorf("verify", turnstone.KindInvalid, what, "is no receipt: "+
			"it has more than %s", turnstone.Bytes(document.MaxFile).Human())
	case b == nil:
		b = []byte{}
	}
	return b, nil
}

// namesFile reports whether what is written as a file, not as a turn. The name of a branch may have
// a "/" after the "@".
func namesFile(what string) bool {
	first, _, below := strings.Cut(what, "/")
	return strings.HasSuffix(what, ".md") || below && !strings.Contains(first, "@")
}

// receipt verifies a receipt by itself. It makes no state directory.
func (c *VerifyCmd) receipt(a *cli.App, file []byte) error {
	return a.Do(func(ctx context.Context) error {
		dir, err := a.Locate()
		if err != nil {
			return err
		}
		trust, err := hosts.Trusted(&statedir.Dir{Root: dir}, c.Trust)
		if err != nil {
			return err
		}
		rep := proof.VerifyReceipt(ctx, c.What, file, trust)
		if rep.OK && c.Format != "" {
			text, envelope, _ := document.CutEvidence(file)
			if c.Format != "text" {
				b, err := proof.Export(envelope, c.Format)
				if err != nil {
					return err
				}
				text = append(b, '\n')
			}
			_, err = a.Stdout.Write(text)
			return err
		}
		return c.result(a, rep, nil)
	})
}

// result prints a report, and returns its exit status.
func (c *VerifyCmd) result(a *cli.App, rep *turnstone.VerifyReport, err error) error {
	err = a.Result(rep, err, func(w io.Writer) { c.print(w, rep) })
	switch {
	case err != nil || rep.OK:
		return err
	case rep.OnlyUnsigned():
		return cli.Exit(cli.ExitUnsigned, nil)
	}
	return cli.Exit(cli.ExitUnproven, nil)
}

// print prints one line for what verifies, and a line for each problem.
func (c *VerifyCmd) print(w io.Writer, rep *turnstone.VerifyReport) {
	for i, p := range rep.Problems {
		// the last line says so of a receipt
		if !rep.OnlyUnsigned() || len(rep.Problems) > 1 || p.Where != c.What {
			terminal.Println(w, terminal.Printable(p.Where)+": "+terminal.Printable(p.Error))
		}
		repeated := i+1 < len(rep.Problems) && rep.Problems[i+1].Hint == p.Hint
		if p.Hint != "" && !repeated {
			terminal.Println(w, "hint: "+terminal.Printable(p.Hint))
		}
	}
	what := terminal.Name(c.What)
	switch {
	case rep.OnlyUnsigned():
		terminal.Println(w, what+": not signed")
	case !rep.OK:
		terminal.Println(w, what+": does not verify")
	case len(rep.Turns) == 0:
		terminal.Println(w, what+": no turns")
	default:
		c.printTurns(w, rep)
	}
}

// printTurns prints who signed which turns, if there are several, and a summary.
func (c *VerifyCmd) printTurns(w io.Writer, rep *turnstone.VerifyReport) {
	t, n := rep.Turns[0], len(rep.Turns)
	if n > 1 {
		for _, g := range groups(rep.Turns) {
			what := ": turns "
			if len(g.turns) == 1 {
				what = ": turn "
			}
			terminal.Println(w, g.by+what+ranges(g.turns))
		}
	}
	line := fmt.Sprintf("%s: turn %d (%s), %s, %s", terminal.Name(c.What), t.Number, t.ID, t.Result,
		vouched(t))
	if n > 1 || rep.Objects > 0 {
		line += fmt.Sprintf("; verified: %s, %s", terminal.Plural(n, "turn", "turns"),
			terminal.Plural(rep.Objects, "object", "objects"))
	}
	if rep.Heads > 0 {
		line += ", " + terminal.Plural(rep.Heads, "head", "heads")
	}
	alone := 0
	for _, t := range rep.Turns {
		if len(t.Vouchers) == 1 {
			alone++
		}
	}
	if n > 1 {
		line += fmt.Sprintf("; %d of %d signed by the node alone", alone, n)
	}
	terminal.Println(w, line)
}

// vouched says who signed a turn, and when the node did.
func vouched(t turnstone.VerifiedTurn) string {
	line := "signed by " + voucher(t.Vouchers[0])
	at := " on " + t.Time.UTC().Format(time.RFC3339)
	switch {
	case len(t.Vouchers) == 1:
		return line + " alone" + at + ", because the caller had no key"
	case t.Vouchers[1].Later: // at an unknown time
		return line + at + ", and later by " + voucher(t.Vouchers[1])
	}
	return line + " and " + voucher(t.Vouchers[1]) + at
}

// voucher names a key with its role: "node build1 (SHA256:…)".
func voucher(v turnstone.Voucher) string {
	who := v.Role
	if v.Name != "" {
		who += " " + terminal.Name(v.Name)
	}
	if v.Host != "" {
		return who + " (" + v.Key + ", pinned for host " + terminal.Name(v.Host) + ")"
	}
	return who + " (" + v.Key + ")"
}

// A group is the turns that the same keys signed.
type group struct {
	by      string
	signers int
	turns   []int // numbers
}

// groups returns the turns by their signers: those that the node alone signed come first.
func groups(turns []turnstone.VerifiedTurn) (all []group) {
	at := map[string]int{}
	for _, t := range turns {
		by, keys := briefly(t.Vouchers), ""
		for _, v := range t.Vouchers { // two keys may have one name, and begin alike
			keys += " " + v.Key
		}
		i, known := at[by+keys]
		if !known {
			i = len(all)
			at[by+keys] = i
			all = append(all, group{by: by, signers: len(t.Vouchers)})
		}
		all[i].turns = append(all[i].turns, t.Number)
	}
	slices.SortStableFunc(all, func(a, b group) int { return cmp.Compare(a.signers, b.signers) })
	return all
}

// briefly names the signers of a turn: by their names, and by the beginnings of their keys.
func briefly(vouchers []turnstone.Voucher) string {
	var by []string
	for _, v := range vouchers {
		v.Key = v.Key[:min(len(v.Key), len("SHA256:")+12)]
		who := voucher(v)
		if v.Later {
			who = "later " + who
		}
		by = append(by, who)
	}
	if len(by) == 1 {
		return by[0] + " alone"
	}
	return strings.Join(by, " and ")
}

// ranges writes numbers in order: "1-3, 7".
func ranges(numbers []int) string {
	numbers = slices.Sorted(slices.Values(numbers))
	var parts []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		part := fmt.Sprint(numbers[i])
		if last > i {
			part += fmt.Sprintf("-%d", numbers[last])
		}
		parts, i = append(parts, part), last+1
	}
	return strings.Join(parts, ", ")
}
