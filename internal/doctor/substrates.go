package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/gvisor"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/substrate"
)

// A scene is what was seen of the substrates, and what a turn would decide. All lines about
// substrates follow from it.
type scene struct {
	asked    string // the substrate that turns ask for: TURN_SUBSTRATE, else auto
	decision driver.Decision
	guestErr error // why the user's guest kernel cannot be had; nil: it can, or there is none

	fc     fcScene
	qemu   qemuScene
	gvisor gvisorScene
}

type qemuScene struct {
	err     error // why it cannot be had; nil: the others are set
	version string
	jail    qemu.Jail
	kvm     kvm.Verdict
}

type gvisorScene struct {
	err     error  // why it cannot be had; nil: the others are set
	why     string // why no sandbox runs; empty: one does
	version string
}

// substrates looks at what could run a sandbox, and at what would.
func (c *checker) substrates(ctx context.Context) []Finding { return c.tell(c.look(ctx)) }

// look asks the drivers, and makes the decision that a turn makes: see Chooser.Decide.
func (c *checker) look(ctx context.Context) scene {
	s := scene{asked: driver.Auto, guestErr: c.guestErr}
	if name := os.Getenv(substrateVar); name != "" {
		s.asked = name
	}
	s.decision = c.chooser().Decide(ctx, s.asked, driver.Needs{})
	s.fc = c.lookAtFirecracker(ctx)
	if q, err := qemu.New(ctx, c.home, qemu.Options{Kernel: c.guest}); err != nil {
		s.qemu.err = err
	} else {
		s.qemu.version, s.qemu.jail, s.qemu.kvm = q.Version(), q.Jail(), stillUsable(q.KVM(ctx, nil), kvm.Try(kvm.Device))
	}
	if g, err := gvisor.New(ctx, c.home, gvisor.Options{}); err != nil {
		s.gvisor.err = err
	} else {
		s.gvisor.version = g.Version()
		if ok, why := g.Usable(ctx); !ok { // takes less than a second, and is remembered
			s.gvisor.why = why
		}
	}
	return s
}

// stillUsable is v, which may be of yesterday, after the device was tried again.
func stillUsable(v kvm.Verdict, try error) kvm.Verdict {
	if v.Usable && try != nil && !errors.Is(try, kvm.ErrEmulated) {
		return kvm.Verdict{Reason: "a guest ran under it before, and it turns away now: " + try.Error(), Proven: true, Known: true}
	}
	return v
}

// tell says of each substrate what it can do here, and which one turns get.
func (c *checker) tell(s scene) []Finding {
	return append(c.qemu(s), c.firecracker(s), gvisorLine(s), chosenLine(s))
}

// chooser is what a turn would ask.
func (c *checker) chooser() *driver.Chooser {
	return &driver.Chooser{Home: c.home, Kernel: func(context.Context) (substrate.GuestKernel, error) { return c.guest, c.guestErr }}
}

// substrateVar is what --substrate is when nobody gives it.
const substrateVar = "TURN_SUBSTRATE"

// chosen names what turns get; empty: nothing that is known to work.
func (s scene) chosen() string {
	if s.decision.Substrate == nil {
		return ""
	}
	return s.decision.Substrate.Name()
}

// runs says that turns run, or may run: a guest will tell.
func (s scene) runs() bool { return s.decision.Substrate != nil || len(s.decision.Unproven()) > 0 }

// underKVM says that turns run under KVM, with a kernel that is not for tests: what comes
// after that in the order is not missed.
func (s scene) underKVM() bool {
	if s.decision.Substrate == nil {
		return false
	}
	last := s.decision.Trials[len(s.decision.Trials)-1]
	return last.How == "KVM" && !last.Test
}

