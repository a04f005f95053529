package snapshot

import (
	"context"
	"io"
	"io/fs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/substrate"
)

// Stored returns the files of a kept machine in s. Files are looked up by their names in the record
// and never by a path, because the record may be imported. ctx bounds the reads.
func Stored(ctx context.Context, s *store.Store, vm *turnstone.VMRef) substrate.PackedFiles {
	return machineFiles{ctx, s, vm}
}

type machineFiles struct {
	ctx   context.Context
	store *store.Store
	vm    *turnstone.VMRef
}

// Open implements substrate.PackedFiles. The content is verified while it is read.
func (m machineFiles) Open(name string) (io.ReadCloser, error) {
	for _, f := range m.vm.Files {
		if f.Name == name {
			return m.store.OpenContent(m.ctx, f.Content)
		}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
