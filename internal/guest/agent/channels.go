package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/wire"
)

// Bounds of what clients of channels can occupy.
const (
	maxChannels   = 32 // with those whose handshake runs
	maxHandshakes = 16
	shakeTime     = 10 * time.Second
)

// channelByte begins a channel. It begins no connection of the wire: see channel.Magic.
const channelByte = 'T'

// channels are the agent's ends of encrypted channels. Their key pair is made at the first
// Sandbox.seal and erased by Sandbox.suspend, so no snapshot has it.
type channels struct {
	a *Agent

	mu         sync.Mutex
	idle       *sync.Cond // handshakes has become 0
	key        channel.KeyPair
	made       bool // there is a key
	statements *channel.Statements
	ctx        context.Context // of handshakes with key
	cancel     context.CancelFunc
	handshakes int // that run
	open       int // channels, with those whose handshake runs
}

func newChannels(a *Agent) *channels {
	k := &channels{a: a}
	k.idle = sync.NewCond(&k.mu)
	k.reset()
	return k
}

// reset forgets the key and the statements. k.mu is held.
func (k *channels) reset() {
	k.key, k.made, k.statements = channel.KeyPair{}, false, new(channel.Statements)
	k.ctx, k.cancel = context.WithCancel(context.Background())
}

// erase overwrites the key of a sandbox that is suspended, and forgets what it was for.
func (k *channels) erase() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cancel()
	for k.handshakes > 0 {
		k.idle.Wait() // they use the key; no other begins
	}
	k.key.Erase()
	k.reset()
}

// accept performs the handshake of a stream. release must be called after the channel's end, or
// after an error.
func (k *channels) accept(stream wire.LinkStream) (conn *channel.Conn, release func(), err error) {
	k.mu.Lock()
	if k.a.suspended.Load() || k.open >= maxChannels || k.handshakes >= maxHandshakes {
		k.mu.Unlock()
		return nil, func() {}, errors.New("there are too many channels")
	}
	k.open++
	k.handshakes++
	config := channel.ServerConfig{Key: k.key, Registry: k.statements}
	ctx, cancel := context.WithTimeout(k.ctx, shakeTime)
	k.mu.Unlock()
	defer cancel()

	conn, err = channel.Server(ctx, stream, config)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handshakes--; k.handshakes == 0 {
		k.idle.Broadcast()
	}
	return conn, k.release, err
}

// count returns the number of channels, with those whose handshake runs.
func (k *channels) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open
}

func (k *channels) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open--
}

// Seal implements Sandbox.seal.
func (s *sandbox) Seal(_ context.Context, _ *wire.Conn,
	p *wire.SandboxSealParams) (*wire.SandboxSealResult, error) {
	const op = wire.MethodSandboxSeal
	k := s.a.channels
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case s.a.suspended.Load(): // the gate may have seen it before
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox", "it is suspended").
			WithHint("call Sandbox.renew first")
	case !s.a.fresh.Load():
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox",
			"its random numbers are not secret").
			WithHint("use a sandbox that is not deterministic")
	case p.Statement == "" && (len(p.Clients) > 0 || p.Expires != ""):
		return nil, Invalid(op, "statement", "it is missing")
	}
	clients, expires, err := admission(p)
	if err != nil {
		return nil, err
	}
	if p.Withdrawn != "" {
		var key channel.PublicKey
		if err := key.UnmarshalText([]byte(p.Withdrawn)); err != nil {
			return nil, Invalid(op, "withdrawn", "it is not a key in base64")
		}
		k.statements.Withdraw(key)
	}
	if p.Statement != "" {
		err := k.statements.Add(turnstone.Digest(p.Statement), clients, expires)
		if err != nil {
			return nil, err
		}
	}
	if !k.made {
		k.key, k.made = channel.NewKeyPair(), true
	}
	return &wire.SandboxSealResult{Key: k.key.Public.String()}, nil
}

// admission returns the clients of p and when they expire.
func admission(p *wire.SandboxSealParams) (keys []channel.PublicKey, end time.Time, err error) {
	const op = wire.MethodSandboxSeal
	if p.Statement == "" {
		return nil, end, nil
	}
	if len(p.Clients) > channel.MaxClients {
		return nil, end, Invalid(op, "clients", "there are more than 16")
	}
	for _, text := range p.Clients {
		var key channel.PublicKey
		if err := key.UnmarshalText([]byte(text)); err != nil {
			return nil, end, Invalid(op, text, "it is not a key in base64")
		}
		keys = append(keys, key)
	}
	if end, err = time.Parse(time.RFC3339Nano, p.Expires); err != nil {
		return nil, end, Invalid(op, "expires", "it is not in the form of RFC 3339")
	}
	return keys, end, nil
}

// remoteGate is the gate of channels: their clients are not the host.
func (a *Agent) remoteGate(method string) error {
	if wire.HostOnly(method) {
		return turnstone.Errorf(turnstone.Op(method), turnstone.KindInvalid, method,
			"only the host of the sandbox may use this command")
	}
	return a.gate(method)
}