// firstTurn says who starts the guest that tells whether this way works, and whether the first
// turn does.
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
	who = "no turn does, since " + substrateVar + "=" + clip(s.asked) + " names another substrate"
	if s.asked == name || s.asked == driver.Auto {
		who = "no turn does, since turns run on " + s.chosen()
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

// clip bounds what is quoted of the environment.
func clip(s string) string { return s[:min(len(s), 40)] }

// describe is a substrate with how it isolates.
func describe(s substrate.Substrate) string {
	if isolation := s.Isolation(); strings.HasPrefix(isolation, s.Name()) {
		return isolation
	}
	return s.Name() + ", " + s.Isolation()
}

// chosenLine says which substrate a turn gets, and why not a better one.
func chosenLine(s scene) Finding {
	d := s.decision
	by := ""
	if s.asked != driver.Auto {
		by = ", as " + substrateVar + " says"
	}
	switch {
	case d.Substrate != nil:
		return Finding{Name: "substrate", Status: StatusOK, Detail: describe(d.Substrate) + by + s.instead() + s.later()}
	case len(d.Unproven()) > 0:
		return Finding{Name: "substrate", Status: StatusWarn, Detail: "none is known to work" + s.instead() + s.later(), Fix: tryTurn}
	case by != "":
		return Finding{Name: "substrate", Status: StatusFail, Detail: fmt.Sprintf("%s=%s cannot be had: %s", substrateVar, clip(s.asked), oneLine(d.Err)), Fix: "unset " + substrateVar}
	}
	return Finding{Name: "substrate", Status: StatusFail, Detail: "none can run a sandbox here: see the lines before"}
}

// tryTurn is the smallest first turn.
const tryTurn = "turn exec -- true"

// instead says what comes before the choice and cannot be had, and what would come first did
// its guests not boot a test kernel.
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
		not = append(not, names(last)+" would boot a test kernel, which is taken last")
	}
	if len(not) == 0 {
		return ""
	}
	return " (" + strings.Join(not, ", ") + ")"
}

// later says what the first turn tries.
func (s scene) later() string {
	switch unproven := s.decision.Unproven(); len(unproven) {
	case 0:
		return ""
	case 1:
		return "; " + names(unproven) + " was not tried yet: the first turn does, and takes it if it works"
	default:
		return "; " + names(unproven) + " were not tried yet: the first turn tries them in this order, and takes the first that works"
	}
}

// gvisorLine says whether a sandbox of gVisor runs.
func gvisorLine(s scene) Finding {
	const build = "make build # in Turnstone's source: builds bin/runsc, which belongs beside turn, or into PATH, or into TURN_RUNSC"
	f := Finding{Name: "gvisor", Status: StatusOK, Detail: s.gvisor.version + ": a sandbox runs"}
	switch {
	case s.gvisor.err != nil:
		f.Detail = oneLine(s.gvisor.err)
		if !s.underKVM() {
			f.Status, f.Fix = StatusWarn, build
		}
	case s.gvisor.why != "":
		f.Status, f.Detail = StatusWarn, s.gvisor.version+" cannot be used: "+s.gvisor.why
	}
	return f
}

// qemu says of QEMU and, through it, of KVM what they can do. Where something else runs turns,
// they do without it.
func (c *checker) qemu(s scene) []Finding {
	if s.qemu.err != nil {
		status := StatusFail
		if s.runs() {
			status = StatusWarn
		}
		return one("qemu", status, oneLine(s.qemu.err), "sudo apt-get install --no-install-recommends -y qemu-system-x86")
	}
	return append([]Finding{c.jail(s.qemu.version, s.qemu.jail)}, c.kvm(s)...)
}

// jail says how QEMU is confined. Turns run without namespaces too; what breaks out of QEMU
// then has what its user has.
func (c *checker) jail(version string, j qemu.Jail) Finding {
	if j.Namespaces() {
		return Finding{Name: "qemu", Status: StatusOK, Detail: version + ": in namespaces of its own"}
	}
	f := Finding{Name: "qemu", Status: StatusWarn, Detail: version + ": runs without namespaces, behind its filters of system calls alone: " + strings.Join(strings.Fields(j.Reason), " ")}
	if c.uid != 0 {
		f.Fix = host.AllowUserNamespaces()
	}
	return f
}

// oneLine is an error's text for a Finding.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
