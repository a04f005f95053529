package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/image"
	"turnstone.dev/turnstone/network"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/template"
)

// Resume starts the machine that the turn ref was kept with (snapshot: vm): it goes
// on with the processes that ran, in a sandbox that stays. ttl is how long, 0 for ever.
func (x *Executor) Resume(ctx context.Context, ref, name string, ttl time.Duration, progress func(string)) (sandboxes.Info, error) {
	return x.resume(ctx, ref, sandboxes.Spec{Name: name, TTL: ttl}, progress)
}

// resumedNetwork is what a resumed machine asks of its network where its caller says nothing:
// its turn's rules. They may be imported, and count as a document's, within what is granted today.
// src is the document that was run.
func (x *Executor) resumedNetwork(rec *Record, src []byte) (*network.Spec, error) {
	s := rec.Network.spec()
	asked := network.Spec{Allow: s.Allow, Deny: s.Deny, Only: s.Only, NoHostCA: s.NoHostCA, Asked: true}
	host, err := x.hostNetwork()
	if err != nil {
		return nil, err
	}
	if host.Default == "off" && len(asked.Allow) == 0 && !saysNetwork(src) {
		asked.Only = true // its card is part of the machine, and nobody answers
	}
	return &asked, nil
}

// saysNetwork tells whether a document that ran says that there is to be a network.
func saysNetwork(src []byte) bool {
	doc, err := document.Parse("turn.md", src)
	return err == nil && doc.Front.Network != nil && *doc.Front.Network
}

// resume is Resume into a sandbox that spec names.
func (x *Executor) resume(ctx context.Context, ref string, spec sandboxes.Spec, progress func(string)) (sandboxes.Info, error) {
	var none sandboxes.Info
	cs, err := x.context(ctx)
	if err != nil {
		return none, err
	}
	t, err := cs.db.Resolve(ctx, ref)
	if err != nil {
		return none, err
	}
	rec, err := cs.record(ctx, t)
	if err != nil {
		return none, err
	}
	if rec.VM == nil {
		return none, &turnstone.Error{Op: "executor.resume", Kind: turnstone.NotFound, Subject: fmt.Sprintf("turn %d", rec.Number),
			Err: errors.New("its machine was not kept"), Hint: "run it with snapshot: vm, or begin a turn on its files"}
	}
	if spec.Network == nil && rec.Shape.Network {
		src, err := cs.read(ctx, rec.Document, document.MaxFile)
		if err != nil {
			return none, err
		}
		if spec.Network, err = x.resumedNetwork(rec, src); err != nil {
			return none, err
		}
	}
	var below image.History = func(func(image.Item, error) bool) {}
	at := &branchPoint{cs: cs} // its disk lies on what it began with
	if at.layers = x.layersBelow(ctx, rec); at.layers != nil {
		below = at.history(ctx)
	}
	if p := t.Parent(); p != "" {
		parent, err := cs.db.Turn(ctx, p)
		if err != nil {
			return none, err
		}
		at.parent, below = &parent, at.history(ctx)
	}
	paths, release, err := cs.images.Remake(ctx, rec.VM.Layers, below)
	if err != nil {
		return none, err
	}
	defer release()
	dir, remove, err := x.unpackVM(ctx, cs, rec, paths, progress)
	if err != nil {
		return none, err
	}
	defer remove()
	spec.Image, spec.Shape, spec.Substrate, spec.From = rec.Image, rec.Shape, or(rec.Substrate, "auto"), dir
	if rec.VM.Image != nil {
		spec.Root = rec.VM.Image.Digest
	}
	return sandboxes.NewStore(x.home).Create(ctx, spec, progress)
}

// layersBelow are the template's layers, below the first turn of rec's session.
func (x *Executor) layersBelow(ctx context.Context, rec *Record) (layers []template.Layer) {
	if rec.VM.Image == nil { // of an older program
		if tmpl, err := x.builtTemplate(ctx, rec.Image); err == nil {
			return tmpl.Layers
		}
	}
	for _, ref := range rec.VM.Below {
		layers = append(layers, template.Layer{Tree: ref})
	}
	return layers
}

// unpackVM makes a folder that a machine can be restored from.
func (x *Executor) unpackVM(ctx context.Context, cs *contextStore, rec *Record, layers []string, progress func(string)) (dir string, remove func(), err error) {
	p := &plan{image: rec.Image, shape: rec.Shape, driver: or(rec.Substrate, "auto"), kept: true,
		wants: wants{cpus: rec.Shape.CPUs, memory: rec.Shape.Memory, disk: rec.Shape.Disk}}
	if err := rec.Shape.Validate(); err != nil { // the record may be imported
		return "", nil, &turnstone.Error{Op: "executor.resume", Kind: turnstone.Integrity, Subject: fmt.Sprintf("turn %d", rec.Number), Err: err, Hint: "begin a turn on its files"}
	}
	if err := x.admit(p); err != nil {
		return "", nil, err
	}
	ctx, stop := x.watchSpace(ctx, p.limits.FreeSpace)
	defer stop()
	if p.anonymous, err = x.strangersImage(rec.Image); err != nil {
		return "", nil, err
	}
	if p.template, err = x.keptTemplate(ctx, cs, rec, p.anonymous, progress); err != nil {
		return "", nil, err
	}
	src, err := x.machine(ctx, p, progress, newStopwatch())
	if err != nil {
		return "", nil, err
	}
	driver, err := src.keeper()
	if err != nil {
		return "", nil, err
	}
	m := src.machine
	m.Layers = layers
	dir, remove, err = x.unpack(ctx, driver, m, cs.machineFiles(ctx, rec.VM))
	if low := lowSpace(ctx); err != nil && low != nil {
		err = low
	}
	return dir, remove, err
}

// machineFiles are the files of a machine that was kept, which lie in the store.
func (cs *contextStore) machineFiles(ctx context.Context, vm *VMRef) fs.FS {
	return &machineFiles{ctx: ctx, cs: cs, vm: vm}
}

// A machineFiles opens contents by the names that a record has for them, and nothing by a
// path: the record may be imported.
type machineFiles struct {
	ctx context.Context
	cs  *contextStore
	vm  *VMRef
}

// Open implements fs.FS. What it returns is verified as it is read.
func (m *machineFiles) Open(name string) (fs.File, error) {
	for _, f := range m.vm.Files {
		if f.Name != name {
			continue
		}
		in, err := m.cs.store.OpenContent(m.ctx, f.Content)
		if err != nil {
			return nil, err
		}
		return machineFile{in}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// A machineFile is one of them, of which nothing is known but what is in it.
type machineFile struct{ io.ReadCloser }

// Stat implements fs.File.
func (machineFile) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }
