package templatebuild

import (
	"context"
	"maps"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/template"
)

// A templateUse lists the sessions that need a template.
type templateUse struct {
	Sessions []turnstone.Session // that need its image, or a spec that only this host has
	Files    int                 // contents of theirs that are in no other place
	Bytes    int64               // of these
	// Anonymous are sessions without a name and a tag that need files of its image: no
	// reason to keep it, but without it they are nothing.
	Anonymous []turnstone.Session

	contents map[turnstone.Digest]turnstone.Content // of Sessions
	dropped  map[turnstone.Digest]turnstone.Content // of Anonymous
	homes    map[turnstone.Digest]turnstone.Content // of home directories
}

func newTemplateUse() *templateUse {
	return &templateUse{Sessions: []turnstone.Session{},
		contents: map[turnstone.Digest]turnstone.Content{},
		dropped:  map[turnstone.Digest]turnstone.Content{},
		homes:    map[turnstone.Digest]turnstone.Content{}}
}

// findUse returns the sessions that need a template: a file of one of their turns is only in its
// image, or they began on it and its spec was registered here. It reads the trees of all turns.
func findUse(ctx context.Context, x *repo.Repo, ts *template.Store,
	name string) (*templateUse, error) {
	use := newTemplateUse()
	dir, own, err := templateFolder(ctx, x, ts, name)
	if err != nil {
		return nil, err
	}
	if !x.HasSessions() {
		return use, nil // no turn was ever run
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	if spec, err := ts.Spec(name); err == nil {
		name = spec.Name // states name images of registries with their digest
	}
	return use, folderUse(ctx, cs, dir, use, name, own)
}

// folderUse adds to use the sessions that need the image in dir, and, if own, the sessions that
// began on the template called name.
func folderUse(ctx context.Context, cs *repo.ContextStore, dir string, use *templateUse,
	name string, own bool) error {
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
	u.contents = use.homes
	if err := u.reach("", map[turnstone.Digest]bool{}, new(bool)).Homes(ctx, nil); err != nil {
		return err
	}
	use.Files = len(use.contents)
	for _, c := range use.contents {
		use.Bytes += c.Size
	}
	return nil
}

// anonymousSession reports whether s has neither a name nor a tag: gc removes it after some time.
func anonymousSession(ctx context.Context, cs *repo.ContextStore, s turnstone.Session) (bool,
	error) {
	if s.Name != "" {
		return false, nil
	}
	tags, err := cs.DB.Tags(ctx, s.ID)
	return len(tags) == 0, err
}

// templateFolder returns the folder of a template's image; empty if another template has the same
// image, which then stays. own reports that a user registered the spec.
func templateFolder(ctx context.Context, x *repo.Repo, ts *template.Store,
	name string) (dir string, own bool, err error) {
	of, err := ts.Show(ctx, name)
	if err != nil {
		return "", false, err
	}
	all, err := ts.List(ctx)
	if err != nil {
		return "", false, err
	}
	for _, e := range all {
		if e.Name != name && e.Digest == of.Digest {
			return "", !of.BuiltIn, nil
		}
	}
	return x.Dir.Path("templates", of.Digest.Hex()), !of.BuiltIn, nil
}

// A templateUser finds the sessions that need the image in dir.
type templateUser struct {
	cs   *repo.ContextStore
	dir  string
	free map[turnstone.Digest]bool // objects that need nothing of it, directly or indirectly

	contents map[turnstone.Digest]turnstone.Content // that are found to be needed
}

// session reads the trees of s.
func (u *templateUser) session(ctx context.Context, s turnstone.Session, own bool,
	name string) (needs bool, err error) {
	turns, err := u.cs.DB.Turns(ctx, s.ID)
	if err != nil {
		return false, err
	}
	seen := map[turnstone.Digest]bool{}
	found := false
	r := u.reach(s.Label()+": ", seen, &found)
	if s.Domain != "" {
		return u.sealed(ctx, s, r, &found)
	}
	for _, t := range turns {
		if err := r.Turn(ctx, t); err != nil {
			return false, err
		}
		if needs = needs || found; own && t.State != "" && !needs {
			st, err := u.cs.State(ctx, t.State)
			if err != nil {
				return false, err
			}
			needs = st.Image == name
		}
	}
	if needs = needs || found; !needs {
		maps.Copy(u.free, seen)
	}
	return needs, nil
}

// sealed is session for a sealed session, of which only the templates are known on which it began.
func (u *templateUser) sealed(ctx context.Context, s turnstone.Session, r *repo.Reach,
	found *bool) (bool, error) {
	bases, err := u.cs.DB.Bases(ctx)
	for _, b := range bases {
		if err == nil && b.Session == s.ID {
			err = r.Tree(ctx, "its template", b.Tree)
		}
	}
	return *found, err
}

// reach returns a traversal that adds what is needed of the image to u.contents, and then sets
// found. seen gets the objects that were traversed. label begins the subject of errors.
func (u *templateUser) reach(label string, seen map[turnstone.Digest]bool,
	found *bool) *repo.Reach {
	r := &repo.Reach{In: u.cs, Failed: func(what string, err error) error {
		return turnstone.NewError("executor.template", turnstone.KindOf(err), label+what,
			err).WithHint("list all damage with turn fsck")
	}}
	r.Object = func(d turnstone.Digest) bool {
		first := !seen[d] && !u.free[d]
		seen[d] = true
		return first
	}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		if !r.Object(c.Digest) || u.dir == "" || c.Chunks != "" ||
			!u.cs.Templates.OnlyIn(u.dir, c.Digest) {
			return nil
		}
		has, err := u.cs.Store.Has(ctx, c.Digest)
		if err == nil && !has {
			*found = true
			u.contents[c.Digest] = c
		}
		return err
	}
	return r
}
