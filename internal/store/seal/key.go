package seal

import (
	"crypto/rand"
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
// in an unexported field, whose methods fmt cannot call: fmt follows one pointer, but not two.
type Key struct{ to *secret }

type secret struct{ b *[KeySize]byte }

// NewKey returns a random key.
func NewKey() Key {
	b := new([KeySize]byte)
	_, _ = rand.Read(b[:]) // documented never to fail
	return Key{&secret{b}}
}

// ParseKey returns the key with the bytes b, which it copies. Another length is an error of kind
// Invalid.
func ParseKey(b []byte) (Key, error) {
	if len(b) != KeySize {
		return Key{}, turnstone.Errorf("seal.key", turnstone.KindInvalid, "",
			"a key has %d bytes, not %d", KeySize, len(b))
	}
	own := [KeySize]byte(b)
	return Key{&secret{&own}}, nil
}

// Bytes returns a copy of the key's bytes, to be wrapped; nil for the zero Key.
func (k Key) Bytes() []byte {
	if k.to == nil {
		return nil
	}
	return append([]byte(nil), k.to.b[:]...)
}

// IsZero reports whether there is no key: k is the zero Key, or erased.
func (k Key) IsZero() bool { return k.to == nil || *k.to.b == [KeySize]byte{} }

// Equal reports whether k and other are the same key, in constant time. No key equals none.
func (k Key) Equal(other Key) bool {
	return !k.IsZero() && !other.IsZero() &&
		subtle.ConstantTimeCompare(k.to.b[:], other.to.b[:]) == 1
}

// Erase overwrites the key, also in its copies. A Domain made from it keeps its own keys.
func (k Key) Erase() {
	if k.to != nil {
		clear(k.to.b[:])
	}
}

// String implements fmt.Stringer.
func (k Key) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (k Key) GoString() string { return hidden }

// Format implements fmt.Formatter, for all verbs.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue implements slog.LogValuer.
func (k Key) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses too.
func (k Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// An ID names a domain. It is derived from the domain's key and shows nothing of it. The zero ID
// stands for public objects.
type ID [16]byte

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
