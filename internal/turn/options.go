package turn

import (
	"cmp"
	"context"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/debian"
	"turnstone.dev/turnstone/sandboxes"
)

// Options say what an Executor works with. The zero value works on a host that has runsc,
// or another program that runs sandboxes, beside the running program or in PATH.
type Options struct {
	// Dir is the state directory, which is made where it does not exist.
	// Default: $XDG_DATA_HOME/turnstone, else ~/.local/share/turnstone.
	Dir string
	// Store is where the objects of turns are kept: empty for Dir, or s3://BUCKET/PREFIX. The
	// credentials of a bucket come from the variables AWS_* of the environment.
	Store string

	// Paths of programs. Default: runsc beside the running program, then in PATH; firecracker
	// in PATH; jailer, which only root uses, beside firecracker, then in PATH.
	Runsc, Firecracker, Jailer string
	// AgentFile is the path of the program turn-agent, which runs inside of sandboxes.
	// Default: the agent that the build has embedded. "make build" embeds the agent; a module
	// from a module proxy has none.
	AgentFile string
	// Kernel is the path of the kernel that microVMs boot, a vmlinux or bzImage, and
	// KernelModules its folder lib/modules/VERSION. Default: those of the state directory's
	// config.toml, else Debian's kernel, which the first microVM downloads.
	Kernel, KernelModules string

	// Addresses that builds of templates take packages from. Default: Debian's archive, its
	// security archive, PyPI, and npm's registry.
	DebianMirror, DebianSecurityMirror, PipIndex, NpmRegistry string

	// Holder is the command that keeps a sandbox which outlives this process. It is "turn
	// sandbox hold": the store adds arguments. It serves "lifetime: session", Resume, and
	// ForkLive; everything else works without a Holder. Default: turn beside the running
	// program, then in PATH, when its version is that of this module.
	Holder sandboxes.Holder
}

// Open returns an executor on the state directory that o names. The caller must Close it. An
// error is of kind Invalid where another user could write to the state directory, and of
// kind Unavailable where it cannot be made.
func Open(_ context.Context, o Options) (*Executor, error) {
	h, err := statedir.Open(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = h.Root
	return newExecutor(h, o), nil
}

// Planner returns an executor for Check alone: it makes no state directory.
func Planner(o Options) (*Executor, error) {
	dir, err := statedir.Locate(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	return newExecutor(&statedir.Dir{Root: dir}, o), nil
}

func newExecutor(h *statedir.Dir, o Options) *Executor {
	host := &Host{home: h, space: diskspace.New(h.Root), opt: o, launcher: o.launcher(h),
		opened: proxy.NewBudget(proxy.DefaultBudget)}
	host.store = template.NewStore(h.Path("templates")).From(o.sources()).
		WithLayers(host.layerBuilder())
	host.repo = repo.New(h, o.Store, host.store)
	return &Executor{Host: host}
}

// Shape returns the machine that the template or image called image asks for; empty stands for
// plan.DefaultImage. An unknown template has the default; a later look-up reports it.
func (x *Executor) Shape(image string) turnstone.Shape {
	shape := turnstone.DefaultShape()
	if spec, err := x.templates().Spec(cmp.Or(image, plan.DefaultImage)); err == nil {
		shape = spec.Machine.Shape(shape)
	}
	return shape
}

// ReceiptFile returns the path of a turn's receipt in the state directory, or "" where there
// is none.
func (x *Executor) ReceiptFile(turn turnstone.TurnID) string {
	path := x.home.Path("turns", string(turn), "receipt.md")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// sources are the addresses that packages come from.
func (o Options) sources() template.Sources {
	return template.Sources{Debian: o.DebianMirror, DebianSecurity: o.DebianSecurityMirror, Pip: o.PipIndex, Npm: o.NpmRegistry}
}

func (o Options) mirrors() debian.Mirrors {
	return debian.Mirrors{Main: o.DebianMirror, Security: o.DebianSecurityMirror}
}

// launcher starts sandboxes.
func (o Options) launcher(h *statedir.Dir) *sandbox.Launcher {
	l := sandbox.New(h)
	l.AgentFile, l.Programs = o.AgentFile, o.programs()
	return l
}

// programs are the paths of the programs that substrates run.
func (o Options) programs() driver.Programs {
	return driver.Programs{Runsc: o.Runsc, Firecracker: o.Firecracker, Jailer: o.Jailer}
}

// kernel is the kernel that guests boot: the options' before the host's.
func (o Options) kernel(host config.Config) kernel.Choice {
	return kernel.Choice{Image: o.Kernel, Modules: o.KernelModules, Mirrors: o.mirrors()}.Over(host.GuestKernel())
}

// silent is an Observer that ignores what it is told.
type silent struct{}

func (silent) Preparing(string)                                    {}
func (silent) StepStarted(*document.Step)                          {}
func (silent) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (silent) StepFinished(*document.Step, turnstone.StepReport)   {}

// orQuiet returns tell, or a function that ignores what it is told where tell is nil.
func orQuiet(tell func(string)) func(string) {
	if tell == nil {
		return func(string) {}
	}
	return tell
}
