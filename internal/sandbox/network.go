package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/netstack"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Network configures a sandbox's network, if its shape has one.
type Network struct {
	// Options returns the options of the network's stack, which reports rejected connections to
	// watch.
	Options func(watch *network.Watch) netstack.Options
	Trust   Trust
	// Carrier takes the place of the network's stack; nil: the stack.
	Carrier *Carrier
}

// A Carrier connects a sandbox's network card to a network that exists already, such as a pod's. No
// policy of the project applies to that network, and nothing on it is counted. The card is the
// agent's on every substrate: a machine's own card has an address that the network does not know.
// The request's shape has no network.
type Carrier struct {
	MAC   string // of the card
	MTU   int
	Guest wire.SandboxNetwork // the addresses of the guest
	// Carry carries frames until they end, ctx ends, or the network ends: see substrate.Networker.
	// The guest's frames are untrusted.
	Carry func(ctx context.Context, frames io.ReadWriteCloser) error
}

// A guestNetwork is the host's side of a sandbox's network card. It lives as long as the sandbox,
// and outlives its links.
type guestNetwork struct {
	stack *netstack.Stack
	watch *network.Watch
	card  bool   // the machine has its own; otherwise the agent creates one after each renew
	mac   string // of the agent's card

	carrier *Carrier // in the stack's place; nil: the stack

	// frames are those of the card of a sandbox that waits for its user, which nobody serves; nil: none
	frames io.ReadWriteCloser

	ctx    context.Context // of Serve
	cancel context.CancelFunc
	serves sync.WaitGroup
}

// makeNetwork creates the network that req requests for s, which need not exist yet: none if its
// shape has none. The network ends with s.Close. The error is of kind Invalid if a rule is invalid.
func (s *Sandbox) makeNetwork(ctx context.Context, req *Request) (err error) {
	if !s.source.Shape.Network && req.Network.Carrier == nil {
		return nil
	}
	n := &guestNetwork{watch: network.NewWatch()}
	n.carrier = req.Network.Carrier
	if _, own := s.machine.(substrate.Networker); own {
		n.card = n.carrier == nil
	}
	if !req.ahead && n.carrier == nil { // Claim makes its stack
		if n.stack, err = netstack.New(n.options(req.Network)); err != nil {
			return err
		}
	}
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	mac := make([]byte, 4)
	_, _ = rand.Read(mac) // documented never to fail
	n.mac = fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3])
	if n.carrier != nil && n.carrier.MAC != "" {
		n.mac = n.carrier.MAC
	}
	s.net = n
	return nil
}

// options returns the options of the stack that want describes.
func (n *guestNetwork) options(want Network) netstack.Options {
	opts := want.Options(n.watch)
	if !n.card {
		opts.MTU = network.LargeMTU
	}
	return opts
}

// attachNetwork connects the configured sandbox s to its network, if it has one. Its errors are
// those of the wire.
func (s *Sandbox) attachNetwork(ctx context.Context, want Network) error {
	n := s.net
	if n == nil {
		return nil
	}
	if n.carrier == nil {
		if err := s.Trust(ctx, want.Trust); err != nil {
			return err
		}
	}
	if card, own := s.machine.(substrate.Networker); own && n.card {
		frames, err := card.Frames()
		if err != nil {
			return err
		}
		n.serve(frames)
		return nil
	}
	return s.renewNetwork(ctx)
}

// put writes a file to the guest.
func (s *Sandbox) put(ctx context.Context, path string, content []byte) error {
	err := s.Client().Feed(bytes.NewReader(content), func(stream wire.StreamID) error {
		_, err := s.Client().FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: path,
			Stream: stream, Mode: 0o644, Parents: true})
		return err
	})
	if err != nil {
		return s.CauseOf(err)
	}
	return nil
}

// renewNetwork reconnects s to its network after its link was renewed. A machine with its own card
// does not notice.
func (s *Sandbox) renewNetwork(ctx context.Context) error {
	n := s.net
	if n == nil || n.card {
		return nil
	}
	n.serves.Wait() // the previous stream has ended with its link
	frames, err := s.networkStream(ctx)
	if err != nil {
		return err
	}
	n.serve(frames)
	return nil
}

// networkStream makes the agent's card, and returns its frames.
func (s *Sandbox) networkStream(ctx context.Context) (io.ReadWriteCloser, error) {
	params := wire.SandboxNetworkParams{MAC: s.net.mac, MTU: network.LargeMTU,
		Network: s.net.guest()}
	if c := s.net.carrier; c != nil {
		params.MTU = int64(c.MTU)
	}
	frames, err := s.Client().NetworkStream(ctx, params)
	if err != nil {
		return nil, s.CauseOf(err)
	}
	return frames, nil
}

// serve carries frames until they end, or the network ends.
func (n *guestNetwork) serve(frames io.ReadWriteCloser) {
	// The network of a guest that sends invalid frames ends.
	carry := func() error { return n.stack.Serve(n.ctx, frames) }
	if n.carrier != nil {
		carry = func() error { return n.carrier.Carry(n.ctx, frames) }
	}
	n.serves.Go(func() { _ = carry() })
}

// close ends the network. The sandbox's machine has ended.
func (n *guestNetwork) close() {
	if n == nil {
		return
	}
	n.cancel()
	if n.stack != nil {
		_ = n.stack.Close()
	}
	n.serves.Wait()
}

// DialGuest opens a connection to a TCP port of the sandbox. To the listener, the connection comes
// from the gateway. The error is of kind Unavailable if the sandbox has no network, or nothing
// listens on the port.
func (s *Sandbox) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	if s.net == nil || s.net.stack == nil {
		return nil, turnstone.Errorf("executor.dial", turnstone.KindUnavailable,
			"sandbox "+string(s.ID()), "it has no network").
			WithHint("create it with the network on")
	}
	return s.net.stack.DialGuest(ctx, port)
}

// TakeNetwork returns the activity on the network, and false if there is no network.
func (s *Sandbox) TakeNetwork(ctx context.Context) (turnstone.NetworkFacts, bool) {
	// an attached sandbox, whose network belongs to another process
	if m, ok := s.machine.(interface {
		TakeNetwork(ctx context.Context) (turnstone.NetworkFacts, bool)
	}); ok {
		return m.TakeNetwork(ctx)
	}
	if s.net == nil || s.net.stack == nil {
		return turnstone.NetworkFacts{}, false
	}
	f := turnstone.NetworkFacts{Totals: s.net.stack.Totals()}
	f.Refused, f.More = s.net.watch.Take()
	f.Ended = s.net.watch.TakeEnded()
	return f, true
}

// guest returns the addresses of the guest.
func (n *guestNetwork) guest() wire.SandboxNetwork {
	if n != nil && n.carrier != nil {
		return n.carrier.Guest
	}
	return guestNetworkParams()
}

// guestNetworkParams are the addresses of every guest but those with a Carrier.
func guestNetworkParams() wire.SandboxNetwork {
	return wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
		DNS: []string{network.DNS}}
}
