// Package snapshot keeps the machine of a turn in the store, as it is at the end of the steps.
package snapshot

import (
	"context"
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

// A Snapshot is a machine in a folder, until it is in the store.
type Snapshot struct {
	parts Parts
	base  *machineBase     // nil: it stands alone
	batch *store.Batch     // with its files, once they are in the store
	ref   *turnstone.VMRef // nil before
}

// Parts are what a snapshot is made of.
type Parts struct {
	Dir     string // the machine's files are in its folder vm
	Release func() // frees Dir
	Packed  substrate.Packed
	Recipes []turnstone.ImageRecipe // of the images that it lies on
	Image   *turnstone.Content      // the template's
	Below   []turnstone.TreeRef     // the template's layers
	// WriteBase writes what Packed is the difference from into the folder out; nil: it is whole.
	WriteBase func(ctx context.Context, out string) (files []string, err error)
}

// Take writes the machine of s down. Its caller removes the snapshot.
func Take(ctx context.Context, h *statedir.Dir, cs *repo.ContextStore, s *sandbox.Sandbox) (
	*Snapshot, error) {
	p := Parts{}
	var err error
	if p.Dir, p.Release, err = sandboxes.NewStore(h.Root).Folder(); err != nil {
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

// Of returns the snapshot of parts, with a note in the state directory of what it is the difference
// from.
func Of(h *statedir.Dir, parts Parts) (*Snapshot, error) {
	base, err := baseOf(h, parts)
	return &Snapshot{parts: parts, base: base}, err
}

// Ref is what the turn's record says of the machine; nil: it is not in the store.
func (vm *Snapshot) Ref() *turnstone.VMRef {
	if vm == nil {
		return nil
	}
	return vm.ref
}

// Remove frees the folder, and what is in the store without a record that names it.
func (vm *Snapshot) Remove() {
	if vm == nil {
		return
	}
	if vm.batch != nil {
		_ = vm.batch.Close()
	}
	vm.parts.Release()
}

// Put puts the machine's files into the store, in a batch of their own: an error ends a
// batch, and the turn's files are in another. The batch stays open, so that nothing of it is
// deleted before the turn's record names it.
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
