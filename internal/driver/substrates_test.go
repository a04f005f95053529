package driver

import (
	"context"
	"errors"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/substrate"
)

// A named is a substrate that only has names.
type named struct {
	substrate.Substrate
	name, how string
}

func (n named) Name() string      { return n.name }
func (n named) Isolation() string { return n.how }

// A resumer also clones running sandboxes, by its type.
type resumer struct {
	named
	substrate.Resumer
}

// A keeper keeps machines, by its type.
type keeper struct {
	named
	substrate.Keeper
}

// A tiered also has deterministic machines.
type tiered struct {
	named
	tier turnstone.Tier
}

func (d tiered) Tier() turnstone.Tier { return d.tier }

// host makes options of which those in works work, such as "qemu (KVM)".
func host(works ...string) drivers {
	return func(c *Chooser) []option {
		all := real(c)
		for i, o := range all {
			all[i].open = func(context.Context, substrate.GuestKernel, error) (substrate.Substrate,
				error) {
				for _, w := range works {
					if w == o.String() && o.tier != "" {
						return tiered{named{name: o.name, how: o.how}, o.tier}, nil
					} else if w == o.String() {
						return named{name: o.name, how: o.how}, nil
					}
				}
				return nil, turnstone.Errorf("test", turnstone.KindUnavailable, o.String(),
					"is not here")
			}
		}
		return all
	}
}

func TestChoose(t *testing.T) {
	everything := []string{"firecracker (KVM)", "qemu (KVM)", "gvisor", "qemu (TCG)"}
	micro, disk := Needs{MicroVM: true}, Needs{Home: true}
	for _, tt := range []struct {
		works []string
		ask   string
		needs Needs
		want  string // such as "qemu TCG", or else a part of the error
	}{
		{everything, Auto, Needs{}, "firecracker KVM"},
		{everything[1:], Auto, Needs{}, "qemu KVM"},
		{everything[2:], Auto, Needs{}, "gvisor "},
		{everything[3:], Auto, Needs{}, "qemu TCG"},
		{nil, Auto, Needs{}, "nothing here can run a sandbox"},
		{everything[2:], Auto, micro, "qemu TCG"},
		{everything[2:3], Auto, micro, "nothing here can run a sandbox"},
		{everything, Auto, disk, "firecracker KVM"},
		{everything[2:], Auto, disk, "qemu TCG"},
		{everything, QEMU, Needs{}, "qemu KVM"},
		{everything[2:], QEMU, Needs{}, "qemu TCG"},
		{everything[2:], QEMU, Needs{Native: true}, "emulates a CPU"},
		{everything[3:], Auto, Needs{Native: true}, "emulates a CPU"},
		{everything[1:], Auto, Needs{Native: true}, "qemu KVM"},
		{everything, GVisor, Needs{}, "gvisor "},
		{everything, GVisor, micro, "is not a microVM"},
		{everything, GVisor, disk, "no disk for a persistent home"},
		{everything[1:], Firecracker, Needs{}, "firecracker (KVM): is not here"},
		{everything, Auto, Needs{Tier: turnstone.TierSeeded}, "gvisor "},
		{everything, Auto, Needs{Tier: turnstone.TierStrict}, "qemu TCG"},
		{everything, QEMU, Needs{Tier: turnstone.TierStrict}, "qemu TCG"},
		{everything[:3], Auto, Needs{Tier: turnstone.TierStrict}, "qemu (TCG): is not here; "},
		{everything, QEMU, Needs{Tier: turnstone.TierSeeded},
			"has no deterministic machines of the tier seeded; use --substrate gvisor or auto"},
		{everything, GVisor, Needs{Tier: turnstone.TierStrict}, "use --substrate qemu or auto"},
		{everything, Firecracker, Needs{Tier: turnstone.TierStrict},
			"has no deterministic machines of the tier strict"},
		{everything, Auto, Needs{Tier: turnstone.TierSeeded, MicroVM: true},
			"substrate auto: "},
		{everything, "docker", Needs{}, "use one of auto, firecracker, qemu, gvisor"},
	} {
		c := Chooser{drivers: host(tt.works...)}
		s, err := c.Choose(t.Context(), tt.ask, tt.needs)
		got := ""
		if err != nil {
			got = err.Error() + "; " + turnstone.HintOf(err)
		} else {
			got = s.Name() + " " + s.Isolation()
		}
		if err == nil && got != tt.want || !strings.Contains(got, tt.want) {
			t.Errorf("%v of %v, %+v: %q, want %q", tt.ask, tt.works, tt.needs, got, tt.want)
		}
	}
}

