package repo

import (
	"context"

	"turnstone.dev/turnstone"
)

// Layers returns the layers of all built templates, including templates whose spec has changed
// since: the store keeps all data that they need. A layer that was built with another store is
// omitted; its user builds the layer again.
func (cs *ContextStore) Layers(ctx context.Context) ([]turnstone.TemplateLayer, error) {
	var kept []turnstone.TemplateLayer
	all, err := cs.specs.BuiltLayers()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		has, err := cs.Store.Has(ctx, l.Tree.Root)
		if err != nil {
			return nil, err
		}
		if has {
			kept = append(kept, l)
		}
	}
	return kept, nil
}

// TemplateTree returns the tree of a template. It puts missing directories of the tree into the
// public part of the store, and lets the store find the template's files.
func (cs *ContextStore) TemplateTree(ctx context.Context,
	tmpl *turnstone.Template) (turnstone.TreeRef, error) {
	ref, err := cs.RootTree(ctx, tmpl)
	if n := len(tmpl.Layers); n > 0 {
		ref = tmpl.Layers[n-1].Tree
	}
	return ref, err
}

// RootTree is TemplateTree for the template's root image only, without its layers.
func (cs *ContextStore) RootTree(ctx context.Context, tmpl *turnstone.Template) (turnstone.TreeRef,
	error) {
	if cs.public != nil {
		cs = cs.public
	}
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	defer func() { _ = batch.Close() }()
	ref, err := cs.specs.RootTree(ctx, tmpl, batch)
	if err != nil {
		return ref, err
	}
	return ref, batch.Flush(ctx)
}

// IndexTemplate lets the store find the files of a template that was just built: an imported
// session may need them.
func (x *Repo) IndexTemplate(ctx context.Context, t *turnstone.Template) error {
	if !x.HasSessions() {
		return nil // there is no session yet
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return err
	}
	_, err = cs.TemplateTree(ctx, t)
	return err
}
