package driver

import (
	"context"
	"errors"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/firecracker"
	"turnstone.dev/turnstone/substrate"
)

// ErrUnproven is in the chain of the error of an option that may work, but needs a guest's start as
// a proof: see Chooser.Probe.
var ErrUnproven = errors.New("no guest was started under KVM yet")

// A Trial is one way to run a sandbox, with its result in a Decision.
type Trial struct {
	Name string // name of the substrate
	How  string // "KVM", "TCG" or ""
	Test bool   // guests boot a test kernel; such options come last
	Err  error  // why it was rejected; nil: it is the choice, or was not tried

	unfit bool // not opened, because it cannot serve the needs
}

// Unproven reports whether starting a guest would show that t can be used.
func (t Trial) Unproven() bool {
	return errors.Is(t.Err, ErrUnproven) || errors.Is(t.Err, firecracker.ErrUnproven)
}

// String names t, such as "qemu (KVM)".
func (t Trial) String() string { return option{name: t.Name, how: t.How}.String() }

// A Decision is a choice with its reasons.
type Decision struct {
	Substrate substrate.Substrate // the choice; nil: none
	Err       error               // why there is no choice
	// in order of trial; the last trial is the choice, if there is a choice
	Trials []Trial
	Later  []Trial // options after the choice, in order

	told []string // why the user's kernel does not run in a better way, or KVM turned away
}

// Unproven returns the trials that need a guest's start as a proof, in order: with Chooser.Probe
// they would be tried, and the first that works would be the choice.
func (d Decision) Unproven() []Trial {
	var unproven []Trial
	for _, t := range d.Trials {
		if t.Unproven() {
			unproven = append(unproven, t)
		}
	}
	return unproven
}

// Decide chooses a substrate as Choose does, and also returns what it has tried.
func (c *Chooser) Decide(ctx context.Context, name string, needs Needs) (d Decision) {
	if d.Err = Fits(name, needs); d.Err != nil {
		return d
	}
	options, err := c.options(ctx, name)
	if err != nil {
		d.Err = err
		return d
	}
	hint := "run `turn doctor`"
	before := map[string]error{} // why a substrate was not opened, by its name
	for i, o := range options {
		t := Trial{Name: o.name, How: o.how, Test: o.kernel.Test}
		var s substrate.Substrate
		if why := o.lacks(needs); why != "" {
			t.Err, t.unfit = errors.New(why), true
			if o.kernel.Test {
				hint = withoutKernel
			}
		} else if o.pointless(before[o.name]) {
			continue
		} else if s, t.Err = c.open(ctx, o, needs, before[o.name]); t.Err != nil &&
			ctx.Err() != nil {
			d.Err = turnstone.NewError("substrates.choose", turnstone.KindCanceled,
				"substrate "+name, ctx.Err())
			return d
		}
		d.Trials = append(d.Trials, t)
		if s != nil {
			d.Substrate = s
			for _, o := range options[i+1:] {
				d.Later = append(d.Later, Trial{Name: o.name, How: o.how, Test: o.kernel.Test})
			}
			return d
		}
		if !t.unfit && o.surprises(name, t.Err) {
			d.told, before[o.name] = append(d.told, o.String()+": "+reason(t.Err)), t.Err
		}
		if o.kernel.Own && turnstone.HintOf(t.Err) == o.kernel.Advice() {
			hint = o.kernel.Advice()
		}
	}
	tried := d.Trials
	if needs.Tier != "" { // a tier names its substrate, so the others are no news
		tried = slices.DeleteFunc(slices.Clone(tried), func(t Trial) bool { return t.unfit })
	}
	d.Err = nothing(name, tried, hint)
	return d
}

// nothing returns the error for trials without a choice.
func nothing(name string, trials []Trial, hint string) error {
	if len(trials) == 1 && !trials[0].unfit {
		return trials[0].Err
	}
	var tried, unfit []string
	for _, t := range trials {
		if t.unfit {
			unfit = append(unfit, t.Err.Error())
		} else {
			tried = append(tried, t.String()+": "+t.Err.Error())
		}
	}
	return turnstone.Errorf("substrates.choose", turnstone.KindUnavailable, "substrate "+name,
		"nothing here can run a sandbox: %s", strings.Join(append(tried, unfit...), "; ")).
		WithHint(hint)
}
