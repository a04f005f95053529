// Package driver chooses what runs a sandbox on this machine, and finds the
// three drivers by name.
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

// Auto asks for the best that works.
const Auto = "auto"

// The substrates by name.
const (
	Firecracker = "firecracker"
	QEMU        = "qemu"
	GVisor      = "gvisor"
)

// Names returns what may be asked for.
func Names() []string { return []string{Auto, Firecracker, QEMU, GVisor} }

// Needs is what a turn asks of its substrate.
type Needs struct {
	MicroVM bool // hardware's isolation, or its emulation: no shared kernel of any kind
	Home    bool // a home directory on a disk of its own
	Live    bool // its sandboxes are paused, or cloned as they run: substrate.Resumer
	Keep    bool // its sandboxes are kept whole: substrate.Keeper
}

// Programs are the paths of programs that substrates run. An empty path means that the
// program is looked for: see the drivers' Options.
type Programs struct {
	Runsc       string // of gVisor
	Firecracker string
	Jailer      string // of Firecracker
}

// A Chooser finds substrates. Its methods are safe for concurrent use.
type Chooser struct {
	Home     *statedir.Dir
	Programs Programs
	Progress func(string) // told before work that takes long; may be nil
	// Probe returns a small machine with a kernel, to prove KVM with. It is called
	// only where that is not known yet, and may take minutes. Nil: what is unproven
	// counts as unusable.
	Probe func(ctx context.Context) (substrate.Machine, error)
	// Kernel returns the kernel of guests that have one of Linux. Nil: Turnstone's.
	Kernel func(ctx context.Context) (substrate.GuestKernel, error)

	// Wrap replaces what was opened, so that tests can take abilities away; nil: nothing does.
	Wrap func(substrate.Substrate) substrate.Substrate

	// Open opens a driver in place of the real ones, so that tests can make up a host: name and
	// how are a Trial's. Nil: the real ones.
	Open func(ctx context.Context, name, how string, kernel substrate.GuestKernel) (substrate.Substrate, error)

	drivers drivers // nil: the real ones
}

// An option is one way to run a sandbox. All fields are about this machine, now.
type option struct {
	name    string // "qemu"
	how     string // withKVM, withTCG or ""
	microVM bool
	home    bool
	own     bool                  // the substrate has a kernel of its own; others boot one of Linux
	kernel  substrate.GuestKernel // that is booted
	can     ability
	// open returns the driver, or an error that says why it cannot be used here. before is
	// why the same substrate was not opened in a better way, where that is worth telling.
	open func(ctx context.Context, kernel substrate.GuestKernel, before error) (substrate.Substrate, error)
}

// How an option runs the guest's instructions.
const (
	withKVM = "KVM"
	withTCG = "TCG"
)

// An ability is what only some drivers can do.
type ability struct{ live, keep bool }

// abilities tells what a driver can do by its type.
func abilities(a substrate.Abilities) ability {
	return ability{!errors.Is(a.Live, errors.ErrUnsupported), !errors.Is(a.Keep, errors.ErrUnsupported)}
}

// drivers makes the options of a machine, the best first.
type drivers func(c *Chooser) []option

// Choose returns the substrate called name that serves needs. For Auto it is the first
// that works here of: firecracker, qemu with KVM, gvisor, qemu with TCG. KVM counts as
// working when a guest has really started under it. Isolation by hardware comes first,
// except that of guests with a test kernel, which comes last;
// gVisor comes before TCG, which QEMU's project does not count among its security
// boundaries (https://www.qemu.org/docs/master/system/security.html). Errors are of kind
// Invalid for a name that is not known or that cannot serve needs, and Unavailable when
// nothing works here. Where a better one is passed over because of needs, Progress is told.
func (c *Chooser) Choose(ctx context.Context, name string, needs Needs) (substrate.Substrate, error) {
	d := c.Decide(ctx, name, needs)
	if d.Err != nil {
		return nil, d.Err
	}
	var unfit []string // better ones that would have been tried
	for _, t := range d.Trials {
		if t.unfit {
			unfit = append(unfit, t.Err.Error())
		}
	}
	if s := d.Substrate; len(unfit) > 0 {
		c.say(fmt.Sprintf("substrate %s, %s: %s; suitable: %s", s.Name(), s.Isolation(), strings.Join(unfit, ", "), strings.Join(able(needs), ", ")))
	}
	if s := d.Substrate; len(d.told) > 0 {
		c.say(fmt.Sprintf("substrate %s, %s: %s", s.Name(), s.Isolation(), strings.Join(d.told, "; ")))
	}
	return d.Substrate, nil
}

