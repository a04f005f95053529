package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone/internal/store/seal"
)

// Any accepted input encodes to the same bytes: there is already a single encoding.

func FuzzTable(f *testing.F) {
	entries := []packEntry{{id: sha256.Sum256([]byte("a")), off: 8, stored: 3, size: 10},
		{id: sha256.Sum256([]byte("b")), off: 11, stored: 5, size: 5}}
	table, _ := encodeTable(entries, seal.ID{})
	f.Add(table, int64(16))
	f.Add(table[:20], int64(16))
	for i := range entries {
		entries[i] = packEntry{id: entries[i].id, off: uint32(24 + 92*i), stored: 92, sum: 7,
			sealed: true}
	}
	table, _ = encodeTable(entries, seal.ID{1})
	f.Add(table, int64(24+2*92))
	f.Add(table[20:], int64(24+2*92))
	f.Fuzz(func(t *testing.T, b []byte, data int64) {
		if len(b) < packTrailerSize {
			return
		}
		// otherwise nothing passes the digest check
		name := id(sha256.Sum256(b[:len(b)-packTrailerSize]))
		size := data%maxPack + int64(len(b))
		got, end, err := decodeTable(b, name, size)
		if err != nil {
			return
		}
		for _, e := range got {
			if e.size > MaxObject || e.stored > maxSealed || e.sealed == end.domain.IsZero() ||
				int64(e.off)+int64(e.stored) > size-int64(len(b)) {
				t.Fatalf("an object outside the pack: %+v", e)
			}
		}
		// The zeros of the trailer are not checked, and an old table may be unsorted.
		again, _ := encodeTable(got, end.domain)
		if len(again) != len(b) {
			t.Fatalf("%d bytes become %d", len(b), len(again))
		}
		if twice, _, err := decodeTable(again, sha256.Sum256(again[:len(b)-packTrailerSize]),
			size); err != nil || len(twice) != len(got) {
			t.Fatalf("an encoded table is not decoded: %v", err)
		}
	})
}

func FuzzList(f *testing.F) {
	f.Add(encodeList([]chunk{{id: sha256.Sum256([]byte("a")), size: 70_000}, {size: 1}}),
		int64(70_001))
	f.Add(encodeList(nil), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		chunks, err := decodeList(b, size)
		if err != nil {
			return
		}
		var sum int64
		for _, c := range chunks {
			sum += int64(c.size)
		}
		if sum != size || !bytes.Equal(encodeList(chunks), b) {
			t.Fatal("a list that is not what it says")
		}
	})
}

