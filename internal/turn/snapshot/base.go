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

// A machineBase is what kept machines of one snapshot of a template differ from. It is in the
// store once: the first machine that is kept puts it there, and those after it find it by a
// note, which is a file.
type machineBase struct {
	digest turnstone.Digest
	notes  string // folder
	write  func(ctx context.Context, out string) (files []string, err error)
}

// noteAge is how long a note is kept that no machine was kept by.
const noteAge = 30 * 24 * time.Hour

// baseOf returns what a machine of these parts differs from; nil where it stands alone.
func baseOf(h *statedir.Dir, parts Parts) (*machineBase, error) {
	if parts.WriteBase == nil {
		return nil, nil
	}
	notes, err := h.MkdirAll("cache", "bases")
	if err != nil {
		return nil, err
	}
	return &machineBase{parts.Packed.Base, notes, parts.WriteBase}, nil
}

// put returns the base's files in the store, which b puts there unless they are. tmp is a folder
// to make. noted is to be called when b was flushed.
func (m *machineBase) put(ctx context.Context, s *store.Store, b *store.Batch,
	tmp string) (files []turnstone.VMFile, noted func(), err error) {
	if m == nil {
		return nil, func() {}, nil
	}
	if files, has := m.recall(ctx, s); has {
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

func (m *machineBase) path() string { return filepath.Join(m.notes, m.digest.Hex()+".json") }

// note remembers what the files are. Where that fails, they are packed again.
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

// recall returns what note has remembered, if all of it is in the store. A batch that is open
// keeps it there.
func (m *machineBase) recall(ctx context.Context, s *store.Store) (files []turnstone.VMFile,
	has bool) {
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
			if has, err := s.Has(ctx, d); err != nil || !has {
				return nil, false
			}
		}
	}
	now := time.Now()
	_ = os.Chtimes(m.path(), now, now)
	return files, true
}
