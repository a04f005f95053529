// Package driver chooses the substrate of sandboxes on this machine, and finds the three drivers by
// name.
package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// Auto requests the best substrate that works.
const Auto = "auto"

// The names of the substrates.
const (
	Firecracker = "firecracker"
	QEMU        = "qemu"
	GVisor      = "gvisor"
)

// Names returns the names that a user may request.
func Names() []string { return []string{Auto, Firecracker, QEMU, GVisor} }

// Needs are a turn's requirements on its substrate.
type Needs struct {
	MicroVM bool // isolation by hardware, or by its emulation: no kernel is shared
	Native  bool // the host's CPU runs the guest's programs: no emulation
	Home    bool // a home directory on a disk of its own
	Live    bool // sandboxes are paused or cloned while running: substrate.Resumer
	Keep    bool // machines are kept: substrate.Keeper
	// Tier is the tier of deterministic machines; empty: they are not deterministic.
	Tier turnstone.Tier
}

// Programs are the paths of programs that substrates run. For an empty path the driver searches for
// the program: see the drivers' Options.
type Programs struct {
	Runsc       string // gVisor's program
	QEMU        string // QEMU's system emulator
	Firecracker string
	Jailer      string // Firecracker's jailer
}

// A Chooser chooses and opens substrates. Its methods are safe for concurrent use.
type Chooser struct {
	Home     *statedir.Dir
	Programs Programs
	Progress func(string) // called before slow operations; may be nil
	// Probe returns a small machine with a kernel, to prove KVM. It is called only if there is no
	// verdict on KVM yet, and may take minutes. Nil: an unproven KVM is unusable.
	Probe func(ctx context.Context) (substrate.Machine, error)
	// Kernel returns the Linux kernel that guests boot. Nil: Turnstone's.
	Kernel func(ctx context.Context) (substrate.GuestKernel, error)

	// Wrap replaces an opened substrate, so that tests can remove abilities; nil: substrates are
	// not replaced.
	Wrap func(substrate.Substrate) substrate.Substrate

	// Open opens a driver instead of the real drivers, so that tests can simulate a host: name and
	// how are a Trial's. Nil: the real drivers.
	Open func(ctx context.Context, name, how string, kernel substrate.GuestKernel) (
		substrate.Substrate, error)

	drivers drivers // nil: the real drivers
}

// An option is one way to run a sandbox. All fields describe this machine at present.
type option struct {
	name    string // "qemu"
	how     string // withKVM, withTCG or ""
	microVM bool
	home    bool
	own     bool                  // the substrate has its own kernel; the others boot Linux
	kernel  substrate.GuestKernel // kernel that the guests boot
	can     ability
	tier    turnstone.Tier // of deterministic machines; empty: none
	// open returns the driver, or an error that says why it cannot be used here. before is why the
	// same substrate was not opened in a better way; nil if that need not be reported.
	open func(ctx context.Context, kernel substrate.GuestKernel, before error) (substrate.Substrate,
		error)
}

// How an option runs the guest's instructions.
const (
	withKVM = "KVM"
	withTCG = "TCG"
)

// An ability is an optional feature of drivers.
type ability struct{ live, keep bool }

// abilities returns a driver's features by its type.
func abilities(a substrate.Abilities) ability {
	return ability{!errors.Is(a.Live, errors.ErrUnsupported),
		!errors.Is(a.Keep, errors.ErrUnsupported)}
}

// drivers returns a machine's options, best first.
type drivers func(c *Chooser) []option

// Choose returns the substrate called name that serves needs. For Auto it returns the first of
// these that works here: firecracker, qemu with KVM, gvisor, qemu with TCG. KVM works if a guest
// has really started under it. Isolation by hardware comes first, except that of guests with a test
// kernel, which comes last; gVisor comes before TCG, because QEMU's project does not count TCG
// among its security boundaries (https://www.qemu.org/docs/master/system/security.html). An error
// is of kind Invalid for an unknown name and for a substrate that cannot serve needs, and of kind
// Unavailable if nothing works here. Choose reports better substrates that needs excluded to
// Progress.
func (c *Chooser) Choose(ctx context.Context, name string,
	needs Needs) (substrate.Substrate, error) {
	d := c.Decide(ctx, name, needs)
	if d.Err != nil {
		return nil, d.Err
	}
	var unfit []string // better options that needs excluded
	for _, t := range d.Trials {
		if t.unfit && needs.Tier == "" { // a tier names its substrate
			unfit = append(unfit, t.Err.Error())
		}
	}
	if s := d.Substrate; len(unfit) > 0 {
		c.say(fmt.Sprintf("substrate %s, %s: %s; suitable: %s", s.Name(), s.Isolation(),
			strings.Join(unfit, ", "), strings.Join(able(needs), ", ")))
	}
	if s := d.Substrate; len(d.told) > 0 {
		c.say(fmt.Sprintf("substrate %s, %s: %s", s.Name(), s.Isolation(),
			strings.Join(d.told, "; ")))
	}
	return d.Substrate, nil
}

// surprises reports whether a user who requested name should hear why o is not used. A host without
// KVM, or with emulated guests, is no surprise.
func (o option) surprises(name string, err error) bool {
	switch {
	case o.own:
		return false
	case o.kernel.Own && errors.Is(err, kvm.ErrNotStarted):
		return true
	}
	return name == o.name && o.how == withKVM && (o.kernel.Own || !errors.Is(err, fs.ErrNotExist) &&
		!errors.Is(err, kvm.ErrEmulated) && !errors.Is(err, ErrUnproven))
}

