package keyring

import (
	"fmt"
	"log/slog"

	"turnstone.dev/turnstone/internal/store/seal"
)

// The key of a domain, and the ID that is derived from it.
type (
	Key = seal.Key
	ID  = seal.ID
)

// idOf returns the ID of the domain with a key; zero, which no domain has, if the key was erased.
func idOf(k Key) ID {
	d, err := seal.New(k)
	if err != nil {
		return ID{}
	}
	defer d.Erase()
	return d.ID()
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