// TestChooseTells checks that a user whose needs exclude substrates hears which substrate was
// chosen and why, also if none is left.
func TestChooseTells(t *testing.T) {
	everything := []string{"firecracker (KVM)", "qemu (KVM)", "gvisor", "qemu (TCG)"}
	for _, tt := range []struct {
		works []string
		ask   string
		needs Needs
		want  string
	}{
		{everything, Auto, Needs{Home: true}, ""},
		{everything[1:], Auto, Needs{Home: true}, ""},
		{everything[2:], Auto, Needs{Home: true},
			"substrate qemu, TCG: gvisor has no disk for a persistent home; suitable: " +
				"firecracker, qemu"},
		{everything[2:], Auto, Needs{MicroVM: true},
			"substrate qemu, TCG: gvisor is not a microVM, which `isolation: microvm` requires; " +
				"suitable: firecracker, qemu"},
		{everything[2:], Auto, Needs{}, ""},
		{everything[2:], QEMU, Needs{Home: true}, "substrate qemu, TCG: qemu (KVM): "},
		{everything[1:], QEMU, Needs{Home: true}, ""},
		{everything[2:3], Auto, Needs{Home: true}, "gvisor has no disk for a persistent home"},
		{everything[2:], GVisor, Needs{Home: true}, "use --substrate firecracker or qemu or auto"},
	} {
		said := ""
		c := Chooser{drivers: host(tt.works...), Progress: func(what string) { said += what }}
		if _, err := c.Choose(t.Context(), tt.ask, tt.needs); err != nil {
			said += err.Error() + "; " + turnstone.HintOf(err)
		}
		if said != tt.want && (tt.want == "" || !strings.Contains(said, tt.want)) {
			t.Errorf("%v of %v, %+v: says %q, want %q", tt.ask, tt.works, tt.needs, said, tt.want)
		}
	}
}

func TestChooseCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := Chooser{drivers: host()}
	if _, err := c.Choose(ctx, Auto, Needs{}); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Error(err)
	}
}

// TestTestKernel checks that a test kernel is the last choice, and does not satisfy `isolation:
// microvm`.
func TestTestKernel(t *testing.T) {
	everything := []string{"firecracker (KVM)", "qemu (KVM)", "gvisor", "qemu (TCG)"}
	broken := turnstone.Errorf("kernel.ensure", turnstone.KindInvalid, "TURN_KERNEL",
		"is no kernel")
	for _, tt := range []struct {
		works  []string
		ask    string
		needs  Needs
		kernel substrate.KernelKind
		err    error
		want   string
	}{
		{everything, Auto, Needs{}, substrate.KernelKind{Own: true}, nil, "firecracker KVM"},
		{everything, Auto, Needs{MicroVM: true}, substrate.KernelKind{Own: true}, nil,
			"firecracker KVM"},
		{everything, Auto, Needs{}, substrate.KernelKind{Own: true, Test: true}, nil, "gvisor "},
		{append(everything[:2:2], everything[3]), Auto, Needs{}, substrate.KernelKind{Own: true,
			Test: true}, nil, "firecracker KVM"},
		{everything, Auto, Needs{Home: true}, substrate.KernelKind{Own: true, Test: true}, nil,
			"firecracker KVM"},
		{everything, QEMU, Needs{}, substrate.KernelKind{Own: true, Test: true}, nil, "qemu KVM"},
		{everything, QEMU, Needs{MicroVM: true}, substrate.KernelKind{Own: true, Test: true}, nil,
			"nothing here can run a sandbox: qemu (KVM) boots a test kernel, which does not " +
				"satisfy `isolation: microvm`; qemu (TCG) boots"},
		{everything, Auto, Needs{MicroVM: true}, substrate.KernelKind{Own: true, Test: true}, nil,
			"unset TURN_KERNEL"},
		{everything, GVisor, Needs{}, substrate.KernelKind{}, broken, "gvisor "},
		{everything, Auto, Needs{}, substrate.KernelKind{}, broken, "gvisor "},
		{everything, QEMU, Needs{}, substrate.KernelKind{}, broken, "TURN_KERNEL: is no kernel"},
		{append(everything[:2:2], everything[3]), Auto, Needs{}, substrate.KernelKind{}, broken,
			"firecracker (KVM): TURN_KERNEL: is no kernel"},
	} {
		c := Chooser{drivers: host(tt.works...),
			Kernel: func(context.Context) (substrate.GuestKernel, error) {
				return substrate.GuestKernel{KernelKind: tt.kernel}, tt.err
			}}
		s, err := c.Choose(t.Context(), tt.ask, tt.needs)
		got := ""
		if err != nil {
			got = err.Error() + "; " + turnstone.HintOf(err)
		} else {
			got = s.Name() + " " + s.Isolation()
		}
		if err == nil && got != tt.want || !strings.Contains(got, tt.want) {
			t.Errorf("%s of %v, %+v, %+v: %q, want %q", tt.ask, tt.works, tt.needs, tt.kernel, got,
				tt.want)
		}
	}
}

