package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/network/netstack"
	"turnstone.dev/turnstone/wire"
)

// claimLimit bounds how long a sandbox that waited may take to become its user's: one that takes
// longer is replaced by another, which is started.
const claimLimit = 3 * time.Second

// StartAhead is Start for a sandbox whose user is not known yet, as Claim makes it one of its user's:
// it has the template's environment, and nothing answers on its network. It takes no place among the
// concurrent sandboxes, and no meter counts it.
func (l *Launcher) StartAhead(ctx context.Context, req Request) (*Sandbox, error) {
	req.ahead = true
	req.Env, req.Hostname, req.Network = nil, "", Network{}
	return l.Start(ctx, req)
}

// Claim makes s, which StartAhead started for the same template, shape and driver as req's, the
// sandbox of req: with fresh entropy, the host's clock, a machine ID and a boot ID of its own, the
// host name and the network of req, and the shell session of its first command. After an error s must
// be closed.
func (l *Launcher) Claim(ctx context.Context, s *Sandbox, req Request,
	session *wire.StateSetSessionParams) (err error) {
	if s.slot, err = l.slot(req.Slots); err != nil {
		return err
	}
	s.meter = metered.From(ctx)
	if fewer := s.Fewer(); fewer != "" {
		req.Progress("the sandbox has " + fewer)
	}
	if err := s.openNetwork(ctx, req.Network); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	// The protocol cannot stop a guest that does not read; this does.
	defer context.AfterFunc(ctx, func() { _ = s.machine.Close() })()
	settings := make(chan error, 1)
	go func() { settings <- s.Client().StateSetSession(ctx, session) }() // both at the same time
	err = s.reseed(ctx, s.hostname(&req))
	if told := <-settings; err == nil {
		err = told
	}
	if err == nil {
		err = s.serveNetwork(ctx, req.Network)
	}
	return s.CauseOf(err)
}

// reseed gives a running sandbox an identity of its own.
func (s *Sandbox) reseed(ctx context.Context, hostname string) error {
	id := make([]byte, 16)
	p := wire.SandboxRenewParams{Entropy: make([]byte, 64), Hostname: hostname,
		Time: time.Now().Format(time.RFC3339Nano)}
	_, _ = rand.Read(id) // documented never to fail
	_, _ = rand.Read(p.Entropy)
	p.MachineID = hex.EncodeToString(id)
	res, err := s.Client().SandboxRenew(ctx, &p)
	if err == nil && !res.Reseeded {
		err = turnstone.Errorf("executor.adopt", turnstone.KindIntegrity, string(s.ID()),
			"the sandbox did not confirm fresh random numbers; it is not used")
	}
	return err
}

// holdNetwork gives a sandbox that waits its network card, whose frames nobody reads.
func (s *Sandbox) holdNetwork(ctx context.Context) (err error) {
	if n := s.net; n != nil && !n.card {
		n.frames, err = s.networkStream(ctx)
	}
	return err
}

// openNetwork makes the network of a sandbox that waited.
func (s *Sandbox) openNetwork(ctx context.Context, want Network) (err error) {
	n := s.net
	if n == nil {
		return nil
	}
	n.cancel()
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	n.stack, err = netstack.New(n.options(want))
	return err
}

// serveNetwork connects a sandbox that waited to its network.
func (s *Sandbox) serveNetwork(ctx context.Context, want Network) error {
	n := s.net
	if n == nil {
		return nil
	}
	if n.frames == nil {
		return s.attachNetwork(ctx, want)
	}
	if err := s.Trust(ctx, want.Trust); err != nil {
		return err
	}
	n.serve(n.frames)
	return nil
}

// CloseSoon is Close, of which it does not wait for the machine's end. What the sandbox used is
// counted. The Launcher's Wait waits for the end; Close, too.
func (s *Sandbox) CloseSoon() {
	if s.launcher == nil {
		_ = s.Close()
		return
	}
	s.count()
	s.leaving.Store(true)
	s.launcher.ending.Add(1)
	go func() {
		defer s.launcher.ending.Done()
		_ = s.Close()
	}()
}

// Leaving reports whether CloseSoon was called.
func (s *Sandbox) Leaving() bool { return s.leaving.Load() }

// Wait waits for the ends of the sandboxes that CloseSoon ends.
func (l *Launcher) Wait() { l.ending.Wait() }
