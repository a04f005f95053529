// Package host assembles the parts that turns and sandboxes of one state directory need: the host's
// configuration and limits, its templates, the stored turns, and the programs that run machines.
package host

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/hostpath"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

// A Host is one state directory on this machine. Its fields do not change after New, so it is safe
// for concurrent use. Tests replace parts of Space, Repo and Launcher before the first use.
type Host struct {
	Dir       *statedir.Dir
	Space     *diskspace.Disk // the disk that contains Dir
	Repo      *repo.Repo      // the stored turns
	Launcher  *sandbox.Launcher
	Templates *template.Store // with a builder of layers
	Paths     *hostpath.Hider // of this host, which receipts do not have

	options Options
	opened  *proxy.Budget // memory for the connections that sandboxes have opened
}

// New returns the host of the state directory dir. layers returns the builder of templates' layers;
// nil: layers cannot be built. New opens nothing.
func New(dir *statedir.Dir, o Options, layers func(*Host) template.LayerBuilder) *Host {
	h := &Host{Dir: dir, Space: diskspace.New(dir.Root), Launcher: o.launcher(dir), options: o,
		Paths: dir.Paths(o.Within), opened: proxy.NewBudget(proxy.DefaultBudget)}
	h.Templates = template.NewStore(dir.Path("templates")).From(o.sources())
	if layers != nil {
		h.Templates = h.Templates.WithLayers(layers(h))
	}
	h.Repo = repo.New(dir, o.Store, h.Templates)
	h.Repo.Database, h.Repo.Passphrase = o.Database, o.Passphrase
	return h
}

// Context returns the context store, which is opened at the first call.
func (h *Host) Context(ctx context.Context) (*repo.ContextStore, error) { return h.Repo.Open(ctx) }

// Config reads the host's configuration.
func (h *Host) Config() (config.Config, error) { return config.Load(h.Dir.Root) }

// ConfigDigest returns the digest of the host's configuration file; that of nothing if there is none.
func (h *Host) ConfigDigest() (turnstone.Digest, error) {
	b, err := os.ReadFile(h.Dir.Path(config.File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return turnstone.DigestBytes(b), nil
}

// Room reports that the disk of the state directory is nearly full.
func (h *Host) Room() error {
	c, err := h.Config()
	if err != nil {
		return err
	}
	return diskspace.Room(h.Dir.Root, c.Limits.FreeSpace)
}

// Facts returns the facts about this host that plans need.
func (h *Host) Facts() (plan.Host, error) {
	c, err := h.Config()
	if err != nil {
		return plan.Host{}, err
	}
	limits := c.Limits.For(config.HostOf(h.Dir.Root))
	room := func() error { return h.Space.Check(limits.FreeSpace, 1) }
	return plan.Host{Config: c, Limits: limits, Room: room}, nil
}

// Bounds returns the limits for data that is read from the sandbox of p. parts is the share of the
// free space that must stay free: 1 for all of it, 2 for half of it.
func (h *Host) Bounds(p *plan.Plan, parts uint64) collect.Bounds {
	b := collect.Bounds{Dir: h.Dir, Limits: p.Host.Limits, Room: p.Host.Room}
	if parts > 1 {
		b.Room = func() error { return h.Space.Check(b.Limits.FreeSpace, parts) }
	}
	return b
}

// Watch returns a context that ends when the host's disk is nearly full; low then returns the
// reason. stop ends the watch.
func (h *Host) Watch(ctx context.Context, p *plan.Plan) (watched context.Context,
	low func() error, stop func()) {
	watched, stop = h.Space.Watch(ctx, p.Host.Limits.FreeSpace)
	return watched, func() error { return diskspace.Low(watched) }, stop
}

// TemplatesFor returns the templates. If anonymous is set, registries are asked without the user's
// credentials, because only an untrusted source names the image.
func (h *Host) TemplatesFor(anonymous bool) *template.Store {
	if anonymous {
		return h.Templates.Anonymous()
	}
	return h.Templates
}

// Link returns a network link that enforces rules, with a share of the host's connections.
func (h *Host) Link(rules netplan.Rules) *netplan.Link {
	return netplan.NewLink(rules, h.opened.Share())
}

// Kernel returns the kernel that guests boot. The options take precedence over the host's
// configuration.
func (h *Host) Kernel(c config.Config) kernel.Choice {
	return kernel.Choice{Image: h.options.Kernel, Modules: h.options.KernelModules,
		Mirrors: h.options.sources().Mirrors()}.Over(c.GuestKernel())
}

// Substrates returns the names of the substrates that run sandboxes here.
func (h *Host) Substrates(ctx context.Context) []string {
	c, err := h.Config()
	if err != nil {
		return nil // nothing runs then
	}
	return h.Launcher.Substrates(ctx, h.Kernel(c))
}

// Shape returns the machine that the template or image called image requests; empty stands for
// plan.DefaultImage. An unknown template has the default shape; a later lookup reports the template
// as missing.
func (h *Host) Shape(image string) turnstone.Shape {
	shape := turnstone.DefaultShape()
	if spec, err := h.Templates.Spec(cmp.Or(image, plan.DefaultImage)); err == nil {
		shape = spec.Machine.Shape(shape)
	}
	return shape
}

// ReceiptFile returns the path of a turn's receipt in the state directory, or "" if there is no
// receipt.
func (h *Host) ReceiptFile(turn turnstone.TurnID) string {
	path := h.Dir.Path("turns", string(turn), "receipt.md")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
