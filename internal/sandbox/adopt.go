package sandbox

import (
	"context"
	"errors"

	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/wire"
)

// An Adoption is what a sandbox gets that was started before anybody asked for it.
type Adoption struct {
	Hostname string
	Env      []string        // added to its environment
	Cwd      string          // of its commands; empty: as it is
	User     string          // of its commands; empty: root
	Policy   *network.Policy // of its network; nil: as it is
}

// Adopt gives a running sandbox, in which no command has run, the identity and the settings of
// its user: fresh entropy, the host's clock, a machine ID and a boot ID of its own, and what is in
// a. After an error the sandbox must not be used.
func (s *Sandbox) Adopt(ctx context.Context, a Adoption) error {
	ctx, cancel := context.WithTimeout(ctx, configureLimit)
	defer cancel()
	if a.Policy != nil && s.net != nil {
		if err := s.net.stack.SetPolicy(*a.Policy); err != nil {
			return err
		}
	}
	c := s.Client()
	settings := make(chan error, 1)
	go func() { // the agent answers both at the same time
		settings <- c.SandboxSetDefaults(ctx, &wire.SandboxSetDefaultsParams{Cwd: a.Cwd,
			User: a.User, Env: a.Env})
	}()
	err := s.reseed(ctx, a.Hostname)
	return s.CauseOf(errors.Join(err, <-settings))
}

// Ping returns an error if the agent does not answer before ctx ends.
func (s *Sandbox) Ping(ctx context.Context) error {
	_, err := s.Client().SandboxGetVersion(ctx)
	return s.CauseOf(err)
}
