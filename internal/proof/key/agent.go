package key

import (
	"errors"
	"io"
	"net"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// An agentSigner is a key of the SSH agent. It connects for each signature, because a turn may take
// longer than the agent lives.
type agentSigner struct {
	key  *agent.Key
	dial func() (net.Conn, error)
}

// PublicKey implements ssh.Signer.
func (a agentSigner) PublicKey() ssh.PublicKey {
	// The agent's own type does not verify signatures.
	if k, err := ssh.ParsePublicKey(a.key.Marshal()); err == nil {
		return k
	}
	return a.key
}

// Sign implements ssh.Signer. The agent makes its own random numbers.
func (a agentSigner) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	c, err := a.dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	s, err := agent.NewClient(c).Sign(a.key, data)
	if err == nil && s.Format != a.key.Type() {
		err = errors.New("the SSH agent signed with another algorithm: " + s.Format)
	}
	return s, err
}
