package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// The formats are described in docs/store.md. All numbers are little-endian.
const (
	packMagic  = "TURNPAK1"
	packEnd    = "TURNEND1"
	listMagic  = "TURNLST1"
	packPrefix = "packs/"

	packEntrySize   = 44
	packTrailerSize = 16

	// maxObject bounds what a damaged length makes the store allocate.
	maxObject = 256 << 20
	// smallContent is the largest content that is one object.
	smallContent = 1 << 20
	// The sizes of chunks. They and the cutter are part of the format: other ones
	// would give the same content another list.
	minChunk, normalChunk, maxChunk = 64 << 10, 256 << 10, 1 << 20
	listEntrySize                   = 36

	// packTarget is the size from which on a pack is written.
	packTarget = 32 << 20
	// maxPack keeps offsets in 32 bits: a full pack and one more object fit.
	maxPack = 1 << 30
)

// An id is a digest in binary: of an object, or of a pack's table.
type id [32]byte

func (i id) digest() turnstone.Digest { return turnstone.Digest("sha256:" + hex.EncodeToString(i[:])) }

func parseID(op turnstone.Op, d turnstone.Digest) (id, error) {
	var i id
	s := string(d)
	if len(s) == 71 && strings.HasPrefix(s, "sha256:") {
		// DigestString does not take capitals, which hex would.
		if _, err := hex.Decode(i[:], []byte(s[7:])); err == nil && strings.ToLower(s) == s {
			return i, nil
		}
	}
	return i, turnstone.Errorf(op, turnstone.KindInvalid, s, "not a digest")
}

// packName returns the name of the blob of a pack.
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

// A packEntry is one object of a pack.
type packEntry struct {
	id     id
	off    uint32 // in the pack
	stored uint32 // bytes in the pack
	size   uint32 // of the object; it is stored as it is where stored is the same
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeTable sorts the entries and returns the pack's table, which its name is the digest of.
func encodeTable(entries []packEntry) ([]byte, id) {
	slices.SortFunc(entries, func(a, b packEntry) int { return bytes.Compare(a.id[:], b.id[:]) })
	table := make([]byte, 0, len(entries)*packEntrySize+packTrailerSize)
	for _, e := range entries {
		table = append(table, e.id[:]...)
		table = binary.LittleEndian.AppendUint32(table, e.off)
		table = binary.LittleEndian.AppendUint32(table, e.stored)
		table = binary.LittleEndian.AppendUint32(table, e.size)
	}
	name := id(sha256.Sum256(table))
	table = binary.LittleEndian.AppendUint32(table, uint32(len(entries)))
	table = binary.LittleEndian.AppendUint32(table, 0)
	return append(table, packEnd...), name
}

// tableSize returns how many bytes the table and the trailer take, from the
// trailer of a pack of size bytes.
func tableSize(trailer []byte, size int64) (int64, error) {
	if len(trailer) != packTrailerSize || string(trailer[8:]) != packEnd || binary.LittleEndian.Uint32(trailer[4:]) != 0 {
		return 0, errors.New("the end of the pack is not there")
	}
	n := int64(binary.LittleEndian.Uint32(trailer))*packEntrySize + packTrailerSize
	if n > size-int64(len(packMagic)) {
		return 0, errors.New("the pack is shorter than its table")
	}
	return n, nil
}

// decodeTable reads the table and trailer of the pack name, which has size bytes in all.
func decodeTable(b []byte, name id, size int64) ([]packEntry, error) {
	if len(b) < packTrailerSize {
		return nil, errors.New("the table is cut off")
	}
	n, err := tableSize(b[len(b)-packTrailerSize:], size)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) != n {
		return nil, errors.New("the table is not as long as it says")
	}
	table := b[:len(b)-packTrailerSize]
	if sha256.Sum256(table) != name {
		return nil, errors.New("the table is not the one that the pack is named after")
	}
	end := size - n
	entries := make([]packEntry, 0, len(table)/packEntrySize)
	for ; len(table) > 0; table = table[packEntrySize:] {
		e := packEntry{id: id(table[:32]), off: binary.LittleEndian.Uint32(table[32:]),
			stored: binary.LittleEndian.Uint32(table[36:]), size: binary.LittleEndian.Uint32(table[40:])}
		if int64(e.off) < int64(len(packMagic)) || int64(e.off)+int64(e.stored) > end || e.check() != nil {
			return nil, fmt.Errorf("the place of object %s is outside the pack", e.id.digest())
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// check bounds what reading the object allocates.
func (e packEntry) check() error {
	if e.size > maxObject || e.stored > e.size {
		return errors.New("its lengths cannot be true")
	}
	return nil
}

// A chunk is one entry of a chunk list.
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

// decodeList reads the list of a content of size bytes.
func decodeList(b []byte, size int64) ([]chunk, error) {
	rest, ok := bytes.CutPrefix(b, []byte(listMagic))
	if !ok || len(rest)%listEntrySize != 0 {
		return nil, errors.New("not a list of chunks")
	}
	chunks := make([]chunk, 0, len(rest)/listEntrySize)
	for ; len(rest) > 0; rest = rest[listEntrySize:] {
		c := chunk{id: id(rest[:32]), size: binary.LittleEndian.Uint32(rest[32:])}
		if c.size == 0 || c.size > maxChunk {
			return nil, errors.New("a chunk's size cannot be true")
		}
		size -= int64(c.size)
		chunks = append(chunks, c)
	}
	if size != 0 {
		return nil, errors.New("the chunks are not as long as the content")
	}
	return chunks, nil
}

// fail returns err as a typed error: one that is typed already is as it was.
func fail(op turnstone.Op, subject string, err error) error {
	var typed *turnstone.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	kind := turnstone.KindUnavailable
	switch {
	case errors.Is(err, context.Canceled):
		kind = turnstone.KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError(op, kind, subject, err)
}

// damaged returns an error of kind Integrity.
func damaged(op turnstone.Op, subject string, err error) error {
	return turnstone.NewError(op, turnstone.KindIntegrity, subject, err).
		WithHint("`turn fsck` names everything that is damaged")
}
