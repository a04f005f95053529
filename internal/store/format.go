package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/announced"
	"turnstone.dev/turnstone/internal/store/codec"
	"turnstone.dev/turnstone/internal/store/cut"
	"turnstone.dev/turnstone/internal/store/seal"
)

// docs/store.md describes the formats. All numbers are little-endian.
const (
	packMagic  = "TURNPAK1"
	packEnd    = "TURNEND1"
	listMagic  = "TURNLST1"
	packPrefix = "packs/"

	packEntrySize   = 44
	packTrailerSize = 16

	// Packs of sealed objects.
	sealedMagic       = "TURNPAK2"
	sealedEnd         = "TURNEND2"
	sealedTrailerSize = 32

	// MaxObject is the maximum size of an object in bytes. Larger data is stored as a content.
	MaxObject = codec.MaxObject
	// smallContent is the largest content stored as a single object.
	smallContent = 1 << 20

	minChunk, maxChunk = cut.Min, cut.Max
	listEntrySize      = 36

	// packTarget is the size at which a pack is written.
	packTarget = 32 << 20
	// maxPack keeps offsets in 32 bits: a full pack and another object fit.
	maxPack = 1 << 30
)

// An id is a binary digest of an object or of a pack's table.
type id [32]byte

func (i id) digest() turnstone.Digest {
	return turnstone.Digest("sha256:" + hex.EncodeToString(i[:]))
}

func parseID(op turnstone.Op, d turnstone.Digest) (id, error) {
	var i id
	s := string(d)
	if len(s) == 71 && strings.HasPrefix(s, "sha256:") {
		// DigestString rejects capitals, which hex accepts.
		if _, err := hex.Decode(i[:], []byte(s[7:])); err == nil && strings.ToLower(s) == s {
			return i, nil
		}
	}
	return i, turnstone.Errorf(op, turnstone.KindInvalid, s, "not a digest")
}

// packName returns the blob name of a pack.
func packName(pack id) string { return packPrefix + hex.EncodeToString(pack[:]) }

// parsePackName is packName's inverse.
func parsePackName(name string) (id, bool) {
	var p id
	h, ok := strings.CutPrefix(name, packPrefix)
	if !ok || len(h) != 64 || strings.ToLower(h) != h {
		return p, false
	}
	_, err := hex.Decode(p[:], []byte(h))
	return p, err == nil
}

// A packEntry is an object in a pack.
type packEntry struct {
	id     id     // digest of the object, or name of a sealed object
	off    uint32 // offset in the pack
	stored uint32 // bytes in the pack
	size   uint32 // size of the object; equal to stored if the object is not compressed
	sum    uint32 // of a sealed object instead of size: CRC-32C of the stored bytes
	sealed bool
}

// makeEntry returns an entry from its numbers in a table or a segment.
func makeEntry(i id, off, stored, third uint32, sealed bool) packEntry {
	e := packEntry{id: i, off: off, stored: stored, sealed: sealed}
	if sealed {
		e.sum = third
	} else {
		e.size = third
	}
	return e
}

