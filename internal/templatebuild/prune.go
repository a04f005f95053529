package templatebuild

import (
	"context"
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/registry"
	"turnstone.dev/turnstone/sandboxes"
)

// A PruneRequest says what Prune may remove.
type PruneRequest struct {
	Older  time.Duration // only what was built before that long; 0: all
	DryRun bool
}

// Prune removes builds of templates that are no longer known, unless a session has files that are
// only there, or a sandbox or another build that stays needs it. GC then removes the files of
// layers. Prune also removes old downloads from package registries. It waits for commits of turns.
func Prune(ctx context.Context, x *repo.Repo, ts *template.Store,
	req PruneRequest) (*turnstone.TemplatePruned, error) {
	rep := &turnstone.TemplatePruned{DryRun: req.DryRun, Builds: []turnstone.KeptBuild{},
		Stays: []turnstone.TemplateStays{}}
	locked := func() error { return prune(ctx, x, ts, req, rep) }
	if !x.HasSessions() {
		return rep, locked()
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	return rep, cs.Store.Exclusive(ctx, locked)
}

func prune(ctx context.Context, x *repo.Repo, ts *template.Store, req PruneRequest,
	rep *turnstone.TemplatePruned) error {
	needed, err := ts.Needed()
	if err != nil {
		return err
	}
	kept, err := ts.Kept()
	if err != nil {
		return err
	}
	infos, err := sandboxes.NewStore(x.Dir.Root).List(ctx)
	if err != nil {
		return err
	}
	uses := map[turnstone.Digest]bool{}
	for _, i := range infos {
		if !i.State.Final() {
			uses[i.Template] = true
		}
	}
	needed, uses = template.Closure(kept, needed), template.Closure(kept, uses)
	// Layers come first: an image may be needed by a layer only.
	for _, layers := range []bool{true, false} {
		for _, k := range kept {
			if (k.Layer != nil) != layers || needed[k.Digest] {
				continue
			}
			if time.Since(k.Built) < req.Older {
				continue
			}
			why, err := stays(ctx, x, k, uses, rep)
			if err != nil {
				return err
			}
			if why != "" {
				rep.Stays = append(rep.Stays, turnstone.TemplateStays{KeptBuild: k, Why: why})
				uses[k.Digest] = true
				continue
			}
			if !req.DryRun {
				if err := ts.Drop(ctx, k.Digest); err != nil {
					return err
				}
			}
			rep.Builds = append(rep.Builds, k)
			rep.Freed += k.Size
		}
		uses = template.Closure(kept, uses)
	}
	if rep.Logs, err = ts.PruneLogs(req.Older, req.DryRun); err != nil {
		return err
	}
	if rep.Images, err = ts.PruneImages(max(req.Older, packagesKept), req.DryRun); err != nil {
		return err
	}
	rep.Packages, err = registry.Trim(ts.PackageCache(), registry.DefaultLimit,
		max(req.Older, packagesKept), req.DryRun)
	rep.Freed += rep.Packages.Bytes + rep.Images
	return err
}

// packagesKept is the least time for which an unused download is kept.
const packagesKept = 30 * 24 * time.Hour

// stays returns the reason why a build of no known template stays; empty: none.
func stays(ctx context.Context, x *repo.Repo, k turnstone.KeptBuild, uses map[turnstone.Digest]bool,
	rep *turnstone.TemplatePruned) (string, error) {
	if uses[k.Digest] {
		return "a sandbox, or another build that stays, lies on it", nil
	}
	if k.Layer != nil {
		return "", nil // its files are in the store, which keeps all that turns need
	}
	if !x.HasSessions() {
		return "", nil
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return "", err
	}
	use := newTemplateUse()
	// The image of a tag may no longer be in its registry: sessions on it keep it.
	if err := folderUse(ctx, cs, k.Dir, use, k.Name, template.IsImage(k.Name)); err != nil {
		return "", err
	}
	// The user did not name this build, so anonymous sessions count as well.
	if all := append(use.Sessions, use.Anonymous...); len(all) > 0 {
		var names []string
		for _, s := range all[:min(len(all), 5)] {
			names = append(names, s.Label())
		}
		return fmt.Sprintf("has files of sessions that are nowhere else: %s",
			strings.Join(names, ", ")), nil
	}
	if len(use.homes) > 0 {
		return "has files of homes that are nowhere else", nil
	}
	gone := map[turnstone.Digest]bool{}
	for _, b := range rep.Builds {
		gone[b.Digest] = true
	}
	needs, err := layersNeed(ctx, cs, k.Dir, gone)
	if err != nil || !needs {
		return "", err
	}
	return "has files of a template's layer that are nowhere else", nil
}

// layersNeed reports whether a layer of a template, except those in gone, has a file that is only
// in the image in dir.
func layersNeed(ctx context.Context, cs *repo.ContextStore, dir string,
	gone map[turnstone.Digest]bool) (bool, error) {
	layers, err := cs.Layers(ctx)
	if err != nil {
		return false, err
	}
	needs := false
	r := &repo.Reach{In: cs, Object: repo.Seen{}.First,
		Failed: func(_ string, err error) error { return err }}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		if needs || c.Chunks != "" || !r.Object(c.Digest) || !cs.Templates.OnlyIn(dir, c.Digest) {
			return nil
		}
		has, err := cs.Store.Has(ctx, c.Digest)
		needs = needs || !has
		return err
	}
	for _, l := range layers {
		if gone[l.Spec] {
			continue
		}
		if err := r.Tree(ctx, "template "+l.Spec.Short(), l.Tree); err != nil {
			return false, err
		}
	}
	return needs, nil
}
