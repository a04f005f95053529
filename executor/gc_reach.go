package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A reach goes through everything that turns need: records, receipts, outputs,
// states, trees, contents.
type reach struct {
	cs *contextStore
	// object is called for each object but those of contents; first tells whether
	// it, and what it names, has to be gone through.
	object func(d turnstone.Digest) (first bool)
	// got is called with each object for which object said so; may be nil.
	got func(d turnstone.Digest, b []byte) error
	// verify, when it is not nil, checks that trees are what they say of themselves:
	// FS hashes and hard links. Those that come from elsewhere may say what is not so.
	verify *tree.Verifier
	// content is called for each file's, output's and receipt's content.
	content func(ctx context.Context, c tree.Content) error
	// failed is called with what cannot be read; nil that it returns lets it go on
	// with the rest.
	failed func(what string, err error) error
}

// turn goes through all that t needs; not through its parents.
func (r *reach) turn(ctx context.Context, t session.Turn) error {
	if t.Record == "" {
		return nil
	}
	what := fmt.Sprintf("turn %d (%s)", t.Number, t.ID)
	if !r.object(t.Record) {
		return nil
	}
	if _, err := r.get(ctx, t.Record); err != nil {
		return r.failed(what+": record", err)
	}
	rec, err := r.cs.record(ctx, t)
	if err != nil {
		return r.failed(what+": record", err)
	}
	if rec.State != t.State {
		err := turnstone.Errorf("executor.reach", turnstone.KindIntegrity, string(t.Record),
			"names another state than the session does")
		if err := r.failed(what, err); err != nil {
			return err
		}
	}
	for _, c := range recordContents(rec) {
		if err := r.content(ctx, c.content); err != nil {
			if err = r.failed(what+": "+c.what, err); err != nil {
				return err
			}
		}
	}
	if err := r.below(ctx, what, rec.VM); err != nil || rec.State == "" {
		return err
	}
	return r.state(ctx, what, rec.State)
}

// below goes through the trees that the images of a kept machine are made of, as far as they
// are here: those of a template may come with it.
func (r *reach) below(ctx context.Context, what string, vm *VMRef) error {
	if vm == nil || vm.Image == nil {
		return nil
	}
	refs := slices.Clone(vm.Below)
	for _, l := range vm.Layers {
		refs = append(refs, l.From, l.To)
	}
	for _, ref := range refs {
		if ref.Root == "" {
			continue
		}
		has, err := r.cs.store.Has(ctx, ref.Root)
		if err == nil && has {
			err = r.tree(ctx, what+": machine", ref)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reach) state(ctx context.Context, what string, d turnstone.Digest) error {
	if !r.object(d) {
		return nil
	}
	b, err := r.get(ctx, d)
	if err != nil {
		return r.failed(what+": state", err)
	}
	st := &State{}
	if err = json.Unmarshal(b, st); err == nil {
		err = checkFormat("state", d, st.Format, stateFormat)
	}
	if err != nil {
		return r.failed(what+": state", err)
	}
	return r.tree(ctx, what, st.Tree)
}

// tree goes through a file tree, but not through parts that were gone through before.
func (r *reach) tree(ctx context.Context, what string, ref tree.Ref) error {
	if r.verify != nil {
		// What is missing is named below, with its path.
		if err := r.verify.Verify(ctx, ref); err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
			if err = r.failed(what+": files", err); err != nil {
				return err
			}
		}
	}
	if !r.object(ref.Root) {
		return nil
	}
	g := &noting{Getter: r.cs.store}
	root, err := tree.GetRoot(ctx, g, ref)
	if err != nil {
		return r.failed(what+": files", err)
	}
	for i, o := range g.got { // the root, then the tables of its hard links
		if (i == 0 || r.object(o.digest)) && r.got != nil {
			if err := r.got(o.digest, o.b); err != nil {
				return err
			}
		}
	}
	return r.dir(ctx, what+": ", "", &root.Entry, 0)
}

func (r *reach) dir(ctx context.Context, what, path string, at *tree.Entry, depth int) error {
	d := at.Tree
	if depth > tree.MaxDepth {
		return r.failed(what+path+"/", turnstone.Errorf("executor.reach", turnstone.KindIntegrity, string(d),
			"is nested too deeply"))
	}
	if !r.object(d) {
		return nil
	}
	b, err := r.get(ctx, d)
	if err != nil {
		return r.failed(what+path+"/", err)
	}
	dir, err := tree.DecodeDirectory(b)
	if err != nil {
		return r.failed(what+path+"/", err)
	}
	for i := range dir {
		e := &dir[i]
		switch e.Type {
		case tree.Dir:
			if err := r.dir(ctx, what, path+"/"+e.Name, e, depth+1); err != nil {
				return err
			}
		case tree.File:
			if err := r.content(ctx, e.Content); err != nil {
				if err = r.failed(what+path+"/"+e.Name, err); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *reach) get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, turnstone.NewError("executor.reach", turnstone.KindCanceled, "", err)
	}
	b, err := r.cs.store.Get(ctx, d)
	if err == nil && r.got != nil {
		err = r.got(d, b)
	}
	return b, err
}

// A noting Getter notes what it got.
type noting struct {
	tree.Getter
	got []notedObject
}

type notedObject struct {
	digest turnstone.Digest
	b      []byte
}

func (n *noting) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	b, err := n.Getter.Get(ctx, d)
	n.got = append(n.got, notedObject{d, b})
	return b, err
}

// A recordContent is a content that a record names.
type recordContent struct {
	what    string
	content tree.Content
}

// recordContents returns all contents that rec names.
func recordContents(rec *Record) []recordContent {
	all := []recordContent{{"document", rec.Document}, {"receipt", rec.Receipt}}
	for _, s := range rec.Steps {
		if s.Stdout != nil {
			all = append(all, recordContent{s.Name + ": stdout", *s.Stdout})
		}
		if s.Stderr != nil {
			all = append(all, recordContent{s.Name + ": stderr", *s.Stderr})
		}
	}
	for _, in := range rec.Inputs {
		all = append(all, recordContent{"input " + in.Dest, in.Tar})
	}
	if rec.VM != nil {
		for _, f := range rec.VM.Files {
			all = append(all, recordContent{"machine: " + f.Name, f.Content})
		}
		if rec.VM.Image != nil {
			all = append(all, recordContent{"machine: the template's image", *rec.VM.Image})
		}
	}
	if n := rec.Network; n != nil && n.Index != nil {
		all = append(all, recordContent{"network", *n.Index})
		if n.Data != nil {
			all = append(all, recordContent{"network: bytes", *n.Data})
		}
	}
	kept := all[:0]
	for _, c := range all {
		if c.content.Digest != "" { // what was too large to be kept has none
			kept = append(kept, c)
		}
	}
	return kept
}
