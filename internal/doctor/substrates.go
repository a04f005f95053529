package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/gvisor"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/substrate"
)

// A scene is the state of the substrates and the decision for a turn. All findings about substrates
// derive from it.
type scene struct {
	asked    string // the requested substrate: TURN_SUBSTRATE, or else auto
	decision driver.Decision
	tiers    []tierTrial
	guestErr error // why the user's guest kernel is not available; nil: available, or none

	fc     fcScene
	qemu   qemuScene
	gvisor gvisorScene
}

type qemuScene struct {
	err     error // why QEMU is not available; nil: the other fields are set
	version string
	jail    qemu.Jail
	kvm     kvm.Verdict
}

type gvisorScene struct {
	err     error  // why gVisor is not available; nil: the other fields are set
	why     string // why no sandbox runs; empty: a sandbox runs
	version string
}

// substrates reports what can run a sandbox, and what turns use.
func (c *checker) substrates(ctx context.Context) []Finding { return c.tell(c.look(ctx)) }

// look queries the drivers and makes the same decision as a turn: see Chooser.Decide.
func (c *checker) look(ctx context.Context) scene {
	s := scene{asked: cmp.Or(c.opt.Substrate, driver.Auto), guestErr: c.guestErr}
	s.decision = c.chooser().Decide(ctx, s.asked, driver.Needs{})
	s.tiers = lookAtTiers(ctx, c.chooser(), s.asked)
	s.fc = c.lookAtFirecracker(ctx)
	if q, err := qemu.New(ctx, c.home,
		qemu.Options{Binary: c.opt.QEMU, Kernel: c.guest}); err != nil {
		s.qemu.err = err
	} else {
		s.qemu.version, s.qemu.jail, s.qemu.kvm = q.Version(), q.Jail(),
			stillUsable(q.KVM(ctx, nil), kvm.Try(kvm.Device))
	}
	if g, err := gvisor.New(ctx, c.home, gvisor.Options{Binary: c.opt.Runsc}); err != nil {
		s.gvisor.err = err
	} else {
		s.gvisor.version = g.Version()
		if ok, why := g.Usable(ctx); !ok { // takes less than a second, and the result is stored
			s.gvisor.why = why
		}
	}
	return s
}

// stillUsable returns v, which may be from yesterday, after trying the device again.
func stillUsable(v kvm.Verdict, try error) kvm.Verdict {
	if v.Usable && try != nil && !errors.Is(try, kvm.ErrEmulated) {
		return kvm.Verdict{Reason: "a guest ran under it before, and the device rejects access " +
			"now: " + try.Error(), Proven: true, Known: true}
	}
	return v
}

// tell reports for each substrate what it can do here, and which substrate turns use.
func (c *checker) tell(s scene) []Finding {
	return append(append(c.qemu(s), c.firecracker(s), gvisorLine(s), chosenLine(s)), tierLines(s)...)
}

// chooser returns the Chooser of a turn.
func (c *checker) chooser() *driver.Chooser {
	return &driver.Chooser{Home: c.home, Programs: c.opt.programs(),
		Kernel: func(context.Context) (substrate.GuestKernel, error) { return c.guest, c.guestErr }}
}

// substrateVar is the default of --substrate.
const substrateVar = "TURN_SUBSTRATE"

// chosen returns the substrate that turns use; empty: none is known to work.
func (s scene) chosen() string {
	if s.decision.Substrate == nil {
		return ""
	}
	return s.decision.Substrate.Name()
}

// runs reports whether turns run, or may run until a guest proves otherwise.
func (s scene) runs() bool { return s.decision.Substrate != nil || len(s.decision.Unproven()) > 0 }

// underKVM reports whether turns run under KVM with a kernel other than a test kernel: the
// substrates that follow in the order are then not needed.
func (s scene) underKVM() bool {
	if s.decision.Substrate == nil {
		return false
	}
	last := s.decision.Trials[len(s.decision.Trials)-1]
	return last.How == "KVM" && !last.Test
}

// firstTurn tells what starts the guest that tries this way, and whether the first turn does.
func (s scene) firstTurn(name, how string) (who string, does bool) {
	before := ""
	for _, t := range s.decision.Unproven() {
		if t.Name == name && t.How == how {
			if before != "" {
				before = ", unless " + before + " works"
			}
			return "the first turn does" + before, true
		}
		before = words(t)
	}
	who = "no turn does because " + substrateVar + "=" + brief.Clip(s.asked, 40) +
		" names another substrate"
	if s.asked == name || s.asked == driver.Auto {
		who = "no turn does because turns run on " + s.chosen()
	}
	return who + "; `turn exec --substrate " + name + " -- true` does", false
}

// words names a trial in a sentence.
func words(t driver.Trial) string {
	if t.Name == driver.QEMU && t.How != "" {
		return "qemu with " + t.How
	}
	return t.Name
}

