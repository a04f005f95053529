package turn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// TemplateRemoval says how to remove a template.
type TemplateRemoval struct {
	Name  string
	Keep  bool // first copy what sessions need of its image into the store
	Force bool // also when sessions need it: their files are damaged then
}

// TemplateUse says who needs a template.
type TemplateUse struct {
	Sessions []session.Session // that need files of its image, or began on a spec that only this host has
	Files    int               // contents of theirs that are in no other place
	Bytes    int64             // of these
	// Anonymous are sessions without a name and a tag that need files of its image: no
	// reason to keep it, but without it they are nothing.
	Anonymous []session.Session

	contents map[turnstone.Digest]tree.Content // of Sessions
	dropped  map[turnstone.Digest]tree.Content // of Anonymous
}

func newTemplateUse() *TemplateUse {
	return &TemplateUse{Sessions: []session.Session{}, contents: map[turnstone.Digest]tree.Content{}, dropped: map[turnstone.Digest]tree.Content{}}
}

// TemplateUse tells which sessions need a template: a file of one of their turns
// is nowhere but in its image, or they stand on it and its spec was registered
// here. It goes through the files of all turns.
func (x *Host) TemplateUse(ctx context.Context, name string) (*TemplateUse, error) {
	use := newTemplateUse()
	dir, own, err := x.templateFolder(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(x.home.Path("context.db")); errors.Is(err, fs.ErrNotExist) {
		return use, nil // no turn was ever run
	}
	cs, err := x.context(ctx)
	if err != nil {
		return nil, err
	}
	if spec, err := x.templates().Spec(name); err == nil {
		name = spec.Name // states name images of registries with their digest
	}
	return use, folderUse(ctx, cs, dir, use, name, own)
}

// folderUse adds to use who needs the image in dir, and who stands on the template name
// when its spec is a user's.
func folderUse(ctx context.Context, cs *repo.ContextStore, dir string, use *TemplateUse, name string, own bool) error {
	all, err := cs.DB.List(ctx)
	if err != nil {
		return err
	}
	u := &templateUser{cs: cs, dir: dir, free: map[turnstone.Digest]bool{}}
	for _, s := range all {
		anonymous, err := anonymousSession(ctx, cs, s)
		if err != nil {
			return err
		}
		if u.contents = use.contents; anonymous {
			u.contents = use.dropped
		}
		needs, err := u.session(ctx, s, own && !anonymous, name)
		switch {
		case err != nil:
			return err
		case needs && anonymous:
			use.Anonymous = append(use.Anonymous, s)
		case needs:
			use.Sessions = append(use.Sessions, s)
		}
	}
	use.Files = len(use.contents)
	for _, c := range use.contents {
		use.Bytes += c.Size
	}
	return nil
}

// anonymousSession tells whether s has neither a name nor a tag: gc forgets it after a while.
func anonymousSession(ctx context.Context, cs *repo.ContextStore, s session.Session) (bool, error) {
	if s.Name != "" {
		return false, nil
	}
	tags, err := cs.DB.Tags(ctx, s.ID)
	return len(tags) == 0, err
}

// templateFolder returns the folder of a template's image; none when another name
// has the same image, which then stays. own tells that the spec is a user's.
func (x *Host) templateFolder(ctx context.Context, name string) (dir string, own bool, err error) {
	of, err := x.templates().Show(ctx, name)
	if err != nil {
		return "", false, err
	}
	all, err := x.templates().List(ctx)
	if err != nil {
		return "", false, err
	}
	for _, e := range all {
		if e.Name != name && e.Digest == of.Digest {
			return "", !of.BuiltIn, nil
		}
	}
	return x.home.Path("templates", of.Digest.Hex()), !of.BuiltIn, nil
}

// A templateUser finds who needs the image in dir.
type templateUser struct {
	cs   *repo.ContextStore
	dir  string
	free map[turnstone.Digest]bool // objects that need nothing of it, nor what they name

	contents map[turnstone.Digest]tree.Content // that are found to be needed
}

// session goes through all that s needs.
func (u *templateUser) session(ctx context.Context, s session.Session, own bool, name string) (needs bool, err error) {
	turns, err := u.cs.DB.Turns(ctx, s.ID)
	if err != nil {
		return false, err
	}
	seen := map[turnstone.Digest]bool{}
	r := &repo.Reach{In: u.cs, Failed: func(what string, err error) error {
		return turnstone.NewError("executor.template", turnstone.KindOf(err), s.Label()+": "+what,
			err).WithHint("turn fsck lists all that is damaged")
	}}
	r.Object = func(d turnstone.Digest) bool {
		first := !seen[d] && !u.free[d]
		seen[d] = true
		return first
	}
	r.Content = func(ctx context.Context, c tree.Content) error {
		if !r.Object(c.Digest) || u.dir == "" || c.Chunks != "" || !u.cs.Templates.OnlyIn(u.dir, c.Digest) {
			return nil
		}
		has, err := u.cs.Store.Has(ctx, c.Digest)
		if err == nil && !has {
			needs = true
			u.contents[c.Digest] = c
		}
		return err
	}
	for _, t := range turns {
		if err := r.Turn(ctx, t); err != nil {
			return false, err
		}
		if own && t.State != "" && !needs {
			st, err := u.cs.State(ctx, t.State)
			if err != nil {
				return false, err
			}
			needs = st.Image == name
		}
	}
	if !needs {
		maps.Copy(u.free, seen)
	}
	return needs, nil
}

// RemoveTemplate removes a template's image and, when a user registered it, its
// spec. When sessions need it that is an error of kind Unavailable that names them, unless
// req says otherwise. Anonymous sessions that need files of it are removed with it, and
// returned; one whose turn runs is a reason to refuse. Turns that run wait for it, and it
// for turns that are being kept.
func (x *Host) RemoveTemplate(ctx context.Context, req TemplateRemoval) ([]session.Session, error) {
	remove := func() error { return x.templates().Remove(ctx, req.Name) }
	if on, err := x.templates().Dependents(ctx, req.Name); err != nil {
		return nil, err
	} else if len(on) > 0 && !req.Force {
		return nil, turnstone.Errorf("executor.template", turnstone.KindUnavailable, "template "+req.Name,
			"is below other templates: %s", strings.Join(on, ", ")).
			WithHint("remove them first; --force removes it all the same, and they are built anew when they are needed")
	}
	if _, err := os.Stat(x.home.Path("context.db")); req.Force || errors.Is(err, fs.ErrNotExist) {
		return nil, remove()
	}
	cs, err := x.context(ctx)
	if err != nil {
		return nil, err
	}
	var gone []session.Session
	// What is kept while files are copied may need more of them.
	for range 10 {
		var more *TemplateUse
		err := cs.Store.Exclusive(ctx, func() error {
			use, err := x.TemplateUse(ctx, req.Name)
			if err != nil {
				return err
			}
			switch {
			case req.Keep && len(use.contents)+len(use.dropped) > 0:
				more = use
				return nil
			case !req.Keep && len(use.Sessions) > 0:
				return inUse(req.Name, use)
			}
			// First the sessions: without the image they would be damaged.
			for _, s := range use.Anonymous {
				if err := cs.DB.Remove(ctx, s.ID); err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
					return err
				}
				gone = append(gone, s)
			}
			return remove()
		})
		if err != nil || more == nil {
			return gone, err
		}
		if err := copyIn(ctx, cs, more); err != nil {
			return gone, err
		}
	}
	return gone, turnstone.Errorf("executor.template", turnstone.KindUnavailable, "template "+req.Name,
		"more and more files of its image come to be needed").
		WithHint("try again when fewer turns run")
}

