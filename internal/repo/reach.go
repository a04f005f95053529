package repo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Seen has the digests that were seen.
type Seen map[turnstone.Digest]bool

// First reports whether d is seen for the first time.
func (s Seen) First(d turnstone.Digest) bool {
	first := !s[d]
	s[d] = true
	return first
}

// A Reach traverses all data that turns need: records, receipts, outputs, states, trees, contents.
type Reach struct {
	In *ContextStore
	// Object is called for each object, except those of contents. first reports whether to traverse
	// the object and its references.
	Object func(d turnstone.Digest) (first bool)
	// Got is called with each object for which Object returned true. It may be nil.
	Got func(d turnstone.Digest, b []byte) error
	// Verify, if not nil, verifies the FS hashes and hard links of trees, which may come from an
	// untrusted file.
	Verify *tree.Verifier
	// Content is called for the content of each file, output and receipt.
	Content func(ctx context.Context, c turnstone.Content) error
	// Failed is called for data that cannot be read. If it returns nil, the traversal continues.
	Failed func(what string, err error) error
}

// Turn traverses all data that t needs, without its parents.
func (r *Reach) Turn(ctx context.Context, t turnstone.Turn) error {
	if t.Record == "" {
		return nil
	}
	what := fmt.Sprintf("turn %d (%s)", t.Number, t.ID)
	if !r.Object(t.Record) {
		return nil
	}
	if _, err := r.get(ctx, t.Record); err != nil {
		return r.Failed(what+": record", err)
	}
	if t.Envelope != "" && r.Object(t.Envelope) {
		if _, err := r.get(ctx, t.Envelope); err != nil {
			if err = r.Failed(what+": statement", err); err != nil {
				return err
			}
		}
	}
	rec, err := r.In.Record(ctx, t)
	if err != nil {
		return r.Failed(what+": record", err)
	}
	if rec.State != t.State {
		err := turnstone.Errorf("executor.reach", turnstone.KindIntegrity, string(t.Record),
			"names another state than the session")
		if err := r.Failed(what, err); err != nil {
			return err
		}
	}
	for _, c := range recordContents(rec) {
		if err := r.Content(ctx, c.content); err != nil {
			if err = r.Failed(what+": "+c.what, err); err != nil {
				return err
			}
		}
	}
	if err := r.below(ctx, what, rec.VM); err != nil || rec.State == "" {
		return err
	}
	return r.state(ctx, what, rec.State)
}

// Homes traverses the trees of all homes, and those that turns began and ended with, except
// the turns in without.
func (r *Reach) Homes(ctx context.Context, without map[turnstone.TurnID]bool) error {
	all, err := r.In.DB.AllHomes(ctx)
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := r.Tree(ctx, "home "+h.Name, h.Tree); err != nil {
			return err
		}
	}
	uses, err := r.In.DB.AllHomeUses(ctx)
	if err != nil {
		return err
	}
	for _, u := range uses {
		if without[u.Turn] {
			continue
		}
		for _, ref := range []turnstone.TreeRef{u.Began, u.Ended} {
			if err := r.Tree(ctx, "home "+u.Name+" of turn "+string(u.Turn), ref); err != nil {
				return err
			}
		}
	}
	return nil
}

// below traverses the trees of a kept machine's images, as far as they are available: a template's
// trees may come with the template.
func (r *Reach) below(ctx context.Context, what string, vm *turnstone.VMRef) error {
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
		has, err := r.In.Store.Has(ctx, ref.Root)
		if err == nil && has {
			err = r.Tree(ctx, what+": machine", ref)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Reach) state(ctx context.Context, what string, d turnstone.Digest) error {
	if !r.Object(d) {
		return nil
	}
	b, err := r.get(ctx, d)
	if err != nil {
		return r.Failed(what+": state", err)
	}
	st := &turnstone.TurnState{}
	if err = json.Unmarshal(b, st); err == nil {
		err = checkFormat("state", d, st.Format, StateFormat)
	}
	if err != nil {
		return r.Failed(what+": state", err)
	}
	return r.Tree(ctx, what, st.Tree)
}

// Tree traverses a file tree, except the parts that were traversed before.
func (r *Reach) Tree(ctx context.Context, what string, ref turnstone.TreeRef) error {
	if r.Verify != nil {
		// Missing data is reported below, with its path.
		if err := r.Verify.Verify(ctx, ref); err != nil &&
			turnstone.KindOf(err) != turnstone.KindNotFound {
			if err = r.Failed(what+": files", err); err != nil {
				return err
			}
		}
	}
	if !r.Object(ref.Root) {
		return nil
	}
	g := &noting{Getter: r.In.Store}
	root, err := tree.GetRoot(ctx, g, ref)
	if err != nil {
		return r.Failed(what+": files", err)
	}
	for i, o := range g.got { // the root, then the tables of its hard links
		if (i == 0 || r.Object(o.digest)) && r.Got != nil {
			if err := r.Got(o.digest, o.b); err != nil {
				return err
			}
		}
	}
	return r.dir(ctx, what+": ", "", &root.Entry, 0)
}

func (r *Reach) dir(ctx context.Context, what, path string, at *tree.Entry, depth int) error {
	d := at.Tree
	if depth > tree.MaxDepth {
		return r.Failed(what+path+"/",
			turnstone.Errorf("executor.reach", turnstone.KindIntegrity, string(d),
				"is nested too deeply"))
	}
	if !r.Object(d) {
		return nil
	}
	b, err := r.get(ctx, d)
	if err != nil {
		return r.Failed(what+path+"/", err)
	}
	dir, err := tree.DecodeDirectory(b)
	if err != nil {
		return r.Failed(what+path+"/", err)
	}
	for i := range dir {
		e := &dir[i]
		switch e.Type {
		case tree.Dir:
			if err := r.dir(ctx, what, path+"/"+e.Name, e, depth+1); err != nil {
				return err
			}
		case tree.File:
			if err := r.Content(ctx, e.Content); err != nil {
				if err = r.Failed(what+path+"/"+e.Name, err); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *Reach) get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, turnstone.NewError("executor.reach", turnstone.KindCanceled, "", err)
	}
	b, err := r.In.Store.Get(ctx, d)
	if err == nil && r.Got != nil {
		err = r.Got(d, b)
	}
	return b, err
}

// A noting Getter records the objects that it got.
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

// A recordContent is a content in a record.
type recordContent struct {
	what    string
	content turnstone.Content
}

// recordContents returns all contents that rec names.
func recordContents(rec *turnstone.TurnRecord) []recordContent {
	all := []recordContent{{"document", rec.Document}, {"receipt", rec.Receipt}}
	for _, s := range rec.Steps {
		if s.Stdout != nil {
			all = append(all, recordContent{s.Name + ": stdout", *s.Stdout})
		}
		if s.Stderr != nil {
			all = append(all, recordContent{s.Name + ": stderr", *s.Stderr})
		}
	}
	if rec.Trace != nil {
		all = append(all, recordContent{"trace", *rec.Trace})
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
	for i, c := range rec.Progress {
		all = append(all, recordContent{fmt.Sprintf("progress of step %d", i+1), c})
	}
	if n := rec.Network; n != nil && n.Index != nil {
		all = append(all, recordContent{"network", *n.Index})
		if n.Data != nil {
			all = append(all, recordContent{"network: bytes", *n.Data})
		}
	}
	kept := all[:0]
	for _, c := range all {
		if c.content.Digest != "" { // an output that was too large to keep has none
			kept = append(kept, c)
		}
	}
	return kept
}
