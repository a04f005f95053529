package channel

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"sync"

	"turnstone.dev/turnstone"
)

// KeySize is the size of a key in bytes.
const KeySize = 32

// A PublicKey is an X25519 key. Its text is base64 with padding.
type PublicKey [KeySize]byte

// String returns the key in base64.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText implements encoding.TextMarshaler.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts one spelling of a key. The error is
// of kind Invalid.
func (k *PublicKey) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != KeySize || base64.StdEncoding.EncodeToString(b) != string(text) {
		return turnstone.Errorf("channel.key", turnstone.KindInvalid, "the key",
			"is not base64 of 32 bytes")
	}
	copy(k[:], b)
	return nil
}

// Check reports a key of low order: with it, everybody knows the secret. Its error has the fault
// FaultWeakKey.
func (k PublicKey) Check() error {
	public, err := ecdh.X25519().NewPublicKey(k[:])
	if err == nil {
		_, err = anyKey().ECDH(public)
	}
	if err != nil {
		return Fail("channel.key", FaultWeakKey, "the key "+k.String(), "is a point of low order")
	}
	return nil
}

// anyKey returns a key that is no secret: each key gives zero with a point of low order.
var anyKey = sync.OnceValue(func() *ecdh.PrivateKey {
	scalar := [KeySize]byte{0: 8, KeySize - 1: 64}
	k, _ := ecdh.X25519().NewPrivateKey(scalar[:]) // its only error is about the size
	return k
})

// A KeyPair is a key with its private part, which no way of printing shows.
type KeyPair struct {
	Public  PublicKey
	private *private // nil: there is none
}

// NewKeyPair makes a key pair from the system's random numbers.
func NewKeyPair() KeyPair {
	p, _ := newPrivate(rand.Reader) // which never fails
	return p.pair()
}

// LoadKeyPair returns the pair of a private key, which it copies. The error is of kind Invalid.
func LoadKeyPair(private []byte) (KeyPair, error) {
	if len(private) != KeySize {
		return KeyPair{}, turnstone.Errorf("channel.key", turnstone.KindInvalid, "the private key",
			"has %d bytes, not %d", len(private), KeySize)
	}
	p, err := newPrivate(bytes.NewReader(private))
	if err != nil {
		return KeyPair{}, turnstone.NewError("channel.key", turnstone.KindInvalid,
			"the private key", err)
	}
	return p.pair(), nil
}

// Private returns a copy of the private key.
func (p KeyPair) Private() []byte { return append([]byte(nil), p.private.bytes[:]...) }

// Erase overwrites the private key. The caller makes sure that no handshake uses the pair.
func (p KeyPair) Erase() {
	if p.private != nil {
		p.private.erase()
	}
}

// String returns the public key.
func (p KeyPair) String() string { return p.Public.String() }

// GoString returns the public key.
func (p KeyPair) GoString() string { return p.Public.String() }
