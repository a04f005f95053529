package layer

import (
	"slices"

	"turnstone.dev/turnstone/internal/store/tree"
)

// settle gives each file the parent's form of its content, if the parent has the same bytes under
// one of its names: in other chunks, because they were cut in another domain, or in a template's
// image. All names of a file get the same form.
func settle(d *directory) {
	for i := range d.items {
		it := &d.items[i]
		if it.dir != nil {
			settle(it.dir)
		}
		if it.file != nil && !it.file.settled && it.old != nil && it.old.Type == tree.File &&
			it.old.Content.Digest == it.file.content.Digest {
			it.file.content, it.file.settled = it.old.Content, true
		}
	}
}

// finish creates the objects of a directory and its subdirectories, returns its entry, and counts
// the changes.
func (a *applier) finish(path string, d *directory) (tree.Entry, error) {
	own := path == "" || path == etc // the agent created it in the upper directory
	e := d.entry
	if d.same {
		e.Tree, e.Hash = d.old.Tree, d.old.Hash
		if own {
			e.MTime = d.old.MTime
		}
		return e, nil
	}
	out := make(tree.Directory, len(d.items))
	for i := range d.items {
		it := &d.items[i]
		switch {
		case it.dir != nil:
			e, err := a.finish(path+"/"+it.entry.Name, it.dir)
			if err != nil {
				return tree.Entry{}, err
			}
			it.entry = e
		case it.file != nil:
			it.entry.Content = it.file.content
		}
		out[i] = it.entry
	}
	if err := a.countDirectory(path, d); err != nil {
		return tree.Entry{}, err
	}
	if d.old == nil {
		return a.put(e, out)
	}
	if own && slices.EqualFunc(out, d.olds, func(a, b tree.Entry) bool {
		return a.Name == b.Name
	}) {
		// Its time is the start of the sandbox: with unchanged names, only the agent has changed
		// it.
		e.MTime = d.old.MTime
	}
	if slices.EqualFunc(out, d.olds, func(a, b tree.Entry) bool { return equal(&a, &b) }) {
		e.Tree, e.Hash = d.old.Tree, d.old.Hash
		return e, nil
	}
	return a.put(e, out)
}

func (a *applier) put(e tree.Entry, d tree.Directory) (tree.Entry, error) {
	var err error
	e.Tree, e.Hash, err = tree.PutDirectory(a.ctx, a.w, d)
	return e, err
}

// countDirectory compares a directory's entries with the parent's entries.
func (a *applier) countDirectory(path string, d *directory) error {
	olds := d.olds
	gone := func(name string, all bool) error {
		for len(olds) > 0 && (all || olds[0].Name < name) {
			a.count(&a.stats.Removed, path+"/"+olds[0].Name)
			if err := a.countBelow(path, &olds[0]); err != nil {
				return err
			}
			olds = olds[1:]
		}
		return nil
	}
	for i := range d.items {
		it := &d.items[i]
		name := it.entry.Name
		if err := gone(name, false); err != nil {
			return err
		}
		if len(olds) > 0 && olds[0].Name == name {
			olds = olds[1:]
		}
		switch {
		case it.old == nil:
			a.count(&a.stats.Added, path+"/"+name)
		case !it.entry.Attr.Equal(&it.old.Attr) || it.entry.Type == tree.File &&
			it.entry.Content.Digest != it.old.Content.Digest:
			a.count(&a.stats.Changed, path+"/"+name)
			if it.entry.Type != tree.Dir {
				if err := a.countBelow(path, it.old); err != nil {
					return err
				}
			}
		}
	}
	return gone("", true)
}

// countBelow counts the entries below a path that is no longer a directory.
func (a *applier) countBelow(dir string, old *tree.Entry) error {
	if old.Type != tree.Dir {
		return nil
	}
	entries, err := tree.GetDirectory(a.ctx, a.w, old.Tree)
	if err != nil {
		return err
	}
	dir += "/" + old.Name
	for i := range entries {
		a.count(&a.stats.Removed, dir+"/"+entries[i].Name)
		if err := a.countBelow(dir, &entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) count(what *int, path string) {
	*what++
	if _, ok := a.relinked[path]; ok {
		a.relinked[path] = true
	}
}

// countLinks counts the files whose only change is their set of names.
func (a *applier) countLinks() {
	for _, counted := range a.relinked {
		if !counted {
			a.stats.Changed++
		}
	}
}

// equal reports whether two entries are the same file in all properties that a tree stores.
func equal(a, b *tree.Entry) bool {
	return a.Name == b.Name && a.Attr.Equal(&b.Attr) && a.Content == b.Content &&
		a.Tree == b.Tree && a.Hash == b.Hash
}
