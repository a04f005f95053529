package seal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A hexBytes is bytes in hexadecimal.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

// TestVectors reads what another implementation of docs/store.md has sealed: in Python, with the
// package cryptography. Other results would be another format.
func TestVectors(t *testing.T) {
	var v struct {
		Key            hexBytes
		ID             string
		Object         string
		Name           turnstone.Digest
		Sealed         hexBytes
		Context, Value string
		SealedValue    hexBytes `json:"sealed_value"`
		LookupOf       string   `json:"lookup_of"`
		Lookup         string
		StreamContext  string   `json:"stream_context"`
		Empty          hexBytes `json:"empty_file"`
		Small          hexBytes `json:"small_file"`
		Long           []byte   `json:"long_file_base64"` // of two chunks
		Gear           hexBytes `json:"gear_sha256"`
	}
	b, err := os.ReadFile("testdata/vectors.json")
	check(t, err)
	check(t, json.Unmarshal(b, &v))
	key, err := seal.ParseKey(v.Key)
	check(t, err)
	d, err := seal.New(key)
	check(t, err)
	if d.ID().String() != v.ID {
		t.Errorf("the ID is %s, want %s", d.ID(), v.ID)
	}
	name, err := d.Name(turnstone.DigestBytes([]byte(v.Object)))
	if err != nil || name != v.Name {
		t.Errorf("the name is %s, want %s: %v", name, v.Name, err)
	}
	raw, err := d.NameOf(sha256.Sum256([]byte(v.Object)))
	check(t, err)
	size, stored, err := d.Open(bytes.Clone(v.Sealed), raw)
	if err != nil || string(stored) != v.Object || size != len(v.Object) {
		t.Errorf("the object is %q of %d: %v", stored, size, err)
	}
	value, err := d.OpenBytes(v.Context, v.SealedValue)
	if err != nil || string(value) != v.Value {
		t.Errorf("the value is %q: %v", value, err)
	}
	if got, err := d.Lookup(v.Context, v.LookupOf); err != nil || got != v.Lookup {
		t.Errorf("the lookup name is %s, want %s: %v", got, v.Lookup, err)
	}
	want := make([]byte, 64<<10+100)
	for i := range want {
		want[i] = byte(i * 7 % 251)
	}
	for _, read := range []func(*seal.Domain, []byte, string) ([]byte, error){readFile, readParts} {
		if got, err := read(d, v.Empty, v.StreamContext); err != nil || len(got) != 0 {
			t.Errorf("the empty file is %q: %v", got, err)
		}
		if got, err := read(d, v.Small, v.StreamContext); err != nil || !bytes.Equal(got, want[:40]) {
			t.Errorf("the file is %q: %v", got, err)
		}
		if got, err := read(d, v.Long, v.StreamContext); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the long file has %d bytes: %v", len(got), err)
		}
	}
	table, err := d.Gear()
	check(t, err)
	var out []byte
	for _, n := range table {
		out = binary.LittleEndian.AppendUint64(out, n)
	}
	if sum := sha256.Sum256(out); !bytes.Equal(sum[:], v.Gear) {
		t.Errorf("the table of the cutter has the digest %x", sum)
	}
}
