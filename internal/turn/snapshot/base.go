package snapshot

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
)

// A machineBase is the base of the kept machines of one snapshot of a template: the machines are
// stored as differences from it. The store has the base once: the first kept machine adds it, and
// later machines find it by a note, which is a file.
type machineBase struct {
	digest turnstone.Digest
	domain turnstone.DomainID // whose view of the store has it: each domain has its own
	notes  string             // folder of the notes
	write  func(ctx context.Context, out string) (files []string, err error)
}

// noteAge is how long an unused note is kept.
const noteAge = 30 * 24 * time.Hour

// baseOf returns the base of a machine of these parts; nil if the machine needs no base.
func baseOf(h *statedir.Dir, parts Parts) (*machineBase, error) {
	if parts.WriteBase == nil {
		return nil, nil
	}
	notes, err := h.MkdirAll("cache", "bases")
	if err != nil {
		return nil, err
	}
	return &machineBase{parts.Packed.Base, parts.Domain, notes, parts.WriteBase}, nil
}

// put returns the base's files in the store. b adds missing files. tmp is the path of a folder to
// create. noted must be called after b was flushed.
func (m *machineBase) put(ctx context.Context, s *store.Store, b *store.Batch,
	tmp string) (files []turnstone.VMFile, noted func(), err error) {
	if m == nil {
		return nil, func() {}, nil
	}
	if files, has := m.recall(ctx, s, b); has {
		return files, func() {}, nil
	}
	names, err := m.write(ctx, tmp)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	for _, name := range names {
		c, err := putFile(ctx, b, filepath.Join(tmp, name))
		if err != nil {
			return nil, nil, err
		}
		files = append(files, turnstone.VMFile{Name: name, Content: c})
	}
	return files, func() { m.note(files) }, nil
}

func (m *machineBase) path() string {
	return filepath.Join(m.notes, m.digest.Hex()+string(m.domain)+".json")
}

// note records the files of the base. If that fails, the next machine adds them again.
func (m *machineBase) note(files []turnstone.VMFile) {
	old, _ := filepath.Glob(filepath.Join(m.notes, "*.json"))
	for _, path := range old {
		if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > noteAge {
			_ = os.Remove(path)
		}
	}
	b, _ := json.Marshal(files) // plain data always encodes
	_ = filestamp.WriteFile(m.path(), b, 0o600)
}

// recall returns the files that note has recorded, if the store has all of them. An open batch
// prevents their deletion.
func (m *machineBase) recall(ctx context.Context, s *store.Store, batch *store.Batch) (
	files []turnstone.VMFile, has bool) {
	b, err := os.ReadFile(m.path())
	if err != nil || json.Unmarshal(b, &files) != nil || len(files) == 0 {
		return nil, false
	}
	for _, f := range files {
		objects, err := s.ContentObjects(ctx, f.Content)
		if err != nil {
			return nil, false
		}
		for _, d := range objects {
			if has, err := batch.Stored(ctx, d); err != nil || !has {
				return nil, false
			}
		}
	}
	now := time.Now()
	_ = os.Chtimes(m.path(), now, now)
	return files, true
}