// A faulty is a substrate with all abilities whose program has a fault.
type faulty struct {
	substrate.Substrate
	substrate.Keeper
}

func (faulty) Name() string { return "faulty" }
func (faulty) Abilities() substrate.Abilities {
	return substrate.Abilities{Live: errors.New("this version does not wake up")}
}

// TestChooseAbilities checks that needs which the driver, or this version of its program, cannot
// serve are rejected before the start, and that Auto takes the next substrate.
func TestChooseAbilities(t *testing.T) {
	opened := 0
	one := func(name string, can ability, s substrate.Substrate) option {
		return option{name: name, can: can, open: func(context.Context, substrate.GuestKernel,
			error) (substrate.Substrate, error) {
			opened++
			return s, nil
		}}
	}
	all := []option{
		one("faulty", ability{live: true, keep: true}, faulty{}),
		one(GVisor, ability{}, named{name: "nothing"}),
		one(Firecracker, ability{live: true}, resumer{named: named{name: "resumer"}}),
		one(QEMU, ability{live: true, keep: true}, keeper{named: named{name: "keeper"}}),
	}
	c := Chooser{drivers: func(*Chooser) []option { return all }}
	for _, tt := range []struct {
		needs Needs
		want  string
		opens int
	}{
		{Needs{}, "faulty", 1},
		{Needs{Live: true}, "resumer", 2},
		{Needs{Keep: true}, "keeper", 2},
	} {
		opened = 0
		s, err := c.Choose(t.Context(), Auto, tt.needs)
		if err != nil || s.Name() != tt.want || opened != tt.opens {
			t.Errorf("%+v: %v, %v, %d opened", tt.needs, s, err, opened)
		}
	}
	all = all[:1]
	if _, err := c.Choose(t.Context(), Auto, Needs{Live: true}); err == nil ||
		!strings.Contains(err.Error(), "does not wake up") {
		t.Error(err)
	}
	c.Wrap = func(substrate.Substrate) substrate.Substrate { return named{name: "nothing"} }
	for _, needs := range []Needs{{Live: true}, {Keep: true}} {
		if _, err := c.Choose(t.Context(),
			Auto, needs); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%+v: %v", needs, err)
		}
	}
}

// TestAbilities checks that the drivers' assumed abilities match their types.
func TestAbilities(t *testing.T) {
	for _, o := range real(&Chooser{}) {
		if !o.can.live {
			t.Errorf("%s clones nothing that runs", o)
		}
		err := Fits(o.name, Needs{Keep: true})
		if o.can.keep != (err == nil) || err != nil &&
			turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %+v, %v", o, o.can, err)
		}
	}
}

