package provision

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A spare is a sandbox that nobody has asked for yet. It is a sandboxes.Spare.
type spare struct {
	*sandbox.Sandbox
	host    *host.Host
	made    sandboxes.Spec // that it was started for
	details sandboxes.Details
}

// Adopt implements sandboxes.Adopter.
func (s *spare) Adopt(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec) (
	sandboxes.Details, error) {
	d := s.details
	if err := adoptable(s.made, spec); err != nil {
		return d, err
	}
	facts, err := s.host.Facts()
	if err != nil {
		return d, err
	}
	a := sandbox.Adoption{Hostname: hostname(id), User: d.User, Cwd: cmp.Or(spec.Cwd, d.Workdir)}
	p, err := plan.ForSandbox(plan.Sandbox{Image: s.Image, Shape: spec.Shape,
		Anonymous: spec.Stranger && facts.StrangersImage(spec.Image, s.host.Templates),
		Substrate: spec.Substrate, Live: spec.Live, Hostname: a.Hostname,
		Env: slices.Concat(spec.Env, spec.Secrets), Cwd: a.Cwd, Network: spec.Network}, facts)
	if err != nil {
		return d, err
	}
	su, err := Prepare(s.host, p)
	if err != nil {
		return d, err
	}
	a.Env = su.Link.GiveWay(su.Env, s.Template.EnvList())
	if p.Shape.Network {
		policy := su.Link.Options(network.NewWatch()).Policy
		a.Policy = &policy
	}
	if err := s.Sandbox.Adopt(ctx, a); err != nil {
		return d, err
	}
	if spec.Cwd != "" {
		if err := enter(ctx, s.Client(), spec.Cwd, true); err != nil {
			return d, err
		}
	}
	d.Workdir = a.Cwd
	return d, nil
}

// rehearse starts and ends a shell, as a user's first command will: the kernel and the agent of a
// restored machine then have in memory what that takes. Nothing of it remains but a used number of a
// process. A template without bash is as fast as before.
func rehearse(ctx context.Context, c *wire.Client, user string) error {
	const id = "rehearsal"
	_, err := c.Start(ctx, wire.ProcessStartParams{ProcessID: id, Cwd: "/", User: user,
		Argv: []string{"bash", "-c", "echo"}, KillOnDisconnect: true},
		wire.Stdio{Out: io.Discard, Err: io.Discard})
	switch turnstone.KindOf(err) {
	case turnstone.KindNotFound, turnstone.KindInvalid:
		return nil // there is no bash, or it cannot be started
	}
	if err != nil {
		return err
	}
	return c.ProcessRelease(ctx, &wire.ProcessReleaseParams{ProcessID: id})
}

// park has a shell loaded that the user's first command may begin in. Where that cannot be done, the
// command starts its own.
func park(ctx context.Context, c *wire.Client, user string) {
	_ = c.ProcessPrepare(ctx, &wire.ProcessPrepareParams{Program: "bash", User: user})
}

// adoptable reports why a sandbox that was started for made cannot be one of spec; nil: it can. The
// error is of kind Unavailable.
func adoptable(made, spec sandboxes.Spec) error {
	var why string
	n := spec.Network
	switch {
	case made.Image != spec.Image || made.Shape != spec.Shape || made.Substrate != spec.Substrate ||
		made.Stranger != spec.Stranger || spec.Live && !made.Live:
		why = "it was started for another request"
	case spec.Session != "" || spec.Belongs != nil || spec.On != "" || spec.From != "":
		why = "it starts on its template"
	case n != nil && (n.Open || n.NoHostCA || n.DNS != "" || len(n.Headers) > 0):
		why = "its network cannot be changed"
	default:
		return nil
	}
	return turnstone.NewError("sandbox.adopt", turnstone.KindUnavailable, "sandbox", errors.New(why))
}

// hostname returns the host name of a sandbox.
func hostname(id turnstone.SandboxID) string { return strings.ReplaceAll(string(id), "_", "-") }
