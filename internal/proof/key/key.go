// Package key has the keys that sign statements: public keys and signatures, key files, keys of the
// SSH agent, and the list of trusted keys. docs/chain.md describes all of it.
package key

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
)

// A Role is what a key vouches for.
type Role string

// The roles.
const (
	Node   Role = "node"   // the machine that ran the turn
	Caller Role = "caller" // the user who asked for the turn
)

// maxKey bounds the encoded form of a public key, and of a signature, in bytes.
const maxKey = 4 << 10

// A Public is a public key. The zero value is not valid.
type Public struct{ key ssh.PublicKey }

// accepted are the types of keys that may sign. A certificate, and an algorithm whose signatures
// have parameters of the signer's choice, are not among them.
var accepted = map[string]bool{ssh.KeyAlgoED25519: true, ssh.KeyAlgoSKED25519: true,
	ssh.KeyAlgoSKECDSA256: true}

// NewPublic returns k as a Public. The error is of kind Invalid if keys of its type do not sign
// statements.
func NewPublic(k ssh.PublicKey) (Public, error) {
	if _, is := k.(*ssh.Certificate); is {
		return Public{}, invalid("the key", "is a certificate, and a key is required").
			WithHint("name the key that the certificate is about")
	}
	if !accepted[k.Type()] {
		return Public{}, invalid("the key", "is of type %.60q", k.Type()).
			WithHint("use a key of type ssh-ed25519, or a hardware key of the SSH agent")
	}
	return Public{k}, nil
}

// severalLines is the error for a list of keys where one key is required.
func severalLines() error {
	return invalid("the key", "has more than one line").
		WithHint("give one line; turn verify --trust takes the file of a list")
}

// ParsePublic parses "TYPE BASE64", optionally followed by a comment, as in OpenSSH's .pub files.
func ParsePublic(line string) (p Public, comment string, err error) {
	if strings.ContainsAny(line, "\r\n") {
		return p, "", severalLines()
	}
	fields := strings.Fields(line)
	if len(line) > maxKey || len(fields) < 2 {
		return p, "", invalid("the key", "does not have the form TYPE BASE64")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return p, "", invalid("the key", "is not base64: %w", err)
	}
	k, err := ssh.ParsePublicKey(raw)
	if err != nil {
		return p, "", invalid("the key", "cannot be parsed: %w", err)
	}
	if k.Type() != fields[0] {
		return p, "", invalid("the key", "is of type %.60q, and its line says %.60q", k.Type(),
			fields[0])
	}
	p, err = NewPublic(k)
	return p, strings.Join(fields[2:], " "), err
}

// IsPublic reports whether a line begins like a public key or a certificate, without a principal.
func IsPublic(line string) bool {
	kind, _, _ := strings.Cut(line, " ")
	return strings.HasPrefix(kind, "ssh-") || strings.HasPrefix(kind, "sk-") ||
		strings.HasPrefix(kind, "ecdsa-")
}

// Parse is ParsePublic for a key in exactly the form of String.
func Parse(text string) (Public, error) {
	p, _, err := ParsePublic(text)
	if err == nil && p.String() != text {
		err = invalid("the key", "is not in its only spelling")
	}
	return p, err
}

// String returns "TYPE BASE64".
func (p Public) String() string {
	return p.key.Type() + " " + base64.StdEncoding.EncodeToString(p.key.Marshal())
}

// ID returns the key's fingerprint, "SHA256:" and base64, as OpenSSH prints it.
func (p Public) ID() string { return ssh.FingerprintSHA256(p.key) }

// Equal reports whether both are the same key.
func (p Public) Equal(o Public) bool { return bytes.Equal(p.key.Marshal(), o.key.Marshal()) }

// hardware reports whether the private key is in a security token.
func (p Public) hardware() bool { return p.key.Type() != ssh.KeyAlgoED25519 }

// KeyID implements dsse.Verifier.
func (p Public) KeyID() (string, error) { return p.ID(), nil }

// Public implements dsse.Verifier.
func (p Public) Public() crypto.PublicKey {
	if c, ok := p.key.(ssh.CryptoPublicKey); ok {
		return c.CryptoPublicKey()
	}
	return nil
}

// PEM returns the key in the form of PKIX (RFC 5280) as PEM. The error is of kind Invalid for a hardware key, whose
// signatures other verifiers do not know.
func (p Public) PEM() (string, error) {
	if p.hardware() {
		return "", invalid("the key", "is of type %.60q, which has no such form", p.key.Type()).
			WithHint("other verifiers know keys of type ssh-ed25519 only")
	}
	b, err := x509.MarshalPKIXPublicKey(p.Public())
	if err != nil {
		return "", turnstone.NewError("key.show", turnstone.KindInternal, "the key", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b})), nil
}

// Verify implements dsse.Verifier. A signature of an Ed25519 key has 64 bytes. That of a security
// token has a counter and flags beside it: it is the SSH signature. The type of the key alone
// decides between the two.
func (p Public) Verify(_ context.Context, data, sig []byte) error {
	if len(sig) > maxKey {
		return errors.New("the signature is too long")
	}
	if !p.hardware() {
		return p.key.Verify(data, &ssh.Signature{Format: p.key.Type(), Blob: sig})
	}
	var s ssh.Signature
	if err := ssh.Unmarshal(sig, &s); err != nil {
		return fmt.Errorf("the signature is no SSH signature: %w", err)
	}
	if s.Format != p.key.Type() || !bytes.Equal(ssh.Marshal(s), sig) {
		return errors.New("the signature has another form than its key")
	}
	return p.key.Verify(data, &s)
}

// A Signer signs with a private key. It implements dsse.Signer.
type Signer struct {
	Public
	with ssh.Signer
}

// NewSigner returns a Signer for s.
func NewSigner(s ssh.Signer) (*Signer, error) {
	p, err := NewPublic(s.PublicKey())
	if err != nil {
		return nil, err
	}
	return &Signer{p, s}, nil
}

// Sign implements dsse.Signer.
func (s *Signer) Sign(ctx context.Context, data []byte) ([]byte, error) {
	sig, err := s.with.Sign(rand.Reader, data)
	if err != nil {
		return nil, turnstone.NewError("key.sign", turnstone.KindUnavailable, "key "+s.ID(), err).
			WithHint("check the SSH agent with ssh-add -L, and touch the security token in time")
	}
	b := sig.Blob
	if s.hardware() {
		b = ssh.Marshal(sig)
	}
	// An agent is another program: what it returns is checked before it is stored.
	if err := s.Verify(ctx, data, b); err != nil {
		return nil, turnstone.Errorf("key.sign", turnstone.KindUnavailable, "key "+s.ID(),
			"its signature does not verify: %w", err)
	}
	return b, nil
}

func invalid(subject, format string, args ...any) *turnstone.Error {
	return turnstone.Errorf("key.parse", turnstone.KindInvalid, subject, format, args...)
}