// reason returns err without its operation and its subject.
func reason(err error) string {
	var e *turnstone.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

// pointless reports whether o cannot work after the error before, which occurred under KVM: a
// kernel that was itself at fault also fails without KVM, and test kernels run under KVM only.
func (o option) pointless(before error) bool {
	return o.how == withTCG && (o.kernel.Test || errors.Is(before, kvm.ErrKernel))
}

// withoutKernel is the hint against a user's kernel.
const withoutKernel = "unset TURN_KERNEL, and remove kernel from config.toml: guests then boot " +
	"Debian's"

// open opens o, and rejects a driver that cannot serve needs after all.
func (c *Chooser) open(ctx context.Context, o option, needs Needs,
	before error) (substrate.Substrate, error) {
	s, err := o.open(ctx, o.kernel, before)
	if err != nil {
		return nil, err
	}
	if c.Wrap != nil {
		s = c.Wrap(s)
	}
	can := substrate.AbilitiesOf(s)
	o.can = abilities(can)
	if needs.Tier != "" {
		o.tier = substrate.TierOf(s)
	}
	switch why := o.lacks(needs); {
	case why != "":
		return nil, turnstone.Errorf("substrates.choose", turnstone.KindUnavailable,
			"substrate "+o.name, "%s", why).
			WithHint("choose another substrate, or leave out the setting that needs it")
	case needs.Live && can.Live != nil:
		return nil, can.Live
	case needs.Keep && can.Keep != nil:
		return nil, can.Keep
	}
	return s, nil
}

// Fits returns an error of kind Invalid if name is unknown, or names a substrate that cannot serve
// needs on any machine. It does not examine the host, and starts nothing.
func Fits(name string, needs Needs) error {
	if !slices.Contains(Names(), name) {
		return turnstone.Errorf("substrates.choose", turnstone.KindInvalid, "substrate "+name,
			"is unknown").WithHint("use one of " + strings.Join(Names(), ", "))
	}
	why := ""
	for _, o := range real(&Chooser{}) {
		if name == Auto || name == o.name {
			if why = o.lacks(needs); why == "" {
				return nil
			}
		}
	}
	return turnstone.Errorf("substrates.choose", turnstone.KindInvalid, "substrate "+name,
		"%s", why).
		WithHint("use --substrate " + strings.Join(append(able(needs), Auto), " or "))
}

// able returns the names of the substrates that can serve needs on some machine.
func able(needs Needs) []string {
	var names []string
	for _, o := range real(&Chooser{}) {
		if o.lacks(needs) == "" && !slices.Contains(names, o.name) {
			names = append(names, o.name)
		}
	}
	return names
}

// lacks describes the need that o does not meet; empty: o meets all needs.
func (o option) lacks(needs Needs) string {
	switch {
	case needs.MicroVM && !o.microVM:
		return o.name + " is not a microVM, which `isolation: microvm` requires"
	case needs.MicroVM && o.kernel.Test:
		return o.String() + " boots a test kernel, which does not satisfy `isolation: microvm`"
	case needs.Native && o.how == withTCG:
		return o.String() + " emulates a CPU, which is too slow here"
	case needs.Home && !o.home:
		return o.name + " has no disk for a persistent home"
	case needs.Keep && !o.can.keep:
		return o.name + " does not keep machines, which `snapshot: vm` requires"
	case needs.Tier != "" && o.tier != needs.Tier:
		return o.String() + " has no deterministic machines of the tier " + string(needs.Tier)
	case needs.Live && !o.can.live:
		return o.name + " neither pauses nor clones running machines, which `lifetime: session` " +
			"and forks require"
	}
	return ""
}

func (o option) String() string {
	if o.how == "" {
		return o.name
	}
	return o.name + " (" + o.how + ")"
}

// options returns this machine's options for name. A kernel error rules out the options that boot a
// Linux kernel; for a named substrate it is returned.
func (c *Chooser) options(ctx context.Context, name string) ([]option, error) {
	made := c.drivers
	if made == nil {
		made = real
	}
	all := slices.DeleteFunc(made(c), func(o option) bool { return name != Auto && name != o.name })
	for i := range all {
		if o := all[i]; c.Open != nil {
			all[i].open = func(ctx context.Context, kernel substrate.GuestKernel,
				_ error) (substrate.Substrate, error) {
				return c.Open(ctx, o.name, o.how, kernel)
			}
		}
	}
	if c.Kernel == nil || !slices.ContainsFunc(all, func(o option) bool { return !o.own }) {
		return all, nil
	}
	guest, err := c.Kernel(ctx)
	if err != nil && name != Auto {
		return nil, err
	}
	for i := range all {
		switch o := &all[i]; {
		case o.own:
		case err != nil:
			o.open = func(context.Context, substrate.GuestKernel, error) (substrate.Substrate,
				error) {
				return nil, err
			}
		default:
			o.kernel = guest
		}
	}
	slices.SortStableFunc(all, func(a, b option) int { return cmp.Compare(rank(a), rank(b)) })
	return all, nil
}

func rank(o option) int {
	if o.kernel.Test {
		return 1
	}
	return 0
}

func (c *Chooser) say(what string) {
	if c.Progress != nil {
		c.Progress(what)
	}
}