// segmentFile returns a small segment's bytes; every second pack is sealed if sealed is set.
func segmentFile(t testing.TB, sealed bool) []byte {
	t.Helper()
	packs := []*newPack{{packInfo: packInfo{id: id{1}, size: 1 << 20, raw: 1 << 21, objects: 100}},
		{packInfo: packInfo{id: id{2}, size: 1 << 20, raw: 1 << 21, objects: 100}}}
	if sealed {
		packs[1].domain = seal.ID{3}
	}
	for i := range 200 {
		p := packs[i%2]
		e := packEntry{id: sha256.Sum256([]byte{byte(i)}), off: uint32(24 + i), stored: 1}
		if e.sealed = !p.domain.IsZero(); e.sealed {
			e.sum = 9
		} else {
			e.size = 1
		}
		p.entries = append(p.entries, e)
	}
	var sources []iter.Seq2[place, error]
	var infos []packInfo
	for _, p := range packs {
		encodeTable(p.entries, p.domain) // sorts them
		infos = append(infos, p.packInfo)
		sources = append(sources, p.places())
	}
	var b bytes.Buffer
	places := merge(t.Context(), sources, func(place) bool { return true })
	if err := writeSegment(&b, infos, 200, places); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func FuzzSegment(f *testing.F) {
	for _, sealed := range []bool{false, true} {
		good := segmentFile(f, sealed)
		f.Add(good, []byte{0})
		f.Add(good[:blockSize], []byte{1, 2})
		f.Add(append([]byte{}, good[:segHeaderSize]...), []byte{})
	}
	path := filepath.Join(f.TempDir(), "x.seg")
	f.Fuzz(func(t *testing.T, b, want []byte) {
		if err := os.WriteFile(path, withSums(b), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openSegment(path, "x")
		if err != nil {
			return
		}
		defer func() { _ = s.f.Close() }()
		ordered := s.check(t.Context()) == nil
		for p, err := range s.all() {
			if err != nil {
				break
			}
			// In a sorted segment each entry is found.
			if got, err := s.find(p.id, nil); ordered && (err != nil || len(got) == 0) {
				t.Fatalf("%s is in it and not found: %v", p.id.digest(), err)
			}
		}
		_, _ = s.find(sha256.Sum256(want), nil)
	})
}

// withSums corrects the checksums of a segment, so that the checks after them are tested too.
func withSums(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < segHeaderSize {
		return b
	}
	start := segHeaderSize + int64(binary.LittleEndian.Uint32(b[8:]))*
		int64(segmentPackSize(string(b[:8]) == sealedSegment))
	if start > int64(len(b)) {
		return b
	}
	sum := crc32.Update(crc32.Checksum(b[:segHeaderSize-4], castagnoli),
		castagnoli, b[segHeaderSize:start])
	binary.LittleEndian.PutUint32(b[segHeaderSize-4:], sum)
	for blocks := b[start:]; len(blocks) >= blockSize; blocks = blocks[blockSize:] {
		binary.LittleEndian.PutUint32(blocks[blockSize-4:],
			crc32.Checksum(blocks[:blockSize-4], castagnoli))
	}
	return b
}

// TestSegmentFind finds the entries of a segment of many blocks, also if ids are not evenly spread.
func TestSegmentFind(t *testing.T) {
	for name, make := range map[string]func(i int) id{
		"even": func(i int) id {
			return sha256.Sum256([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
		},
		"low": func(i int) id { return id{30: byte(i >> 8), 31: byte(i)} },
		"high": func(i int) id {
			return id{0: 255, 1: 255, 2: 255, 3: 255, 20: byte(i >> 16),
				30: byte(i >> 8), 31: byte(i)}
		},
		"twice": func(i int) id { return id{0: byte(i >> 9), 1: byte(i >> 1)} },
		"halves": func(i int) id {
			return id{0: byte(i%2) * 255, 29: byte(i >> 16), 30: byte(i >> 8), 31: byte(i)}
		},
	} {
		for _, n := range []int{1, 84, 85, 86, 170, 171, 4_000} {
			p := &newPack{packInfo: packInfo{id: id{1}, size: 1 << 20, objects: uint32(n)}}
			for i := range n {
				p.entries = append(p.entries, packEntry{id: make(i), off: uint32(i + 8)})
			}
			encodeTable(p.entries, seal.ID{})
			path := filepath.Join(t.TempDir(), "x.seg")
			var b bytes.Buffer
			if err := writeSegment(&b, []packInfo{p.packInfo}, n, p.places()); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := openSegment(path, "x")
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				got, err := s.find(make(i), nil)
				want := 1
				if name == "twice" && !(i == n-1 && n%2 == 1) {
					want = 2
				}
				if err != nil || len(got) < want {
					t.Fatalf("%s, %d: entry %d: %d places, %v", name, n, i, len(got), err)
				}
				miss := make(i)
				miss[15] ^= 0x55
				if got, err := s.find(miss, nil); err != nil || len(got) != 0 {
					t.Fatalf("%s, %d: found what is not there, or %v", name, n, err)
				}
			}
			_ = s.f.Close()
		}
	}
}

// TestSegmentDamage flips bytes of a segment: no lookup returns a wrong answer.
func TestSegmentDamage(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		good := segmentFile(t, sealed)
		path := filepath.Join(t.TempDir(), "x.seg")
		for at := 0; at < len(good); at += 61 {
			b := bytes.Clone(good)
			b[at] ^= 0x10
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := openSegment(path, "x")
			if err != nil {
				continue
			}
			found := 0
			for i := range 200 {
				got, err := s.find(sha256.Sum256([]byte{byte(i)}), nil)
				if err != nil {
					continue
				}
				want := place{pack: id{byte(1 + i%2)}, packEntry: packEntry{
					id: sha256.Sum256([]byte{byte(i)}), off: uint32(24 + i), stored: 1, size: 1}}
				if sealed && i%2 == 1 {
					want.domain = seal.ID{3}
					want.size, want.sum, want.sealed = 0, 9, true
				}
				if len(got) != 1 || got[0] != want {
					t.Fatalf("byte %d: a wrong answer: %+v", at, got)
				}
				found++
			}
			if found == 200 {
				t.Fatalf("byte %d of %d is not noticed", at, len(good))
			}
			_ = s.f.Close()
		}
	}
}
