package sandboxes

import (
	"context"
	"net"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/wire"
)

// A ChannelKey is an X25519 public key of one end of an encrypted channel.
type ChannelKey = [channel.KeySize]byte

// A Seal admits clients to the encrypted channel of a sandbox. The zero value admits nobody.
type Seal struct {
	Statement turnstone.Digest // the attestation of the sandbox's key
	Clients   []ChannelKey     // 1 to 16
	Expires   time.Time        // of the statement
	// Withdrawn is a client whose statements the agent forgets first; nil: nobody.
	Withdrawn *ChannelKey
}

// Seal gives the sandbox's agent a statement about its key, and returns the key. With the zero Seal
// it only returns the key, for the statement to name. A pause or a snapshot of the sandbox makes
// the agent forget key and statements: the next Seal returns another key. The error is of kind
// KindUnavailable if the sandbox is deterministic, and of kind KindExhausted if 64 clients have
// valid statements.
func (s *Store) Seal(ctx context.Context, id turnstone.SandboxID, seal Seal) (ChannelKey, error) {
	c, err := s.client(ctx, id)
	if err != nil {
		return ChannelKey{}, err
	}
	defer func() { _ = c.Close() }()
	res, err := c.SandboxSeal(ctx, seal.params())
	if err != nil {
		return ChannelKey{}, s.Access().EndReason(ctx, id, err)
	}
	return channelKey(id, res.Key)
}

// params returns the parameters of Sandbox.seal.
func (s *Seal) params() *wire.SandboxSealParams {
	p := &wire.SandboxSealParams{Statement: string(s.Statement)}
	for _, key := range s.Clients {
		p.Clients = append(p.Clients, channel.PublicKey(key).String())
	}
	if !s.Expires.IsZero() {
		p.Expires = s.Expires.UTC().Format(time.RFC3339Nano)
	}
	if s.Withdrawn != nil {
		p.Withdrawn = channel.PublicKey(*s.Withdrawn).String()
	}
	return p
}

// channelKey decodes the key that a sandbox's agent has answered.
func channelKey(id turnstone.SandboxID, text string) (ChannelKey, error) {
	var key channel.PublicKey
	err := key.UnmarshalText([]byte(text))
	if err == nil {
		err = key.Check()
	}
	if err != nil {
		return ChannelKey{}, turnstone.NewError("sandbox.seal", turnstone.KindIntegrity,
			"sandbox "+string(id), err).
			WithHint("do not trust this sandbox: a program in it impersonates its agent")
	}
	return ChannelKey(key), nil
}

// A ChannelStream is a byte stream to the sandbox's end of an encrypted channel. CloseWrite ends
// writing and leaves reading open.
type ChannelStream interface {
	net.Conn
	CloseWrite() error
}

// OpenChannel opens a stream for a client of an encrypted channel: the caller copies bytes between
// the two. The client needs no trust: the holder begins a channel with the agent, so no client
// reaches the agent in the clear, with the rights of the host, and a stream whose client does not
// begin a channel ends.
func (s *Store) OpenChannel(ctx context.Context, id turnstone.SandboxID) (ChannelStream, error) {
	conn, err := s.dial(ctx, id, channelFile)
	if err != nil {
		return nil, err
	}
	return &channelStream{UnixConn: conn, due: channel.Magic}, nil
}

// A channelStream swallows the first bytes of its client, which the holder has sent.
type channelStream struct {
	*net.UnixConn
	due string // used only by the writer
}

// Write implements io.Writer.
func (c *channelStream) Write(p []byte) (int, error) {
	n := 0
	for ; n < len(p) && c.due != ""; n++ {
		if p[n] != c.due[0] {
			_ = c.Close()
			return n, turnstone.Errorf("sandbox.dial", turnstone.KindInvalid, "the channel",
				"the client does not begin a channel")
		}
		c.due = c.due[1:]
	}
	if n == len(p) {
		return n, nil
	}
	m, err := c.UnixConn.Write(p[n:])
	return n + m, err
}
