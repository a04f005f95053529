// Package doctor reports what a machine can run, what limits it, and how to improve it.
package doctor

import (
	"context"
	"os"

	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// A Status is the severity of a Finding.
type Status string

// The statuses.
const (
	StatusOK   Status = "ok"   // no problem
	StatusWarn Status = "warn" // turns run, but slower or with limitations
	StatusFail Status = "fail" // no turn can run, or no template is built and none can be built
)

// A Finding is the result of a check.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"` // a single line
	// a shell command that fixes the problem; empty: no problem, or no such command
	Fix string `json:"fix,omitempty"`
}

// Options are the settings of turns on this machine, besides config.toml.
type Options struct {
	Kernel, KernelModules string // TURN_KERNEL and TURN_KERNEL_MODULES
	Runsc, QEMU           string // TURN_RUNSC and TURN_QEMU
	Firecracker, Jailer   string // TURN_FIRECRACKER and TURN_JAILER
	Substrate             string // TURN_SUBSTRATE; empty: auto
}

// kernel returns the kernel that guests boot; config is that of config.toml.
func (o Options) kernel(config kernel.Choice) kernel.Choice {
	return kernel.Choice{Image: o.Kernel, Modules: o.KernelModules}.Over(config)
}

func (o Options) programs() driver.Programs {
	return driver.Programs{Runsc: o.Runsc, QEMU: o.QEMU, Firecracker: o.Firecracker,
		Jailer: o.Jailer}
}

// Check runs all checks. It starts programs only to ask for their versions, and a single empty
// gVisor sandbox if that was not tried before. No wait is longer than a few seconds, and Check
// changes only the stored result of that trial. If KVM has not been tried with a guest yet, a
// finding says so: the first turn tries it.
func Check(ctx context.Context, h *statedir.Dir, o Options) []Finding {
	c := &checker{home: h, opt: o, root: "/", uid: os.Getuid()}
	if cfg, err := config.Load(h.Root); err == nil { // otherwise another finding reports the error
		c.choice = cfg.GuestKernel()
	}
	c.guest, c.guestErr = driver.KernelIn(h, o.kernel(c.choice), nil).Guest(ctx)
	var found []Finding
	for _, check := range []func(context.Context) []Finding{
		c.platform, c.config, c.substrates, c.disk, c.memory, c.kernel, c.templates, c.snapshots,
		c.builder, c.authorities,
	} {
		found = append(found, check(ctx)...)
	}
	return found
}

// Usable reports whether turns can run despite the findings.
func Usable(found []Finding) bool {
	for _, f := range found {
		if f.Status == StatusFail {
			return false
		}
	}
	return true
}

// A checker checks a machine. Its root and uid are fields so that tests can substitute another
// machine's files.
type checker struct {
	home *statedir.Dir
	opt  Options
	root string
	uid  int

	choice   kernel.Choice         // guest kernel of config.toml
	guest    substrate.GuestKernel // kernel that guests boot, if available
	guestErr error                 // why guest is not available

	built bool // a template is built; set by the check of templates, which runs before builder
}

func findingOf(name string, status Status, detail, fix string) []Finding {
	return []Finding{{Name: name, Status: status, Detail: detail, Fix: fix}}
}
