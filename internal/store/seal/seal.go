// Package seal seals what a domain keeps at rest. A domain is what is sealed with one key. The
// package gives objects their keyed names, seals objects, small metadata and files, and imports
// only the standard library's cryptography. docs/store.md describes the formats.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"turnstone.dev/turnstone"
)

const keyHint = "unlock the session with its key, and try again"

// A Domain seals and opens with the keys that are derived from one Key. Its methods are safe for
// concurrent use. After Erase they return an error of kind Unavailable.
type Domain struct {
	id ID

	mu   sync.RWMutex
	keys *keys // nil after Erase
}

// keys are derived from a domain's key, one for each use, so that no output of one use helps with
// another.
type keys struct {
	name   [32]byte // names of objects
	data   [32]byte // contents of objects
	bytes  [32]byte // small metadata
	lookup [32]byte // names of metadata
	stream [32]byte // files
	gear   [32]byte // cuts of large contents
}

// New returns the domain of a key. It copies what it needs. The error is of kind Unavailable if
// the key is empty or erased.
func New(key Key) (*Domain, error) {
	const op = "seal.domain"
	if key.IsZero() {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "", "there is no key").
			WithHint(keyHint)
	}
	d := &Domain{keys: &keys{}}
	for _, k := range []struct {
		use string
		to  []byte
	}{{"id", d.id[:]}, {"name", d.keys.name[:]}, {"data", d.keys.data[:]},
		{"bytes", d.keys.bytes[:]}, {"lookup", d.keys.lookup[:]},
		{"stream", d.keys.stream[:]}, {"gear", d.keys.gear[:]}} {
		b, err := hkdf.Key(sha256.New, key.to.b[:], nil, "turnstone domain 1 "+k.use, len(k.to))
		if err != nil {
			return nil, turnstone.NewError(op, turnstone.KindInternal, "", err)
		}
		copy(k.to, b)
		clear(b)
	}
	return d, nil
}

// Open returns the domain id, of which key must be the key. A wrong key is an error of kind
// Unavailable.
func Open(id ID, key Key) (*Domain, error) {
	d, err := New(key)
	if err != nil {
		return nil, err
	}
	if d.id != id {
		return nil, turnstone.Errorf("seal.domain", turnstone.KindUnavailable, id.String(),
			"the key is that of another domain").WithHint(keyHint)
	}
	return d, nil
}

// ID returns the domain's ID.
func (d *Domain) ID() ID { return d.id }

// String returns the ID, and no key.
func (d *Domain) String() string { return d.id.String() }

// Erase overwrites the domain's keys. It waits for calls in progress. Round keys of the cipher, and
// copies that the runtime has made, are not overwritten: they remain until their memory is reused.
func (d *Domain) Erase() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys != nil {
		*d.keys = keys{}
		d.keys = nil
	}
}

// use calls f with the keys.
func (d *Domain) use(f func(k *keys)) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.keys == nil {
		return Locked("seal.domain", d.id)
	}
	f(d.keys)
	return nil
}

// Locked returns the error of kind Unavailable of an operation that lacks the key of a domain.
func Locked(op turnstone.Op, id ID) error {
	return turnstone.NewError(op, turnstone.KindUnavailable, "domain "+id.String(),
		turnstone.ErrLocked).WithHint(keyHint)
}

// A Name is the name of a sealed object: HMAC-SHA-256 of its digest with the domain's name key.
type Name = [32]byte

// NameOf returns the name of the object with the SHA-256 digest.
func (d *Domain) NameOf(digest [32]byte) (name Name, err error) {
	err = d.use(func(k *keys) { name = mac(&k.name, digest[:]) })
	return name, err
}

// Name returns the name of the object with a digest, in the form of a digest: names and digests
// are kept and looked up alike.
func (d *Domain) Name(digest turnstone.Digest) (turnstone.Digest, error) {
	p, err := turnstone.ParseDigest(string(digest))
	if err != nil {
		return "", turnstone.NewError("seal.name", turnstone.KindInvalid, string(digest), err)
	}
	var raw [32]byte
	_, _ = hex.Decode(raw[:], []byte(p.Hex())) // ParseDigest has checked it
	name, err := d.NameOf(raw)
	if err != nil {
		return "", err
	}
	return turnstone.Digest("sha256:" + hex.EncodeToString(name[:])), nil
}

// Gear returns the table of numbers for content-defined chunking.
func (d *Domain) Gear() (*[256]uint64, error) {
	var b []byte
	var err error
	if lerr := d.use(func(k *keys) {
		b, err = hkdf.Expand(sha256.New, k.gear[:], "turnstone gear 1", 256*8)
	}); lerr != nil || err != nil {
		return nil, errors.Join(lerr, err)
	}
	table := new([256]uint64)
	for i := range table {
		table[i] = binary.LittleEndian.Uint64(b[i*8:])
	}
	clear(b)
	return table, nil
}

// mac returns the HMAC-SHA-256 of the parts, whose lengths are fixed or given by the parts before.
func mac(key *[32]byte, parts ...[]byte) (sum [32]byte) {
	h := hmac.New(sha256.New, key[:])
	for _, p := range parts {
		_, _ = h.Write(p) // a hash returns no error
	}
	h.Sum(sum[:0])
	return sum
}

// aead returns randomGCM with one of the keys.
func (d *Domain) aead(of func(k *keys) []byte) (aead cipher.AEAD, err error) {
	if lerr := d.use(func(k *keys) { aead, err = randomGCM(of(k)) }); lerr != nil {
		return nil, lerr
	}
	return aead, err
}

// randomGCM returns AES-256-GCM that puts a random nonce of 12 bytes before what it seals.
func randomGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// wrong returns the error of kind Integrity of sealed bytes that are not what they should be.
func wrong(op turnstone.Op, what string) error {
	return turnstone.NewError(op, turnstone.KindIntegrity, "", fmt.Errorf("%s is damaged, or was "+
		"sealed under another name or with another key", what))
}
