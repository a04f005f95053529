package keyring

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"turnstone.dev/turnstone"
)

// KeySize is the size of a Key in bytes.
const KeySize = 32

// hidden is printed instead of a key.
const hidden = "[key]"

// A Key is the key of a domain. Copies share its bytes, which Erase overwrites. Printing, logging
// and encoding a Key show a placeholder. The pointers also hide the bytes from fmt where the Key is
// in an unexported field, whose methods fmt cannot call: fmt follows one pointer for a verb that
// does not fit, such as %s.
type Key struct{ b **[KeySize]byte }

// keyIn returns the key that owns b.
func keyIn(b *[KeySize]byte) Key { return Key{&b} }

// bytes returns the key's bytes themselves; nil for the zero Key.
func (k Key) bytes() *[KeySize]byte {
	if k.b == nil {
		return nil
	}
	return *k.b
}

// NewKey returns a random key.
func NewKey() Key {
	b := new([KeySize]byte)
	_, _ = rand.Read(b[:]) // documented never to fail
	return keyIn(b)
}

// ParseKey returns the key with the bytes b, which it copies. Another length is an error of kind
// Invalid.
func ParseKey(b []byte) (Key, error) {
	if len(b) != KeySize {
		return Key{}, turnstone.Errorf("seal.key", turnstone.KindInvalid, "",
			"a key has %d bytes, not %d", KeySize, len(b))
	}
	own := [KeySize]byte(b)
	return keyIn(&own), nil
}

// Bytes returns a copy of the key's bytes, to be wrapped; nil for the zero Key.
func (k Key) Bytes() []byte {
	if b := k.bytes(); b != nil {
		return append([]byte(nil), b[:]...)
	}
	return nil
}

// Equal reports whether k and other are the same key, in constant time.
func (k Key) Equal(other Key) bool {
	a, b := k.bytes(), other.bytes()
	return a != nil && b != nil && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Erase overwrites the key, also in its copies.
func (k Key) Erase() {
	if b := k.bytes(); b != nil {
		clear(b[:])
	}
}

// Format implements fmt.Formatter, for all verbs.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue implements slog.LogValuer.
func (k Key) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses too.
func (k Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// An ID names a domain. It is derived from the domain's key and shows nothing of it.
type ID [16]byte

// idOf returns the ID of the domain with a key.
func idOf(k Key) (id ID) {
	b, err := hkdf.Key(sha256.New, k.bytes()[:], nil, "turnstone domain 1 id", len(id))
	if err == nil { // the length is fixed
		copy(id[:], b)
	}
	return id
}

// String returns the ID in hexadecimal.
func (i ID) String() string { return hex.EncodeToString(i[:]) }

// IsZero reports whether i is the zero ID.
func (i ID) IsZero() bool { return i == ID{} }

// MarshalText implements encoding.TextMarshaler.
func (i ID) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *ID) UnmarshalText(b []byte) error {
	p, err := ParseID(string(b))
	if err == nil {
		*i = p
	}
	return err
}

// ParseID parses the text that String returns.
func ParseID(s string) (ID, error) {
	var i ID
	if len(s) == 2*len(i) && strings.ToLower(s) == s {
		if _, err := hex.Decode(i[:], []byte(s)); err == nil {
			return i, nil
		}
	}
	return ID{}, turnstone.Errorf("seal.id", turnstone.KindInvalid, s, "not the ID of a domain")
}

// A Secret is what a Wrapper encrypts. It prints as "[secret]" in every format.
type Secret []byte

// Erase overwrites the secret, as Key.Erase does.
func (s Secret) Erase() { clear(s) }

// Format implements fmt.Formatter.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[secret]")) }

// MarshalText implements encoding.TextMarshaler, for JSON.
func (Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue("[secret]") }
