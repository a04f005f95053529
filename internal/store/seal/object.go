package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math/bits"
)

// The sealed form of an object is a nonce of 12 bytes, the encrypted frame, and a tag of 16 bytes.
// The frame has the size of the object (4 bytes), the length of its stored form (4), the stored
// form, and zeros up to a length of PaddedSize.
const (
	// HeaderSize is the size of the frame before an object's stored form.
	HeaderSize = 8
	// Overhead is the size of nonce and tag.
	Overhead  = nonceSize + tagSize
	nonceSize = 12
	tagSize   = 16
	// minFrame hides the sizes of very small objects.
	minFrame = 64
)

// PaddedSize returns the length to which n bytes are padded, so that it shows little of n: Padmé
// (Nikitin et al., PETS 2019), which adds at most 12 %, and less to large n. n is positive.
func PaddedSize(n int) int {
	if n <= minFrame {
		return minFrame
	}
	e := bits.Len(uint(n)) - 1 // the exponent
	low := e - bits.Len(uint(e))
	return (n + 1<<low - 1) &^ (1<<low - 1)
}

// SealedSize returns the size of the sealed form of an object whose stored form has n bytes.
func SealedSize(n int) int { return PaddedSize(HeaderSize+n) + Overhead }

// additional returns what an object's seal covers besides its frame.
func (d *Domain) additional(name *Name) []byte {
	return append(append(append(make([]byte, 0, 80), "turnstone object 1\n"...), d.id[:]...),
		name[:]...)
}

// dataKey returns the key of a single object. Each key seals one plaintext only, so the number of
// objects is not limited by random nonces.
func (d *Domain) dataKey(name *Name) (key [32]byte, err error) {
	err = d.use(func(k *keys) { key = mac(&k.data, name[:]) })
	return key, err
}

// Seal appends the sealed form of the object name, of size bytes, to dst. frame has HeaderSize
// bytes that are overwritten, and the object's stored form; with a capacity of PaddedSize it is not
// copied. dst and frame do not overlap.
func (d *Domain) Seal(dst, frame []byte, name Name, size int) ([]byte, error) {
	key, err := d.dataKey(&name)
	if err != nil {
		return nil, err
	}
	aead, err := randomGCM(key[:])
	clear(key[:])
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(frame, uint32(size))
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-HeaderSize))
	return aead.Seal(dst, nil, pad(frame), d.additional(&name)), nil
}

// Open returns the object's size and its stored form, which is in sealed: its bytes are
// overwritten. Bytes that Seal has not made for this name in this domain are an error of kind
// Integrity.
func (d *Domain) Open(sealed []byte, name Name) (size int, stored []byte, err error) {
	const op = "seal.open"
	key, err := d.dataKey(&name)
	if err != nil {
		return 0, nil, err
	}
	block, err := aes.NewCipher(key[:])
	clear(key[:])
	if err != nil {
		return 0, nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return 0, nil, err
	}
	if len(sealed) < Overhead+HeaderSize {
		return 0, nil, wrong(op, "the object")
	}
	// In place, which NewGCMWithRandomNonce would do with a copy.
	nonce, rest := sealed[:nonceSize], sealed[nonceSize:]
	frame, err := aead.Open(rest[:0], nonce, rest, d.additional(&name))
	if err != nil {
		return 0, nil, wrong(op, "the object")
	}
	size = int(binary.LittleEndian.Uint32(frame))
	stored, ok := unpad(frame[4:])
	if !ok {
		return 0, nil, wrong(op, "the object")
	}
	return size, stored, nil
}

// pad appends zeros up to the padded size.
func pad(frame []byte) []byte {
	n := len(frame)
	if need := PaddedSize(n); cap(frame) < need {
		frame = append(make([]byte, 0, need), frame...)
	}
	frame = frame[:PaddedSize(n)]
	clear(frame[n:])
	return frame
}

// unpad returns the bytes after a length of 4 bytes and before the padding, which it ignores: the
// tag covers it.
func unpad(b []byte) ([]byte, bool) {
	if len(b) < 4 {
		return nil, false
	}
	n := binary.LittleEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, false
	}
	return b[4 : 4+n], true
}
