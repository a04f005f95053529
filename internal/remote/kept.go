package remote

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel/attest"
)

// A KeptStatement is a statement about a sandbox that this client asked for. It is no secret: the
// server carried it, and it helps nobody without the client's key.
type KeptStatement struct {
	Envelope []byte       `json:"envelope"`
	Nonce    attest.Nonce `json:"nonce"` // that the client chose for it
	Path     string       `json:"path"`  // of the channel
	// Certificate is what the node showed with it; may be empty.
	Certificate []byte `json:"certificate,omitempty"`
}

// A StatementBook keeps statements about a server's sandboxes for later connections. A bad one costs
// a round trip, and nothing else.
type StatementBook interface {
	Statement(id turnstone.SandboxID) (KeptStatement, bool)
	Keep(id turnstone.SandboxID, k KeptStatement)
	Drop(id turnstone.SandboxID)
}

// openKept opens a channel under a statement that an earlier connection has used. It is checked as a
// new one is, with the pins and the time of now, and the sandbox's agent decides whether it still
// admits the client. Without a channel and an error, the client asks for a new statement. An error
// says that something is manipulated.
func (s *Server) openKept(ctx context.Context, o offer) (io.ReadWriteCloser, error) {
	if s.o.Statements == nil {
		return nil, nil
	}
	id := turnstone.SandboxID(o.about)
	k, has := s.o.Statements.Statement(id)
	if !has {
		return nil, nil
	}
	o.nonce, o.channel = k.Nonce, &v1.Channel{Attestation: k.Envelope, Path: k.Path,
		Certificate: k.Certificate}
	signed, err := s.believe(ctx, o)
	if err == nil {
		var c io.ReadWriteCloser
		if c, err = s.enter(ctx, signed, k.Path); err == nil {
			return c, nil
		}
		if turnstone.KindOf(err) == turnstone.KindIntegrity || ctx.Err() != nil {
			return nil, err
		}
	}
	s.o.Statements.Drop(id)
	return nil, nil
}

// keep keeps the statement of a channel to a sandbox that was opened.
func (s *Server) keep(o offer) {
	if s.o.Statements != nil {
		s.o.Statements.Keep(turnstone.SandboxID(o.about), KeptStatement{o.channel.GetAttestation(),
			o.nonce, o.channel.GetPath(), o.channel.GetCertificate()})
	}
}
