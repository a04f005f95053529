package seal

import (
	"encoding/binary"
	"encoding/hex"

	"turnstone.dev/turnstone"
)

// maxBytes bounds SealBytes, which keeps all in memory.
const maxBytes = 64 << 20

// SealBytes seals a small value, such as a column of a row or a small file, and hides its size as
// Seal does. context says what it is, such as "turn.record" and the row's ID: OpenBytes needs the
// same context. One domain may seal 2^32 values.
func (d *Domain) SealBytes(context string, p []byte) ([]byte, error) {
	if len(p) > maxBytes {
		return nil, turnstone.Errorf("seal.bytes", turnstone.KindInvalid, "",
			"the value is too large: %d bytes", len(p))
	}
	frame := make([]byte, 4, PaddedSize(4+len(p)))
	binary.LittleEndian.PutUint32(frame, uint32(len(p)))
	frame = pad(append(frame, p...))
	aead, err := d.aead(func(k *keys) []byte { return k.bytes[:] })
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, frame, d.context(context)), nil
}

// OpenBytes returns what SealBytes has sealed with the same context. Other bytes are an error of
// kind Integrity.
func (d *Domain) OpenBytes(context string, sealed []byte) ([]byte, error) {
	const op = "seal.bytes"
	aead, err := d.aead(func(k *keys) []byte { return k.bytes[:] })
	if err != nil {
		return nil, err
	}
	frame, err := aead.Open(nil, nil, sealed, d.context(context))
	if err != nil {
		return nil, wrong(op, "the value")
	}
	p, ok := unpad(frame)
	if !ok {
		return nil, wrong(op, "the value")
	}
	return p, nil
}

// Lookup returns a name for a value: 64 hexadecimal digits, the same for the same context and
// value in this domain. A table that is searched by a value has its name instead.
func (d *Domain) Lookup(context, value string) (name string, err error) {
	n := binary.BigEndian.AppendUint32(nil, uint32(len(context)))
	err = d.use(func(k *keys) {
		sum := mac(&k.lookup, n, []byte(context), []byte(value))
		name = hex.EncodeToString(sum[:])
	})
	return name, err
}

func (d *Domain) context(s string) []byte {
	return append(append(append(make([]byte, 0, 64+len(s)), "turnstone bytes 1\n"...),
		d.id[:]...), s...)
}
