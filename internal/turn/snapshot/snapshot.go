// Package snapshot stores the machine of a turn as of the end of its steps.
package snapshot

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
)

// A Snapshot is a machine in a folder, before it is in the store.
type Snapshot struct {
	parts Parts
	base  *machineBase     // nil: the machine needs no base
	batch *store.Batch     // the open batch with the machine's files, after Put
	ref   *turnstone.VMRef // nil before Put
}

// Parts are the input of a snapshot.
type Parts struct {
	Domain  turnstone.DomainID // of the session; empty: not sealed
	Dir     string             // its folder vm contains the machine's files
	Release func()             // removes Dir
	Packed  substrate.Packed
	Recipes []turnstone.ImageRecipe // of the images that the machine has as layers
	Image   *turnstone.Content      // the template's root image
	Below   []turnstone.TreeRef     // the template's layers
	// WriteBase writes the base of Packed into the folder out; nil: the machine needs no base.
	WriteBase func(ctx context.Context, out string) (files []string, err error)
}

// Take saves the machine of s. The caller removes the snapshot.
func Take(ctx context.Context, h *statedir.Dir, cs *repo.ContextStore, s *sandbox.Sandbox) (
	*Snapshot, error) {
	p := Parts{Domain: cs.Of()}
	var err error
	if p.Dir, p.Release, err = Folder(h, cs); err != nil {
		return nil, err
	}
	defer s.Guard(ctx)()
	p.Packed, err = s.Keep(ctx, filepath.Join(p.Dir, "vm"))
	if err == nil {
		p.WriteBase = s.BaseWriter(p.Packed)
		p.Recipes, err = cs.Images.Recipes(s.Source().Layers)
	}
	if err == nil {
		p.Image = &turnstone.Content{Digest: s.Source().RootDigest}
		p.Image.Size, err = fileSize(s.Source().Root)
	}
	for _, l := range s.Template.Layers {
		p.Below = append(p.Below, l.Tree)
	}
	var vm *Snapshot
	if err == nil {
		vm, err = Of(h, p)
	}
	if err != nil {
		p.Release()
		return nil, err
	}
	return vm, nil
}

// Folder creates a folder for a machine that is saved or restored: in memory, if cs is the view of a
// domain.
func Folder(h *statedir.Dir, cs *repo.ContextStore) (dir string, release func(), err error) {
	if cs.Sealed() {
		return repo.MemoryFolder(h, repo.MemoryOfMachines, rand.Text())
	}
	return sandboxes.NewStore(h.Root).Folder()
}

// Of returns the snapshot of parts. The note about its base is in the state directory.
func Of(h *statedir.Dir, parts Parts) (*Snapshot, error) {
	base, err := baseOf(h, parts)
	return &Snapshot{parts: parts, base: base}, err
}

// Ref returns the description of the machine for the turn's record; nil: the machine is not in the
// store.
func (vm *Snapshot) Ref() *turnstone.VMRef {
	if vm == nil {
		return nil
	}
	return vm.ref
}

// Remove removes the folder, and the stored files if no record names them.
func (vm *Snapshot) Remove() {
	if vm == nil {
		return
	}
	if vm.batch != nil {
		_ = vm.batch.Close()
	}
	vm.parts.Release()
}

// Put adds the machine's files to the store, in a separate batch: an error ends a batch, and the
// turn's files are in another batch. The batch stays open, so that its objects are not deleted
// before the turn's record names them.
func (vm *Snapshot) Put(ctx context.Context, s *store.Store) error {
	if vm.ref != nil {
		return nil
	}
	b, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	vm.batch = b
	ref := &turnstone.VMRef{Layers: vm.parts.Recipes, Image: vm.parts.Image, Below: vm.parts.Below}
	for _, name := range vm.parts.Packed.Files {
		c, err := putFile(ctx, b, filepath.Join(vm.parts.Dir, "vm", name))
		if err != nil {
			return err
		}
		ref.Files = append(ref.Files, turnstone.VMFile{Name: name, Content: c})
	}
	base, noted, err := vm.base.put(ctx, s, b, filepath.Join(vm.parts.Dir, "base"))
	if err != nil {
		return err
	}
	ref.Files = append(ref.Files, base...)
	if err := b.Flush(ctx); err != nil {
		return err
	}
	noted()
	vm.ref = ref
	return nil
}

func fileSize(path string) (int64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func putFile(ctx context.Context, w tree.ContentPutter, path string) (turnstone.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return turnstone.Content{}, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return turnstone.Content{}, err
	}
	return w.PutContent(ctx, f, st.Size())
}
