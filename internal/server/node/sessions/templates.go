package sessions

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// templates answers the domain Template.
type templates struct{ *served }

// Bounds of a spec's folder, and of its lock.
const (
	maxSpecFiles = 10_000
	maxSpecBytes = 1 << 30
	maxLock      = 8 << 20
)

func (t *templates) List(ctx context.Context, c *wire.Conn, p *wire.TemplateListParams) error {
	return report(ctx, t.served, c, p.Report, owners.Read, light,
		func(ctx context.Context) ([]template.Entry, error) {
			all, err := t.o.Templates.List(ctx)
			return slices.DeleteFunc(all, func(e template.Entry) bool {
				return t.granted(e.Name) != nil
			}), err
		})
}

func (t *templates) Build(ctx context.Context, c *wire.Conn, p *wire.TemplateBuildParams) (
	*wire.TemplateBuildResult, error) {
	r := new(wire.TemplateBuildResult)
	if p.Spec == 0 && isPath(p.Name) {
		return nil, invalid("template "+p.Name, "is a path, and its spec was not sent")
	}
	return r, run(ctx, t.served, job{c, p.Journal, p.Hold, owners.Write},
		func(ctx context.Context, w *turnlog.JobWriter) (*turnstone.Template, error) {
			req := executor.TemplateBuild{Lock: p.Lock, Progress: w.Preparing,
				Events: func(e turnstone.BuildEvent) { w.Item(e) }}
			if p.Spec == 0 {
				return t.x.BuildTemplate(ctx, p.Name, req)
			}
			dir, err := t.folder("spec-")
			if err != nil {
				return nil, err
			}
			defer func() { _ = os.RemoveAll(dir) }()
			path, err := t.spec(ctx, c, p, dir)
			if err != nil {
				return nil, err
			}
			built, err := t.x.BuildTemplate(ctx, path, req)
			if err == nil && p.Lock {
				r.Lock, err = readLock(path)
			}
			return built, err
		})
}

// granted returns nil if the connection's tokens grant a template or an image.
func (t *templates) granted(name string) error {
	if t.caller.Tokens == nil {
		return nil
	}
	return t.caller.Tokens.AllowTemplate(name)
}

// isPath reports whether the executor takes name for the path of a spec.
func isPath(name string) bool {
	return strings.ContainsRune(name, '/') || strings.HasSuffix(name, ".toml") || name == "."
}

// spec receives the folder of a spec, and returns its path if its name is the client's to use.
func (t *templates) spec(ctx context.Context, c *wire.Conn, p *wire.TemplateBuildParams,
	dir string) (string, error) {
	in, err := c.Receiver(p.Spec)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	if !filepath.IsLocal(p.Name) || !isPath(p.Name) {
		return "", invalid("template "+p.Name, "is not the path of a spec in the stream")
	}
	err = tarfiles.Unpack(ctx, in, dir+"/", tarfiles.Any(), tarfiles.Limits{Entries: maxSpecFiles,
		Bytes: maxSpecBytes,
		Room:  func(dir string) error { return diskspace.Room(dir, config.Space{}) }})
	if err != nil {
		return "", err
	}
	// the folder is rooted: a link in it does not lead out
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", failed(err)
	}
	defer func() { _ = root.Close() }()
	if _, err := root.Stat(p.Name); err != nil {
		return "", invalid("template "+p.Name, "is not in the stream")
	}
	path := filepath.Join(dir, p.Name)
	name, base, err := template.NamesOf(path)
	for _, n := range []string{name, base} {
		if err == nil && n != "" {
			err = t.granted(n)
		}
	}
	if err != nil {
		return "", err
	}
	return path, t.claim(ctx, name)
}

// claim makes the client the owner of a name of a template, unless it is taken.
func (t *templates) claim(ctx context.Context, name string) error {
	if t.caller.Operator {
		return nil
	}
	object := owners.Template(name)
	err := t.o.Owners.May(object, t.caller, owners.Own)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	all, err := t.o.Templates.List(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(e template.Entry) bool { return e.Name == name }) {
		return taken(name)
	}
	if err := t.o.Owners.Claim(ctx, object, t.caller); err != nil {
		if turnstone.KindOf(err) == turnstone.KindInvalid {
			return taken(name)
		}
		return err
	}
	return nil
}

func taken(name string) error {
	return turnstone.Errorf("template.build", turnstone.KindInvalid, "template "+name,
		"has another owner").WithHint("give the spec another name")
}

// readLock returns the lock that a build wrote beside the spec at path.
func readLock(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	path = filepath.Join(path, "template.lock")
	info, err := os.Stat(path)
	if err != nil {
		return nil, failed(err)
	}
	if info.Size() > maxLock {
		return nil, invalid("the lock", "has more than %d bytes", maxLock)
	}
	b, err := os.ReadFile(path)
	return b, failed(err)
}

func (t *templates) Remove(ctx context.Context, _ *wire.Conn, p *wire.TemplateRemoveParams) (
	*wire.TemplateRemoveResult, error) {
	if (p.Keep || p.Force) && !t.caller.Operator {
		return nil, forbidden("removing a template that sessions need")
	}
	raw, err := small(ctx, t.served, owners.Own, heavy,
		func(ctx context.Context) ([]turnstone.Session, error) {
			object := owners.Template(p.Name)
			if err := t.o.Owners.May(object, t.caller, owners.Own); err != nil {
				return nil, err
			}
			gone, err := t.x.RemoveTemplate(ctx, executor.TemplateRemoval{Name: p.Name,
				Keep: p.Keep, Force: p.Force})
			if err == nil {
				err = t.o.Owners.Forget(object)
			}
			return gone, err
		})
	if raw == nil {
		raw = json.RawMessage("null")
	}
	return &wire.TemplateRemoveResult{Sessions: raw}, err
}

func (t *templates) Prune(ctx context.Context, c *wire.Conn, p *wire.TemplatePruneParams) error {
	return kept(ctx, t.served, c, p.Report, "pruning templates",
		func(ctx context.Context) (*turnstone.TemplatePruned, error) {
			return t.x.PruneTemplates(ctx, executor.TemplatePrune{Older: time.Duration(p.Older),
				DryRun: p.DryRun})
		})
}
