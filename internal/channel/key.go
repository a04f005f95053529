package channel

import (
	"crypto/rand"
	"encoding/base64"
	"errors"

	"github.com/flynn/noise"
	"golang.org/x/crypto/curve25519"

	"turnstone.dev/turnstone"
)

// KeySize is the size of a key in bytes.
const KeySize = curve25519.PointSize

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
	scalar := [KeySize]byte{0: 8, KeySize - 1: 64} // any scalar gives zero for such a key
	if _, err := curve25519.X25519(scalar[:], k[:]); err != nil {
		return Fail("channel.key", FaultWeakKey, "the key "+k.String(), "is a point of low order")
	}
	return nil
}

// A KeyPair is a key with its private part, which no way of printing shows.
type KeyPair struct {
	Public  PublicKey
	private *[KeySize]byte
}

// NewKeyPair makes a key pair from the system's random numbers.
func NewKeyPair() KeyPair {
	private := make([]byte, KeySize)
	_, _ = rand.Read(private) // never fails
	pair, _ := LoadKeyPair(private)
	clear(private)
	return pair
}

// LoadKeyPair returns the pair of a private key, which it copies. The error is of kind Invalid.
func LoadKeyPair(private []byte) (KeyPair, error) {
	if len(private) != KeySize {
		return KeyPair{}, turnstone.Errorf("channel.key", turnstone.KindInvalid, "the private key",
			"has %d bytes, not %d", len(private), KeySize)
	}
	pair := KeyPair{private: (*[KeySize]byte)(append([]byte(nil), private...))}
	public, err := curve25519.X25519(private, curve25519.Basepoint)
	if err != nil {
		return KeyPair{}, turnstone.NewError("channel.key", turnstone.KindInvalid,
			"the private key", err)
	}
	pair.Public = PublicKey(public)
	return pair, nil
}

// Private returns a copy of the private key.
func (p KeyPair) Private() []byte { return append([]byte(nil), p.private[:]...) }

// Erase overwrites the private key. The caller makes sure that no handshake uses the pair.
func (p KeyPair) Erase() {
	if p.private != nil {
		clear(p.private[:])
	}
}

// String returns the public key.
func (p KeyPair) String() string { return p.Public.String() }

// GoString returns the public key.
func (p KeyPair) GoString() string { return p.Public.String() }

func (p KeyPair) noise() noise.DHKey {
	return noise.DHKey{Private: p.private[:], Public: p.Public[:]}
}

// errWeak reports that X25519 gave zero.
var errWeak = errors.New("X25519 gives zero")

// dh is noise.DH25519 with an error that has a name.
type dh struct{ noise.DHFunc }

// DH implements noise.DHFunc.
func (d dh) DH(private, public []byte) ([]byte, error) {
	secret, err := d.DHFunc.DH(private, public)
	if err != nil {
		return nil, errWeak
	}
	return secret, nil
}

// suite is the cipher suite of all channels.
var suite = noise.NewCipherSuite(dh{noise.DH25519}, noise.CipherChaChaPoly, noise.HashSHA256)
