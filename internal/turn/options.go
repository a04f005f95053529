package turn

import (
	"cmp"
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

// Options are executor.Options, which has their documentation.
type Options struct {
	Dir, Store                                                string
	Runsc, QEMU, Firecracker, Jailer                          string
	AgentFile                                                 string
	Kernel, KernelModules                                     string
	DebianMirror, DebianSecurityMirror, PipIndex, NpmRegistry string
	Holder                                                    sandboxes.Holder
}

// Open returns a runner on the state directory that o names. The caller must Close it. An error is
// of kind Invalid where another user could write to the state directory, and of kind Unavailable
// where it cannot be made.
func Open(o Options) (*Runner, error) {
	h, err := statedir.Open(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = h.Root
	return newRunner(h, o), nil
}

// Planner returns a runner for Check alone: it makes no state directory.
func Planner(o Options) (*Runner, error) {
	dir, err := statedir.Locate(o.Dir)
	if err != nil {
		return nil, err
	}
	if _, err := config.Load(dir); err != nil {
		return nil, err
	}
	o.Dir = dir
	return newRunner(&statedir.Dir{Root: dir}, o), nil
}

func newRunner(h *statedir.Dir, o Options) *Runner {
	x := &Runner{home: h, space: diskspace.New(h.Root), opt: o, launcher: o.launcher(h),
		opened: proxy.NewBudget(proxy.DefaultBudget)}
	x.store = template.NewStore(h.Path("templates")).From(o.sources()).
		WithLayers(x.layerBuilder())
	x.repo = repo.New(h, o.Store, x.store)
	return x
}

// Shape returns the machine that the template or image called image asks for; empty stands for
// plan.DefaultImage. An unknown template has the default; a later look-up reports it.
func (x *Runner) Shape(image string) turnstone.Shape {
	shape := turnstone.DefaultShape()
	if spec, err := x.Templates().Spec(cmp.Or(image, plan.DefaultImage)); err == nil {
		shape = spec.Machine.Shape(shape)
	}
	return shape
}

// ReceiptFile returns the path of a turn's receipt in the state directory, or "" where there
// is none.
func (x *Runner) ReceiptFile(turn turnstone.TurnID) string {
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
	return driver.Programs{Runsc: o.Runsc, QEMU: o.QEMU, Firecracker: o.Firecracker, Jailer: o.Jailer}
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
