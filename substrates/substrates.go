// Package substrates chooses what runs a sandbox on this machine, and finds the
// three drivers by name.
package substrates

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
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
}

// A Chooser finds substrates. Its methods are safe for concurrent use.
type Chooser struct {
	Home     *home.Home
	Progress func(string) // told before work that takes long; may be nil
	// Probe returns a small machine with a kernel, to prove KVM with. It is called
	// only where that is not known yet, and may take minutes. Nil: what is unproven
	// counts as unusable.
	Probe func(ctx context.Context) (substrate.Machine, error)

	drivers drivers // nil: the real ones
}

// An option is one way to run a sandbox. All fields are about this machine, now.
type option struct {
	name    string // "qemu"
	how     string // "KVM", "TCG" or ""
	microVM bool
	home    bool
	// open returns the driver, or an error that says why it cannot be used here.
	open func(ctx context.Context) (substrate.Substrate, error)
}

// drivers makes the options of a machine, the best first.
type drivers func(c *Chooser) []option

// Choose returns the substrate called name that serves needs. For Auto it is the first
// that works here of: firecracker, qemu with KVM, gvisor, qemu with TCG. KVM counts as
// working when a guest has really started under it. Isolation by hardware comes first;
// gVisor comes before TCG, which QEMU's project does not count among its security
// boundaries (https://www.qemu.org/docs/master/system/security.html). Errors are of kind
// Invalid for a name that is not known or that cannot serve needs, and Unavailable when
// nothing works here. Where a better one is passed over because of needs, Progress is told.
func (c *Chooser) Choose(ctx context.Context, name string, needs Needs) (substrate.Substrate, error) {
	if err := Fits(name, needs); err != nil {
		return nil, err
	}
	var tried, unfit []string
	var last error
	for _, o := range c.options() {
		if name != Auto && name != o.name {
			continue
		}
		if why := o.lacks(needs); why != "" {
			unfit = append(unfit, why)
			continue
		}
		s, err := o.open(ctx)
		if err == nil {
			if len(unfit) > 0 { // a better one would have been tried
				c.say(fmt.Sprintf("substrate %s, %s: %s; suitable: %s", s.Name(), s.Isolation(), strings.Join(unfit, ", "), strings.Join(able(needs), ", ")))
			}
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, &turnstone.Error{Op: "substrates.choose", Kind: turnstone.Canceled, Subject: "substrate " + name, Err: ctx.Err()}
		}
		tried, last = append(tried, o.String()+": "+err.Error()), err
	}
	if len(tried) == 1 && len(unfit) == 0 {
		return nil, last
	}
	tried = append(tried, unfit...)
	return nil, &turnstone.Error{Op: "substrates.choose", Kind: turnstone.Unavailable, Subject: "substrate " + name,
		Err: fmt.Errorf("nothing here can run a sandbox: %s", strings.Join(tried, "; ")), Hint: "run `turn doctor`"}
}

// Fits returns an error of kind Invalid when name is no substrate's, or is that of one
// that cannot serve needs on any machine. It starts nothing, and looks at nothing.
func Fits(name string, needs Needs) error {
	if !slices.Contains(Names(), name) {
		return &turnstone.Error{Op: "substrates.choose", Kind: turnstone.Invalid, Subject: "substrate " + name,
			Err: errors.New("is not known"), Hint: "known are " + strings.Join(Names(), ", ")}
	}
	why := ""
	for _, o := range real(&Chooser{}) {
		if name == Auto || name == o.name {
			if why = o.lacks(needs); why == "" {
				return nil
			}
		}
	}
	return &turnstone.Error{Op: "substrates.choose", Kind: turnstone.Invalid, Subject: "substrate " + name,
		Err: errors.New(why), Hint: "use --substrate " + strings.Join(append(able(needs), Auto), " or ")}
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
	case needs.Home && !o.home:
		return o.name + " has no disk for a persistent home"
	}
	return ""
}

func (o option) String() string {
	if o.how == "" {
		return o.name
	}
	return o.name + " (" + o.how + ")"
}

func (c *Chooser) options() []option {
	if c.drivers != nil {
		return c.drivers(c)
	}
	return real(c)
}

func (c *Chooser) say(what string) {
	if c.Progress != nil {
		c.Progress(what)
	}
}
