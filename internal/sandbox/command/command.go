// Package command runs one command in a fresh sandbox, which belongs to no turn.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/wire"
)

// A Request is one command to run in a fresh sandbox.
type Request struct {
	Argv     []string
	Image    string // default "base"
	On       string // the turn whose state, environment and directory the command has; empty: none
	Env      []string
	Cwd      string
	Add, Get []document.Transfer
	Timeout  time.Duration
	Shape    turnstone.Shape        // zero: the default
	Network  *turnstone.NetworkSpec // rules of its network; nil: the host's
	// HostNetwork says that nobody said whether there is to be a network, so the host's
	// default counts, and not Shape.Network.
	HostNetwork bool
	Substrate   string
	Stdin       io.Reader // nil: nothing
	Stdout      io.Writer
	Stderr      io.Writer
}

// Run runs one command and returns its exit code, 128+n when signal n ended it.
// Every error means that the command's own exit code is not known. preparing may be nil.
func Run(ctx context.Context, h *host.Host, req Request, preparing func(string)) (int, error) {
	preparing = provision.Quietly(preparing)
	spec, err := h.Templates.Resolve(ctx, cmp.Or(req.Image, plan.DefaultImage), preparing)
	if err != nil {
		return 0, err
	}
	if len(req.Argv) == 0 {
		return 0, turnstone.Errorf("executor.plan", turnstone.KindInvalid, "exec", "no command given").
			WithHint("add the command and its arguments")
	}
	facts, err := h.Facts()
	if err != nil {
		return 0, err
	}
	p, err := plan.ForSandbox(plan.Sandbox{Image: spec.Name, Machine: spec.Machine, Shape: req.Shape, Substrate: req.Substrate,
		Env: req.Env, Cwd: plan.InCwd(spec.Workdir, req.Cwd), Timeout: req.Timeout, Add: req.Add, Get: req.Get,
		Network: req.Network, Silent: req.HostNetwork}, facts)
	if err != nil {
		return 0, err
	}
	base, err := provision.Named(ctx, h, req.On)
	if err != nil {
		return 0, err
	}
	var env []string
	if b := base.Below(turnstone.Session{}); b != nil {
		p, env = p.At(*b, facts.StrangersImage(b.Image, h.Templates)), base.State.Env
		p.Cwd = plan.InCwd(p.Cwd, req.Cwd)
	}
	su, err := provision.Prepare(h, p)
	if err != nil {
		return 0, err
	}
	s, err := provision.Start(ctx, h, su, base, preparing, provision.NewStopwatch())
	if err != nil {
		return 0, sandbox.Interrupted(ctx, err, "while the sandbox was prepared")
	}
	defer func() { _ = s.Close() }()
	timeCtx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	timed, diskLow, unwatch := h.Watch(timeCtx, p)
	defer unwatch()
	if err := s.AddAll(timed, p.Add); err != nil {
		return 0, sandbox.Interrupted(ctx, err, "while files were added")
	}
	release := s.Guard(timed)
	exit, err := s.Client().Start(timed, wire.ProcessStartParams{Argv: req.Argv, Cwd: p.Cwd, User: s.Template.User,
		Env: slices.Concat(env, req.Env)},
		wire.Stdio{In: req.Stdin, Out: req.Stdout, Err: req.Stderr})
	release()
	switch low := diskLow(); {
	case low != nil:
		return 0, low
	case errors.Is(timed.Err(), context.DeadlineExceeded):
		return 0, turnstone.NewError("executor.exec", turnstone.KindTimeout, req.Argv[0],
			errors.New("killed after "+p.Timeout.String()))
	case err != nil || exit.Exit.Killed:
		return 0, sandbox.Interrupted(ctx, hintImage(p.Image, req.Argv[0], s.CauseOf(err)), "while the command ran")
	}
	if err := s.GetAll(ctx, p.Get, s.MostToGet(p.Shape), preparing); err != nil {
		return int(exit.Exit.ExitCode), sandbox.Interrupted(ctx, err, "while files were fetched")
	}
	return int(exit.Exit.ExitCode), nil
}

// hintImage adds to an error about a program that could not be started which image has it.
func hintImage(image, program string, err error) error {
	var fault *turnstone.Error
	if errors.As(err, &fault) && fault.Op == wire.MethodProcessStart && fault.Kind == turnstone.KindNotFound && fault.Subject == program {
		if other := provision.ImageWith(image, program); other != "" {
			fault.Hint = fmt.Sprintf("--image %s has %s", other, program)
		}
	}
	return err
}
