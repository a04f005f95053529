package templatebuild

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/template"
)

// A Removal says how to remove a template.
type Removal struct {
	Name  string
	Keep  bool // first copy what sessions need of its image into the store
	Force bool // also when sessions need it: their files are damaged then
}

// Remove removes a template's image and, if a user registered it, its spec. If sessions need it,
// the error is of kind Unavailable and names them, unless req says otherwise. Anonymous sessions
// that need files of it are removed with it, and returned, unless one of their turns runs. Running
// turns wait for it, and it waits for commits of turns.
func Remove(ctx context.Context, x *repo.Repo, ts *template.Store,
	req Removal) ([]turnstone.Session, error) {
	remove := func() error { return ts.Remove(ctx, req.Name) }
	if on, err := ts.Dependents(ctx, req.Name); err != nil {
		return nil, err
	} else if len(on) > 0 && !req.Force {
		return nil, turnstone.Errorf("executor.template", turnstone.KindUnavailable,
			"template "+req.Name,
			"is below other templates: %s", strings.Join(on, ", ")).
			WithHint("remove them first; --force removes it all the same, " +
				"and they are built anew when they are needed")
	}
	if req.Force || !x.HasSessions() {
		return nil, remove()
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	var gone []turnstone.Session
	// A commit during the copy may need more of the image's files.
	for range 10 {
		var more *templateUse
		err := cs.Store.Exclusive(ctx, func() error {
			use, err := findUse(ctx, x, ts, req.Name)
			if err != nil {
				return err
			}
			switch {
			case req.Keep && len(use.contents)+len(use.dropped) > 0:
				more = use
				return nil
			case len(use.homes) > 0: // a home belongs to no template, so it does not keep one
				more = newTemplateUse()
				more.homes = use.homes
				return nil
			case !req.Keep && len(use.Sessions) > 0:
				return inUse(req.Name, use)
			}
			// The sessions are removed first: without the image they would be damaged.
			for _, s := range use.Anonymous {
				if err := cs.DB.Remove(ctx, s.ID); err != nil &&
					turnstone.KindOf(err) != turnstone.KindNotFound {
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
	return gone, turnstone.Errorf("executor.template", turnstone.KindUnavailable,
		"template "+req.Name,
		"more and more files of its image come to be needed").
		WithHint("try again when fewer turns run")
}

// inUse returns the error that names the sessions that need a template.
func inUse(name string, use *templateUse) error {
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
		why = fmt.Sprintf("have files that are only in its image (%d, %s)", use.Files,
			turnstone.Bytes(use.Bytes).Human())
	}
	return turnstone.Errorf("executor.template", turnstone.KindUnavailable, "template "+name,
		"is needed by sessions, which %s: %s", why, strings.Join(names, ", ")).
		WithHint("remove a session with turn session rm and turn gc; " +
			"--keep-files copies the files into the store first; " +
			"--force removes the image, and damages these sessions")
}

// copyIn puts the files that sessions and homes need from a template's image into the store.
func copyIn(ctx context.Context, cs *repo.ContextStore, use *templateUse) error {
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = batch.Close() }()
	all := maps.Clone(use.contents)
	maps.Copy(all, use.dropped)
	maps.Copy(all, use.homes)
	for _, d := range slices.Sorted(maps.Keys(all)) {
		b, err := cs.Read(ctx, all[d], store.MaxObject)
		if err != nil {
			return err
		}
		// PutContent would omit it, because a template has it.
		if _, err := batch.Put(ctx, b); err != nil {
			return err
		}
	}
	return batch.Flush(ctx)
}