// third returns the number that makeEntry calls so.
func (e packEntry) third() uint32 {
	if e.sealed {
		return e.sum
	}
	return e.size
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeTable sorts the entries and returns the pack's table, whose digest is the pack's name. The
// pack's checksum in it is zero. The domain is zero for public objects.
func encodeTable(entries []packEntry, domain seal.ID) ([]byte, id) {
	slices.SortFunc(entries, func(a, b packEntry) int { return bytes.Compare(a.id[:], b.id[:]) })
	table := make([]byte, 0, len(entries)*packEntrySize+sealedTrailerSize)
	for _, e := range entries {
		table = append(table, e.id[:]...)
		table = binary.LittleEndian.AppendUint32(table, e.off)
		table = binary.LittleEndian.AppendUint32(table, e.stored)
		table = binary.LittleEndian.AppendUint32(table, e.third())
	}
	end := packEnd
	if !domain.IsZero() {
		table, end = append(table, domain[:]...), sealedEnd
	}
	name := id(sha256.Sum256(table))
	table = binary.LittleEndian.AppendUint32(table, uint32(len(entries)))
	table = binary.LittleEndian.AppendUint32(table, 0)
	return append(table, end...), name
}

// sumOffset is the offset of the pack's checksum from the end of the pack. The checksum is the
// CRC-32C of all bytes before the table, so that fsck notices a changed byte that decompresses to
// the same object. Zero stands for none: an older program wrote the pack.
const sumOffset = 12

// packSum returns c as the checksum of a pack.
func packSum(c uint32) uint32 { return max(c, 1) }

// A packEnding is what the trailer of a pack says.
type packEnding struct {
	domain  seal.ID
	entries int64
	sum     uint32 // zero: none
	size    int64  // of the table and the trailer
	header  int64  // size of the pack's beginning
}

// readEnding decodes the trailer at the end of tail, which is the end of a pack of size bytes.
func readEnding(tail []byte, size int64) (e packEnding, err error) {
	n := len(tail)
	if n < packTrailerSize {
		return e, errors.New("the end of the pack is missing")
	}
	trailer := int64(packTrailerSize)
	e.header = int64(len(packMagic))
	switch end := string(tail[n-len(packEnd):]); {
	case end == packEnd:
	case end == sealedEnd && n >= sealedTrailerSize:
		trailer = sealedTrailerSize
		e.domain = seal.ID(tail[n-sealedTrailerSize:])
		e.header += int64(len(e.domain))
		if e.domain.IsZero() {
			return e, errors.New("the pack is sealed and names no domain")
		}
	case strings.HasPrefix(end, packEnd[:len(packEnd)-1]):
		return e, errors.New("the pack's format is not known: a newer program wrote it")
	default:
		return e, errors.New("the end of the pack is missing")
	}
	e.entries = int64(binary.LittleEndian.Uint32(tail[n-packTrailerSize:]))
	e.sum = binary.LittleEndian.Uint32(tail[n-sumOffset:])
	e.size = e.entries*packEntrySize + trailer
	if e.size > size-e.header {
		return e, errors.New("the pack is shorter than its table")
	}
	return e, nil
}

// decodeTable decodes the table and trailer of the pack name of size bytes.
func decodeTable(b []byte, name id, size int64) ([]packEntry, packEnding, error) {
	end, err := readEnding(b, size)
	if err != nil {
		return nil, end, err
	}
	if int64(len(b)) != end.size {
		return nil, end, errors.New("the table's length does not match its header")
	}
	if sha256.Sum256(b[:len(b)-packTrailerSize]) != name {
		return nil, end, errors.New("the table does not match the pack's name")
	}
	sealed := !end.domain.IsZero()
	entries := make([]packEntry, 0, end.entries)
	for range end.entries {
		e := makeEntry(id(b[:32]), binary.LittleEndian.Uint32(b[32:]),
			binary.LittleEndian.Uint32(b[36:]), binary.LittleEndian.Uint32(b[40:]), sealed)
		if int64(e.off) < end.header ||
			int64(e.off)+int64(e.stored) > size-end.size || e.check() != nil {
			return nil, end, fmt.Errorf("the offset of object %s is outside the pack",
				e.id.digest())
		}
		entries = append(entries, e)
		b = b[packEntrySize:]
	}
	return entries, end, nil
}

// maxSealed is the size of the largest sealed object.
var maxSealed = uint32(seal.SealedSize(MaxObject))

// check bounds the allocation for reading the object.
func (e packEntry) check() error {
	if e.sealed && e.stored > maxSealed || !e.sealed && (e.size > MaxObject || e.stored > e.size) {
		return errors.New("its lengths are impossible")
	}
	return nil
}

// A chunk is an entry of a chunk list.
type chunk struct {
	id   id
	size uint32
}

// encodeList returns the object that lists the chunks of a content.
func encodeList(chunks []chunk) []byte {
	b := make([]byte, 0, len(listMagic)+len(chunks)*listEntrySize)
	b = append(b, listMagic...)
	for _, c := range chunks {
		b = append(b, c.id[:]...)
		b = binary.LittleEndian.AppendUint32(b, c.size)
	}
	return b
}

// decodeList decodes the list of a content of size bytes.
func decodeList(b []byte, size int64) ([]chunk, error) {
	rest, ok := bytes.CutPrefix(b, []byte(listMagic))
	if !ok || len(rest)%listEntrySize != 0 {
		return nil, errors.New("not a list of chunks")
	}
	chunks := make([]chunk, 0, len(rest)/listEntrySize)
	for ; len(rest) > 0; rest = rest[listEntrySize:] {
		c := chunk{id: id(rest[:32]), size: binary.LittleEndian.Uint32(rest[32:])}
		if c.size == 0 || c.size > maxChunk {
			return nil, errors.New("a chunk's size is impossible")
		}
		size -= int64(c.size)
		chunks = append(chunks, c)
	}
	if size != 0 {
		return nil, errors.New("the chunks do not add up to the content's size")
	}
	return chunks, nil
}

// fail returns err as a typed error; a typed error is unchanged.
func fail(op turnstone.Op, subject string, err error) error {
	return announced.Fail(op, subject, err)
}

// damaged returns an error of kind Integrity.
func damaged(op turnstone.Op, subject string, err error) error {
	return turnstone.NewError(op, turnstone.KindIntegrity, subject, err).
		WithHint("run `turn fsck` to find all damaged objects")
}