func names(trials []driver.Trial) string {
	var all []string
	for _, t := range trials {
		all = append(all, words(t))
	}
	return strings.Join(all, " and ")
}

// describe names a substrate and its isolation.
func describe(s substrate.Substrate) string {
	if isolation := s.Isolation(); strings.HasPrefix(isolation, s.Name()) {
		return isolation
	}
	return s.Name() + ", " + s.Isolation()
}

// chosenLine tells which substrate turns use, and why they do not use a better substrate.
func chosenLine(s scene) Finding {
	d := s.decision
	by := ""
	if s.asked != driver.Auto {
		by = ", as " + substrateVar + " says"
	}
	switch {
	case d.Substrate != nil:
		return Finding{Name: "substrate", Status: StatusOK,
			Detail: describe(d.Substrate) + by + s.instead() + s.later()}
	case len(d.Unproven()) > 0:
		return Finding{Name: "substrate", Status: StatusWarn,
			Detail: "none is known to work" + s.instead() + s.later(), Fix: tryTurn}
	case by != "":
		return Finding{Name: "substrate", Status: StatusFail,
			Detail: fmt.Sprintf("%s=%s is not available: %s", substrateVar, brief.Clip(s.asked, 40),
				brief.Line(d.Err.Error())), Fix: "unset " + substrateVar}
	}
	return Finding{Name: "substrate", Status: StatusFail,
		Detail: "none can run a sandbox here: see the lines above"}
}

// tryTurn is the smallest first turn.
const tryTurn = "turn exec -- true"

// instead names the substrate that precedes the choice and is not available, and the substrate that
// would be first if its guests did not boot a test kernel.
func (s scene) instead() string {
	var not []string
	for _, t := range s.decision.Trials {
		switch {
		case t.Err == nil || t.Unproven():
		case t.Name == driver.Firecracker && s.fc.missing():
			not = append(not, "firecracker is not installed")
		default:
			not = append(not, words(t)+" cannot be used")
		}
	}
	var last []driver.Trial
	for _, t := range s.decision.Later {
		if t.Test && t.How == "KVM" && s.chosen() == driver.GVisor {
			last = append(last, t)
		}
	}
	if len(last) > 0 {
		not = append(not, names(last)+" would boot a test kernel, which auto chooses last")
	}
	if len(not) == 0 {
		return ""
	}
	return " (" + strings.Join(not, ", ") + ")"
}

// later tells what the first turn tries.
func (s scene) later() string {
	switch unproven := s.decision.Unproven(); len(unproven) {
	case 0:
		return ""
	case 1:
		return "; " + names(unproven) +
			" was not tried yet: the first turn does, and uses it if it works"
	default:
		return "; " + names(unproven) +
			" were not tried yet: the first turn tries them in this order and uses the first " +
			"that works"
	}
}

// gvisorLine reports whether a gVisor sandbox runs.
func gvisorLine(s scene) Finding {
	const build = "make build # in Turnstone's source: builds bin/runsc; put it beside turn, " +
		"into PATH, or set TURN_RUNSC"
	f := Finding{Name: "gvisor", Status: StatusOK, Detail: s.gvisor.version + ": a sandbox runs"}
	switch {
	case s.gvisor.err != nil:
		f.Detail = brief.Line(s.gvisor.err.Error())
		if !s.underKVM() {
			f.Status, f.Fix = StatusWarn, build
		}
	case s.gvisor.why != "":
		f.Status, f.Detail = StatusWarn, s.gvisor.version+" cannot be used: "+s.gvisor.why
	}
	return f
}

// qemu reports what QEMU and, through it, KVM can do. If another substrate runs turns, QEMU is not
// necessary.
func (c *checker) qemu(s scene) []Finding {
	if s.qemu.err != nil {
		status := StatusFail
		if s.runs() {
			status = StatusWarn
		}
		detail := brief.Line(s.qemu.err.Error())
		if c.opt.QEMU != "" {
			return findingOf("qemu", status, "TURN_QEMU="+c.opt.QEMU+": "+detail, "unset TURN_QEMU")
		}
		return findingOf("qemu", status, detail,
			"sudo apt-get install --no-install-recommends -y qemu-system-x86")
	}
	return append([]Finding{c.jail(s.qemu.version, s.qemu.jail)}, c.kvm(s)...)
}

// jail reports how QEMU is confined. Turns run without namespaces too; code that escapes from QEMU
// then has the user's permissions.
func (c *checker) jail(version string, j qemu.Jail) Finding {
	if j.Namespaces() {
		return Finding{Name: "qemu", Status: StatusOK, Detail: version + ": in its own namespaces"}
	}
	f := Finding{Name: "qemu", Status: StatusWarn,
		Detail: version + ": runs without namespaces, confined only by its system call filters: " +
			brief.Line(j.Reason)}
	if c.uid != 0 {
		f.Fix = host.AllowUserNamespaces()
	}
	return f
}
