package remote

import (
	"context"
	"crypto/rand"
	"io"
	"time"

	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
)

// A Host opens channels to one end, a node or a sandbox, through a server that is not trusted. Its
// methods are safe for concurrent use.
type Host struct {
	About string          // what the statements have to be about: see attest.Statement.About
	Pins  attest.Pins     // who may sign them
	Key   channel.KeyPair // of this client

	// Attest asks the server for a statement that admits client and has nonce.
	Attest func(ctx context.Context, client channel.PublicKey, nonce attest.Nonce) ([]byte, error)
	// Dial connects to the end through the server.
	Dial func(ctx context.Context) (io.ReadWriteCloser, error)
}

// Open opens a channel: it is a Dialer. Errors that name a manipulation have a channel.Fault.
func (h *Host) Open(ctx context.Context) (io.ReadWriteCloser, error) {
	var nonce attest.Nonce
	_, _ = rand.Read(nonce[:]) // documented never to fail
	envelope, err := h.Attest(ctx, h.Key.Public, nonce)
	if err != nil {
		return nil, err
	}
	s, err := verify(ctx, envelope, attest.Expected{Pins: h.Pins, About: h.About,
		Client: h.Key.Public, Nonce: nonce})
	if err != nil {
		return nil, err
	}
	stream, err := h.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return channel.Client(ctx, stream, channel.ClientConfig{Key: h.Key, Server: s.ServerKey,
		Statement: s.Digest})
}

// verify returns the statement of an untrusted envelope, if it is the one that was asked for.
func verify(ctx context.Context, envelope []byte, e attest.Expected) (*attest.Signed, error) {
	s, err := attest.Open(ctx, envelope)
	if err != nil {
		return nil, err
	}
	if err := s.Check(e, time.Now()); err != nil {
		return nil, err
	}
	return s, nil
}
