package atnode

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// Names of a spec and its lock in their folder, and a bound of the spec in bytes.
const (
	specFile = "template.toml"
	lockFile = "template.lock"
	maxSpec  = 1 << 20
)

// Templates returns the list of templates as JSON: the report's "templates" of turn template ls.
func (x *Executor) Templates(ctx context.Context) (json.RawMessage, error) {
	return fetch[json.RawMessage](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.TemplateList(ctx, &wire.TemplateListParams{Report: id})
	})
}

// BuildTemplate is executor.Executor.BuildTemplate. A spec at a path is of this machine, with its
// lock and the files that it names; a new lock is written beside it.
func (x *Executor) BuildTemplate(ctx context.Context, nameOrPath string,
	req executor.TemplateBuild) (*turnstone.Template, error) {
	j := job{obs: telling(req.Progress)}
	if req.Events != nil {
		j.item = func(decode func(any) error) error {
			var e turnstone.BuildEvent
			if err := decode(&e); err != nil {
				return err
			}
			req.Events(e)
			return nil
		}
	}
	p := wire.TemplateBuildParams{Name: nameOrPath, Lock: req.Lock}
	var items []tarfiles.Item
	var beside string
	if isPath(nameOrPath) {
		var err error
		if p.Name, items, beside, err = specItems(nameOrPath); err != nil {
			return nil, err
		}
	}
	var lock []byte
	j.start = func(c *wire.Client, journal, hold wire.StreamID) error {
		p.Journal, p.Hold = journal, hold
		build := func(id wire.StreamID) error {
			p.Spec = id
			r, err := c.TemplateBuild(context.WithoutCancel(ctx), &p)
			if err == nil {
				lock = r.Lock
			}
			return err
		}
		if len(items) == 0 {
			return build(0)
		}
		return pack(ctx, c, items, build)
	}
	t, err := run[turnstone.Template](ctx, x, j)
	if err == nil && len(lock) > 0 && beside != "" {
		if err := os.WriteFile(beside, lock, 0o644); err != nil {
			return nil, turnstone.NewError("template.lock", turnstone.KindUnavailable, beside, err)
		}
	}
	return t, err
}

func isPath(nameOrPath string) bool {
	return strings.ContainsRune(nameOrPath, '/') || strings.HasSuffix(nameOrPath, ".toml") ||
		strings.ContainsRune(nameOrPath, filepath.Separator) || nameOrPath == "."
}

// specItems returns the files of the spec at a path, the path's name among them, and the path of
// the spec's lock. Nothing else of the folder is sent.
func specItems(at string) (name string, items []tarfiles.Item, lock string, err error) {
	fail := func(err error) (string, []tarfiles.Item, string, error) {
		return "", nil, "", turnstone.NewError("template.parse", turnstone.KindInvalid, at, err).
			WithHint("name a folder with a " + specFile + ", or such a file")
	}
	abs, err := filepath.Abs(at)
	if err != nil {
		return fail(err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return fail(err)
	}
	dir, file := abs, specFile
	if !info.IsDir() {
		dir, file = filepath.Split(abs)
		dir = filepath.Clean(dir)
	}
	folder := filepath.Base(dir) // which names a spec without a name
	if !filepath.IsLocal(folder) || folder == "." {
		folder = "spec"
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = root.Close() }()
	if info, err = root.Stat(file); err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxSpec {
		return fail(errors.New("is not a regular file of at most 1 MiB"))
	}
	text, err := root.ReadFile(file)
	if err != nil {
		return fail(err)
	}
	var spec struct {
		Files []struct {
			Source string `toml:"source"`
		} `toml:"files"`
	}
	_ = toml.Unmarshal(text, &spec) // the node says what is wrong with it
	names := []string{file, lockFile}
	for _, f := range spec.Files {
		names = append(names, f.Source)
	}
	sent := map[string]bool{}
	for _, n := range names {
		local := filepath.FromSlash(path.Clean(n))
		if n == "" || sent[local] || !filepath.IsLocal(local) {
			continue // the node rejects it
		}
		if _, err := root.Stat(local); err != nil {
			continue
		}
		sent[local] = true
		items = append(items, tarfiles.Item{HostPath: filepath.Join(dir, local),
			Name: path.Join(folder, filepath.ToSlash(local))})
	}
	return path.Join(folder, file), items, filepath.Join(dir, lockFile), nil
}

// RemoveTemplate is executor.Executor.RemoveTemplate. Only who built the template may remove it.
func (x *Executor) RemoveTemplate(ctx context.Context, req executor.TemplateRemoval) (
	[]turnstone.Session, error) {
	return object[[]turnstone.Session](ctx, x, func(c *wire.Client) (json.RawMessage, error) {
		r, err := c.TemplateRemove(ctx, &wire.TemplateRemoveParams{Name: req.Name, Keep: req.Keep,
			Force: req.Force})
		if err != nil {
			return nil, err
		}
		return r.Sessions, nil
	})
}

// PruneTemplates is executor.Executor.PruneTemplates. Only the operator may ask.
func (x *Executor) PruneTemplates(ctx context.Context, req executor.TemplatePrune) (
	*turnstone.TemplatePruned, error) {
	return fetch[*turnstone.TemplatePruned](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.TemplatePrune(ctx, &wire.TemplatePruneParams{Older: int64(req.Older),
			DryRun: req.DryRun, Report: id})
	})
}
