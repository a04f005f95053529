package store

import (
	"context"
	"fmt"

	"turnstone.dev/turnstone"
)

// readTable reads a pack's table. size is the size of its blob, -1 if unknown.
func (s *Store) readTable(ctx context.Context, pack id, size int64) (*newPack, error) {
	const op = "store.pack"
	name := packName(pack)
	bad := func(err error) (*newPack, error) { return nil, damaged(op, name, err) }
	if size < 0 {
		for info, err := range s.blobs.List(ctx, name) {
			if err != nil {
				return nil, err
			}
			size = info.Size
		}
		if size < 0 {
			return nil, turnstone.Errorf(op, turnstone.KindNotFound, name,
				"the pack does not exist")
		}
	}
	if size < int64(len(packMagic))+packTrailerSize || size > 2*maxPack {
		return bad(fmt.Errorf("the pack is too short: %d bytes", size))
	}
	// Most tables fit into the first guess.
	b := make([]byte, min(size, 16<<10))
	if err := s.packs.Fill(ctx, name, b, size-int64(len(b))); err != nil {
		return nil, err
	}
	end, err := readEnding(b, size)
	if err != nil {
		return bad(err)
	}
	if end.size > int64(len(b)) {
		b = make([]byte, end.size)
		if err := s.packs.Fill(ctx, name, b, size-end.size); err != nil {
			return nil, err
		}
	}
	entries, end, err := decodeTable(b[int64(len(b))-end.size:], pack, size)
	if err != nil {
		return bad(err)
	}
	t := &newPack{packInfo: packInfo{id: pack, size: size, domain: end.domain,
		objects: uint32(len(entries))}, entries: entries, sum: end.sum}
	for _, e := range entries {
		t.raw += e.bytes()
	}
	return t, nil
}