// TestKernelAtFault checks that a user's kernel that is itself at fault under KVM is not tried
// again without KVM, that a kernel that is incompatible with KVM is tried, that both are reported,
// and that a test kernel runs under KVM only.
func TestKernelAtFault(t *testing.T) {
	proven := func(v kvm.Verdict) kvm.Verdict { v.Proven = true; return v }
	fault := proven(kvm.Failed(&console.GaveUp{Why: "it panicked"},
		substrate.KernelKind{Own: true}))
	hangs := proven(kvm.Failed(console.ErrHangs, substrate.KernelKind{Own: true}))
	for _, tt := range []struct {
		ask     string
		verdict kvm.Verdict
		kernel  substrate.KernelKind
		want    string // the opened option; empty: none
		told    string // by the progress or the error
		before  string // the earlier error that the option without KVM gets
	}{
		{QEMU, fault, substrate.KernelKind{Own: true}, "",
			"the guest's kernel is at fault: it panicked", ""},
		{QEMU, hangs, substrate.KernelKind{Own: true}, "qemu TCG",
			"substrate qemu, TCG: qemu (KVM): a guest does not start under it: the guest hangs",
			"KVM: a guest does not start"},
		{QEMU, hangs, substrate.KernelKind{Own: true, Test: true}, "", "the guest hangs", ""},
		{QEMU, kvm.Verdict{Reason: "device or resource busy"}, substrate.KernelKind{}, "qemu TCG",
			"device or resource busy", "device or resource busy"},
		{Auto, fault, substrate.KernelKind{Own: true}, "gvisor ",
			"substrate gvisor, : qemu (KVM): the guest's kernel is at fault: it panicked", ""},
		{Auto, hangs, substrate.KernelKind{Own: true}, "gvisor ",
			"a guest does not start under it: the guest hangs", ""},
		{Auto, kvm.Verdict{Reason: "device or resource busy"}, substrate.KernelKind{Own: true},
			"gvisor ", "", ""},
	} {
		said, before := "", ""
		c := Chooser{Progress: func(what string) { said += what }}
		c.Kernel = func(context.Context) (substrate.GuestKernel, error) {
			return substrate.GuestKernel{KernelKind: tt.kernel}, nil
		}
		c.drivers = func(c *Chooser) []option {
			all := host("gvisor", "qemu (TCG)")(c)
			for i, o := range all {
				all[i].open = func(ctx context.Context, k substrate.GuestKernel,
					b error) (substrate.Substrate, error) {
					if b != nil {
						before = b.Error()
					}
					if o.String() == "qemu (KVM)" {
						return nil, tt.verdict.Unavailable("test", k.KernelKind)
					}
					return o.open(ctx, k, b)
				}
			}
			return all
		}
		got := ""
		s, err := c.Choose(t.Context(), tt.ask, Needs{})
		if err == nil {
			got = s.Name() + " " + s.Isolation()
		} else {
			said += err.Error()
		}
		if got != tt.want || !strings.Contains(said, tt.told) || tt.told == "" && said != "" ||
			!strings.Contains(before, tt.before) || tt.before == "" && before != "" {
			t.Errorf("%s, %+v, %+v: %q, says %q, %q before", tt.ask, tt.verdict, tt.kernel, got,
				said, before)
		}
	}
}

// TestTier checks which tier a turn gets that names none, and the error of a host without one.
func TestTier(t *testing.T) {
	for _, tt := range []struct {
		works         []string
		tier          turnstone.Tier
		without, says string
	}{
		{[]string{"gvisor", "qemu (TCG)"}, turnstone.TierSeeded, "", ""},
		{[]string{"gvisor"}, turnstone.TierSeeded, "", ""},
		{[]string{"qemu (KVM)", "qemu (TCG)"}, turnstone.TierStrict, "gvisor: is not here", ""},
		{[]string{"qemu (KVM)"}, "", "", "seeded needs gVisor: gvisor: is not here; strict " +
			"needs QEMU: qemu (TCG): is not here"},
	} {
		c := Chooser{drivers: host(tt.works...)}
		tier, without, err := c.Tier(t.Context())
		if tier != tt.tier || (without != nil) != (tt.without != "") ||
			without != nil && !strings.Contains(without.Error(), tt.without) {
			t.Errorf("%v: %q, %v, %v", tt.works, tier, without, err)
		}
		if (err != nil) != (tt.says != "") || err != nil && (!strings.Contains(err.Error(), tt.says) ||
			turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "") {
			t.Errorf("%v: %v (%s)", tt.works, err, turnstone.HintOf(err))
		}
	}
}
