package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// logsCmd prints the output of a turn that is an object of Kubernetes. kubectl reads the object, as its user may, and
// the server has the receipt: the object only names the turn.
type logsCmd struct {
	Name      string `arg:"" help:"Name of the Turn object."`
	Namespace string `short:"n" help:"Namespace of the object (default: kubectl's)." placeholder:"NAME"`
}

// Help returns the text below the command's summary.
func (c *logsCmd) Help() string {
	return `kubectl reads the Turn object, with its own settings, and the selected server has the
turn's output: the operator's key has to admit yours to the session.`
}

// Examples returns command lines for the help.
func (c *logsCmd) Examples() []string {
	return []string{
		"turn logs a-write",
		"turn logs -n team a-write",
	}
}

// kubeTurn is what the command reads of a Turn object.
type kubeTurn struct {
	Status struct {
		Phase, Turn, Session string
		Conditions           []struct{ Type, Status, Reason, Message string }
	}
}

// Run prints the output.
func (c *logsCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		o, err := c.get(ctx)
		if err != nil {
			return err
		}
		id, err := o.ended(c.Name)
		if err != nil {
			return err
		}
		receipt, err := x.Receipt(ctx, id)
		if turnstone.KindOf(err) == turnstone.KindNotFound { // as it is for who may not read the session
			return turnstone.Errorf("logs", turnstone.KindNotFound, c.Name, "%w", err).WithHint(admission(a, o.Status.Session))
		}
		if err != nil {
			return err
		}
		d, claims, err := document.ReadReceipt(c.Name, receipt)
		if err != nil {
			return err
		}
		for n, step := range d.Steps {
			s := claims.Steps[n]
			for _, of := range []struct {
				stream string
				to     *os.File
				output document.OutputClaim
			}{{"stdout", a.Stdout, s.Stdout}, {"stderr", a.Stderr, s.Stderr}} {
				if err := printOutput(a, of.to, of.output, step.Name+": "+of.stream, id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// admission returns what helps who has no access to a session of an operator.
func admission(a *cli.App, session string) string {
	if a.NoServer() {
		return "no server is selected: turn host use NAME, or turn host add"
	}
	return "who has the operator's home, and a token of the namespace's tenant, admits your key, which turn host key prints: " +
		"turn session allow " + terminal.Name(session) + " KEY"
}

// printOutput prints an output of a receipt. A line on standard error names an output that the receipt has cut.
func printOutput(a *cli.App, to *os.File, o document.OutputClaim, name, id string) error {
	if o.Size != "" {
		terminal.Println(a.Stderr, fmt.Sprintf("%s: %s (turn show --receipt %s)", name, o.Size, id))
	}
	if o.Text == "" {
		return nil
	}
	return terminal.Copy(to, strings.NewReader(o.Text+"\n"))
}

// get reads the object by kubectl.
func (c *logsCmd) get(ctx context.Context) (*kubeTurn, error) {
	fail := func(kind turnstone.Kind, hint, format string, args ...any) (*kubeTurn, error) {
		return nil, turnstone.Errorf("logs", kind, c.Name, format, args...).WithHint(hint)
	}
	args := []string{"get", "turns.turnstone.dev", "--output=json"}
	if c.Namespace != "" {
		args = append(args, "--namespace="+c.Namespace)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "kubectl", append(args, "--", c.Name)...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return fail(turnstone.KindUnavailable, "install kubectl, or name the turn: turn show --receipt ID", "%w", err)
	}
	if err != nil {
		return fail(turnstone.KindNotFound, "kubectl get turn lists the objects",
			"kubectl: %s", cmp.Or(strings.TrimSpace(said.String()), err.Error()))
	}
	o := &kubeTurn{}
	if err := json.Unmarshal(out, o); err != nil {
		return fail(turnstone.KindInvalid, "", "kubectl's answer is no Turn: %w", err)
	}
	return o, nil
}

// ended returns the ID of the object's turn, if it has one and has ended.
func (o *kubeTurn) ended(name string) (string, error) {
	s := &o.Status
	if s.Phase == "Passed" || s.Phase == "Failed" {
		if strings.HasPrefix(s.Turn, "t_") { // and nothing that a command line reads otherwise
			return s.Turn, nil
		}
	}
	why := cmp.Or(s.Phase, "it has not been seen by an operator")
	for _, c := range s.Conditions {
		if c.Status == "False" && c.Message != "" {
			why += ": " + c.Message
			break
		}
	}
	hint := "wait for it: kubectl wait --for=condition=Completed turn/" + name
	if s.Phase == "Refused" || s.Phase == "Failed" {
		hint = ""
	}
	return "", turnstone.Errorf("logs", turnstone.KindUnavailable, name, "the Turn has no output: %s",
		terminal.Name(why)).WithHint(hint)
}
