package channel

import (
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"io"
	"reflect"

	"github.com/flynn/noise"
)

// A private is a private key in both forms that a handshake needs. The second form is made once: it
// costs as much as a Diffie-Hellman operation, and has a copy of the key.
type private struct {
	bytes [KeySize]byte
	key   *ecdh.PrivateKey
}

// newPrivate reads a private key.
func newPrivate(from io.Reader) (*private, error) {
	p := &private{}
	_, err := io.ReadFull(from, p.bytes[:])
	if err == nil {
		p.key, err = ecdh.X25519().NewPrivateKey(p.bytes[:])
	}
	return p, err
}

func (p *private) pair() KeyPair {
	return KeyPair{PublicKey(p.key.PublicKey().Bytes()), p}
}

// erase overwrites the key. It is not usable afterwards.
func (p *private) erase() {
	clear(p.bytes[:])
	// The copy has no method that overwrites it, and a snapshot of a sandbox would have it. TestErase
	// notices a standard library that keeps it elsewhere.
	if f := reflect.ValueOf(p.key).Elem().FieldByName("privateKey"); f.Kind() == reflect.Slice {
		clear(f.Bytes())
	}
}

// A dh is the function 25519 of one Noise message exchange, with an error that has a name. It uses
// keys that are made already, where noise.DH25519 would make each again for each operation.
type dh struct {
	static    *private
	ephemeral *private // nil: there is none yet
}

// GenerateKeypair implements noise.DHFunc.
func (d *dh) GenerateKeypair(random io.Reader) (noise.DHKey, error) {
	if random == nil {
		random = rand.Reader
	}
	p, err := newPrivate(random)
	if err != nil {
		return noise.DHKey{}, err
	}
	d.erase()
	d.ephemeral = p
	return p.noise(), nil
}

// DH implements noise.DHFunc. Private is a key of this exchange.
func (d *dh) DH(private, public []byte) ([]byte, error) {
	own := d.static
	if d.ephemeral != nil && &private[0] == &d.ephemeral.bytes[0] {
		own = d.ephemeral
	}
	if &private[0] != &own.bytes[0] {
		return nil, errForeign
	}
	other, err := ecdh.X25519().NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	secret, err := own.key.ECDH(other)
	if err != nil {
		return nil, errWeak
	}
	return secret, nil
}

// DHLen implements noise.DHFunc.
func (d *dh) DHLen() int { return KeySize }

// DHName implements noise.DHFunc.
func (d *dh) DHName() string { return noise.DH25519.DHName() }

// erase overwrites the ephemeral key.
func (d *dh) erase() {
	if d.ephemeral != nil {
		d.ephemeral.erase()
	}
}

func (p *private) noise() noise.DHKey {
	return noise.DHKey{Private: p.bytes[:], Public: p.key.PublicKey().Bytes()}
}

var (
	// errWeak reports that X25519 gave zero.
	errWeak = errors.New("X25519 gives zero")
	// errForeign reports a key that is not of the exchange, which is a fault of this program.
	errForeign = errors.New("the private key is not of this exchange")
)

// suite is the cipher suite of all channels, for work without a private key.
var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashSHA256)

// newState returns the state of an exchange of messages with a static key. Its caller calls erase
// when the exchange has ended.
func newState(config noise.Config, static *private) (
	state *noise.HandshakeState, erase func(), err error) {
	d := &dh{static: static}
	config.CipherSuite = noise.NewCipherSuite(d, noise.CipherChaChaPoly, noise.HashSHA256)
	config.StaticKeypair = static.noise()
	state, err = noise.NewHandshakeState(config)
	return state, d.erase, err
}