// surprises tells whether a user who asked for name should hear why o is not used. It is no
// surprise that a host has no KVM, or that it emulates guests.
func (o option) surprises(name string, err error) bool {
	switch {
	case o.own:
		return false
	case o.kernel.Own && errors.Is(err, kvm.ErrNotStarted):
		return true
	}
	return name == o.name && o.how == withKVM && (o.kernel.Own || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, kvm.ErrEmulated) && !errors.Is(err, ErrUnproven))
}

// reason is err without what it is about.
func reason(err error) string {
	var e *turnstone.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

// pointless tells that o cannot be of use after what happened before under KVM: a kernel
// whose own fault it was has it without KVM, too, and one that is made for tests is made for KVM.
func (o option) pointless(before error) bool {
	return o.how == withTCG && (o.kernel.Test || errors.Is(before, kvm.ErrKernel))
}

// withoutKernel is what helps against a kernel of the user's.
const withoutKernel = "unset TURN_KERNEL, and take kernel out of config.toml: guests then boot Debian's"

// open opens o, and refuses a driver that turns out to be unable to serve needs.
func (c *Chooser) open(ctx context.Context, o option, needs Needs, before error) (substrate.Substrate, error) {
	s, err := o.open(ctx, o.kernel, before)
	if err != nil {
		return nil, err
	}
	if c.Wrap != nil {
		s = c.Wrap(s)
	}
	can := substrate.AbilitiesOf(s)
	o.can = abilities(can)
	switch why := o.lacks(needs); {
	case why != "":
		return nil, turnstone.NewError("substrates.choose", turnstone.KindUnavailable, "substrate "+o.name,
			errors.New(why)).WithHint("choose another substrate, or leave out what asks for it")
	case needs.Live && can.Live != nil:
		return nil, can.Live
	case needs.Keep && can.Keep != nil:
		return nil, can.Keep
	}
	return s, nil
}

// Fits returns an error of kind Invalid when name is no substrate's, or is that of one
// that cannot serve needs on any machine. It starts nothing, and looks at nothing.
func Fits(name string, needs Needs) error {
	if !slices.Contains(Names(), name) {
		return turnstone.Errorf("substrates.choose", turnstone.KindInvalid, "substrate "+name,
			"is not known").WithHint("known are " + strings.Join(Names(), ", "))
	}
	why := ""
	for _, o := range real(&Chooser{}) {
		if name == Auto || name == o.name {
			if why = o.lacks(needs); why == "" {
				return nil
			}
		}
	}
	return turnstone.NewError("substrates.choose", turnstone.KindInvalid, "substrate "+name,
		errors.New(why)).
		WithHint("use --substrate " + strings.Join(append(able(needs), Auto), " or "))
}

// able returns the names of the substrates that can serve needs, on some machine.
func able(needs Needs) []string {
	var names []string
	for _, o := range real(&Chooser{}) {
		if o.lacks(needs) == "" && !slices.Contains(names, o.name) {
			names = append(names, o.name)
		}
	}
	return names
}

// lacks says what of needs o does not give; empty: nothing.
func (o option) lacks(needs Needs) string {
	switch {
	case needs.MicroVM && !o.microVM:
		return o.name + " is no microVM, which `isolation: microvm` asks for"
	case needs.MicroVM && o.kernel.Test:
		return o.String() + " boots a test kernel, which does not give what `isolation: microvm` asks for"
	case needs.Home && !o.home:
		return o.name + " has no disk for a persistent home"
	case needs.Keep && !o.can.keep:
		return o.name + " does not keep machines, which `snapshot: vm` asks for"
	case needs.Live && !o.can.live:
		return o.name + " neither pauses nor clones machines as they run, which `lifetime: session` and forks ask for"
	}
	return ""
}

func (o option) String() string {
	if o.how == "" {
		return o.name
	}
	return o.name + " (" + o.how + ")"
}

// options returns the options of this machine that name stands for. A kernel that cannot
// be used rules out those that boot one; without another, that is the error.
func (c *Chooser) options(ctx context.Context, name string) ([]option, error) {
	made := c.drivers
	if made == nil {
		made = real
	}
	all := slices.DeleteFunc(made(c), func(o option) bool { return name != Auto && name != o.name })
	for i := range all {
		if o := all[i]; c.Open != nil {
			all[i].open = func(ctx context.Context, kernel substrate.GuestKernel, _ error) (substrate.Substrate, error) {
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
			o.open = func(context.Context, substrate.GuestKernel, error) (substrate.Substrate, error) { return nil, err }
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
