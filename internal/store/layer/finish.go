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
		if it.file != nil && !it.file.settled && it.base != nil && it.base.Type == tree.File &&
			it.base.Content.Digest == it.file.content.Digest {
			it.file.content, it.file.settled = it.base.Content, true
		}
	}
}

// finish creates the objects of a directory and its subdirectories, and returns its entry.
func (a *applier) finish(path string, d *directory) (tree.Entry, error) {
	own := path == "" || path == etc // the agent created it in the upper directory
	e := d.entry
	if d.same {
		e.Tree, e.Hash = d.base.Tree, d.base.Hash
		if own {
			e.MTime = d.base.MTime
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
	if d.base == nil {
		return a.put(e, out)
	}
	if own && slices.EqualFunc(out, d.bases, func(a, b tree.Entry) bool {
		return a.Name == b.Name
	}) {
		// Its time is the start of the sandbox: with unchanged names, only the agent has changed
		// it.
		e.MTime = d.base.MTime
	}
	if slices.EqualFunc(out, d.bases, func(a, b tree.Entry) bool { return equal(&a, &b) }) {
		e.Tree, e.Hash = d.base.Tree, d.base.Hash
		return e, nil
	}
	return a.put(e, out)
}

func (a *applier) put(e tree.Entry, d tree.Directory) (tree.Entry, error) {
	var err error
	e.Tree, e.Hash, err = tree.PutDirectory(a.ctx, a.w, d)
	return e, err
}

// countBelow counts the differences below path, where old was, and it is now; one of them may be nil.
func (a *applier) countBelow(path string, old *tree.Entry, it *item) error {
	if old != nil && old.Type != tree.Dir {
		old = nil
	}
	if it != nil && it.entry.Type != tree.Dir {
		it = nil
	}
	if old != nil && it != nil && old.Tree == it.entry.Tree {
		return nil
	}
	olds, news, err := a.both(old, it)
	for err == nil && (len(olds) > 0 || len(news) > 0) {
		switch {
		case len(news) == 0 || len(olds) > 0 && olds[0].Name < news[0].entry.Name:
			at := path + "/" + olds[0].Name
			a.count(&a.stats.Removed, at)
			err = a.countBelow(at, &olds[0], nil)
			olds = olds[1:]
		case len(olds) == 0 || news[0].entry.Name < olds[0].Name:
			at := path + "/" + news[0].entry.Name
			a.count(&a.stats.Added, at)
			err = a.countBelow(at, nil, &news[0])
			news = news[1:]
		default:
			at := path + "/" + olds[0].Name
			if e := &news[0].entry; !e.Attr.Equal(&olds[0].Attr) || e.Type == tree.File &&
				e.Content.Digest != olds[0].Content.Digest {
				a.count(&a.stats.Changed, at)
			}
			err = a.countBelow(at, &olds[0], &news[0])
			olds, news = olds[1:], news[1:]
		}
	}
	return err
}

// both returns the entries of two directories; one of them may be nil.
func (a *applier) both(old *tree.Entry, it *item) (olds tree.Directory, news []item, err error) {
	if old != nil {
		if olds, err = tree.GetDirectory(a.ctx, a.w, old.Tree); err != nil {
			return nil, nil, err
		}
	}
	if it == nil {
		return olds, nil, nil
	}
	if it.dir != nil && !it.dir.same {
		return olds, it.dir.items, nil
	}
	now, err := tree.GetDirectory(a.ctx, a.w, it.entry.Tree)
	// Directories above each other may say that they were renamed, and each have all that is below.
	if a.entries += len(now); a.entries > a.opts.MaxEntries {
		return nil, nil, exhausted(it.entry.Name, "more than %d changed files", a.opts.MaxEntries)
	}
	news = make([]item, len(now))
	for i := range now {
		news[i].entry = now[i]
	}
	return olds, news, err
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
