package snapshot

import (
	"context"
	"io"
	"io/fs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/substrate"
)

// Stored returns the files of a machine that was kept, which lie in s. They are opened by the names
// that a record has for them, and nothing by a path: the record may be imported. ctx bounds the
// reads.
func Stored(ctx context.Context, s *store.Store, vm *turnstone.VMRef) substrate.PackedFiles {
	return machineFiles{ctx, s, vm}
}

type machineFiles struct {
	ctx   context.Context
	store *store.Store
	vm    *turnstone.VMRef
}

// Open implements substrate.PackedFiles. What it returns is verified as it is read.
func (m machineFiles) Open(name string) (io.ReadCloser, error) {
	for _, f := range m.vm.Files {
		if f.Name == name {
			return m.store.OpenContent(m.ctx, f.Content)
		}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
