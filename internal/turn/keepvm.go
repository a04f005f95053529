package turn

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
)

// A vmSnapshot is a machine in a folder, until it is in the store.
type vmSnapshot struct {
	dir     string
	release func()
	packed  substrate.Packed
	base    *machineBase            // nil: it stands alone
	recipes []turnstone.ImageRecipe // of the images that it lies on
	image   *turnstone.Content      // the template's
	below   []turnstone.TreeRef     // the template's layers
	batch   *store.Batch            // with its files, once they are in the store
	ref     *turnstone.VMRef        // nil before
}

// collectAll takes what the turn leaves out of the sandbox whose steps are over: its machine
// where that was asked for, and its files, also where the machine cannot be kept.
func (r *run) collectAll(ctx context.Context, s *Sandbox) error {
	var unkept error
	if r.plan.Snapshot == document.SnapshotVM {
		if unkept = r.takeSnapshot(ctx, s); unkept != nil && isCancel(ctx) {
			return sandbox.Interrupted(ctx, unkept, "while its machine was kept")
		}
		r.clock.lap("snapshot")
	}
	left, err := r.collect(ctx, s, r.x.bounds(r.plan))
	if r.clock.lap("collect"); unkept == nil {
		unkept = r.restless
	}
	switch {
	case err != nil && turnstone.KindOf(err) == turnstone.KindDead && s.Ended() && r.info.Result != turnstone.ResultPassed:
		// It had to be ended to end the step, and what it changed with it.
		r.noteStateLost()
		left = nil
	case err != nil && unkept != nil:
		return fmt.Errorf("%w; nor are its files: %w", snapshotError(unkept), err)
	case err != nil:
		return sandbox.Interrupted(ctx, err, "while what the turn changed was taken")
	}
	if r.collected = left; unkept != nil {
		r.dropSnapshot(unkept)
	}
	return nil
}

// dropSnapshot says that the turn's machine is not kept, and why. The turn's files are.
func (r *run) dropSnapshot(err error) {
	r.snapshot.remove()
	r.snapshot, r.info.Snapshot, r.info.Lifetime = nil, "", ""
	if err = snapshotError(err); r.info.Result != turnstone.ResultPassed {
		if r.info.Error == "" { // the step is the news
			r.setError(err)
		}
		return
	}
	r.fail(err)
}

func snapshotError(err error) error {
	return turnstone.NewError("executor.keep", turnstone.KindOf(err), "its machine is not kept",
		err).WithHint(turnstone.HintOf(err))
}

// takeSnapshot writes the machine down as it is at the end of the steps.
func (r *run) takeSnapshot(ctx context.Context, s *Sandbox) error {
	dir, release, err := sandboxes.NewStore(r.x.home).Folder()
	if err != nil {
		return err
	}
	vm := &vmSnapshot{dir: dir, release: release}
	defer s.Guard(ctx)()
	if vm.packed, err = s.Keep(ctx, filepath.Join(dir, "vm")); err != nil {
		vm.remove()
		return err
	}
	if vm.base, err = baseOf(r.x.home, s, vm.packed); err == nil {
		vm.recipes, err = r.at.cs.Images.Recipes(s.Source().Layers)
	}
	if err == nil {
		vm.image = &turnstone.Content{Digest: s.Source().RootDigest}
		vm.image.Size, err = fileSize(s.Source().Root)
	}
	for _, l := range r.at.layers {
		vm.below = append(vm.below, l.Tree)
	}
	if err != nil {
		vm.remove()
		return err
	}
	r.snapshot, r.info.Snapshot = vm, document.SnapshotVM
	return nil
}

// remove frees the folder, and what is in the store without a record that names it.
func (vm *vmSnapshot) remove() {
	if vm == nil {
		return
	}
	if vm.batch != nil {
		_ = vm.batch.Close()
	}
	vm.release()
}

// put puts the machine's files into the store, in a batch of their own: an error ends a
// batch, and the turn's files are in another. The batch stays open, so that nothing of it is
// deleted before the turn's record names it.
func (vm *vmSnapshot) put(ctx context.Context, s *store.Store) error {
	if vm.ref != nil {
		return nil
	}
	b, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	vm.batch = b
	ref := &turnstone.VMRef{Layers: vm.recipes, Image: vm.image, Below: vm.below}
	for _, name := range vm.packed.Files {
		c, err := putFile(ctx, b, filepath.Join(vm.dir, "vm", name))
		if err != nil {
			return err
		}
		ref.Files = append(ref.Files, turnstone.VMFile{Name: name, Content: c})
	}
	base, noted, err := vm.base.put(ctx, s, b, filepath.Join(vm.dir, "base"))
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

// putMachine puts the turn's machine into the store. Where that fails, the turn is kept
// without it.
func (r *run) putMachine(ctx context.Context) error {
	if r.snapshot == nil {
		return nil
	}
	if err := r.snapshot.put(ctx, r.at.cs.Store); err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.dropSnapshot(err)
	}
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