// inUse says who needs a template.
func inUse(name string, use *TemplateUse) error {
	const most = 5
	var names []string
	for _, s := range use.Sessions[:min(most, len(use.Sessions))] {
		names = append(names, s.Label())
	}
	if n := len(use.Sessions) - most; n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	why := "began on it"
	if use.Files > 0 {
		why = fmt.Sprintf("have files that are only in its image (%d, %s)", use.Files, turnstone.Bytes(use.Bytes).Human())
	}
	return turnstone.Errorf("executor.template", turnstone.KindUnavailable, "template "+name,
		"is needed by sessions, which %s: %s", why, strings.Join(names, ", ")).
		WithHint("turn session rm and turn gc remove a session; --keep-files copies the files into the store first; --force removes the image, and damages these sessions")
}

// copyIn puts what sessions need of a template's image into the store.
func copyIn(ctx context.Context, cs *repo.ContextStore, use *TemplateUse) error {
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = batch.Close() }()
	all := maps.Clone(use.contents)
	maps.Copy(all, use.dropped)
	for _, d := range slices.Sorted(maps.Keys(all)) {
		b, err := cs.Read(ctx, all[d], store.MaxObject)
		if err != nil {
			return err
		}
		if _, err := batch.Put(ctx, b); err != nil { // PutContent would leave it out: a template has it
			return err
		}
	}
	return batch.Flush(ctx)
}
