package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/firecracker"
	"turnstone.dev/turnstone/substrate/gvisor"
	"turnstone.dev/turnstone/substrate/host"
	"turnstone.dev/turnstone/substrate/qemu"
	"turnstone.dev/turnstone/substrates"
)

// substrates looks at what could run a sandbox, and at what would.
func (c *checker) substrates(ctx context.Context) []Finding {
	best, err := c.chooser().Choose(ctx, substrates.Auto, substrates.Needs{})
	if err == nil {
		c.chosen = best.Name()
	}
	f, why, unproven := c.firecracker(ctx)
	found := append(c.qemu(ctx), f, c.gvisor(ctx))
	if best == nil {
		return append(found, Finding{Name: "substrate", Status: Fail, Detail: "none can run a sandbox here: see the lines before"})
	}
	if name := os.Getenv(substrateVar); name != "" && name != substrates.Auto {
		return append(found, c.asked(ctx, name))
	}
	return append(found, chosenLine(best, why, unproven))
}

// chooser is what a turn would ask.
func (c *checker) chooser() *substrates.Chooser {
	return &substrates.Chooser{Home: c.home, Kernel: substrates.KernelIn(c.home, c.choice, nil)}
}

// substrateVar is what --substrate is when nobody gives it.
const substrateVar = "TURN_SUBSTRATE"

// asked says whether turns can run on the substrate that the environment names.
func (c *checker) asked(ctx context.Context, name string) Finding {
	s, err := c.chooser().Choose(ctx, name, substrates.Needs{})
	if err != nil {
		return Finding{Name: "substrate", Status: Fail, Detail: fmt.Sprintf("%s=%.40s cannot be had: %s", substrateVar, name, oneLine(err)), Fix: "unset " + substrateVar}
	}
	return Finding{Name: "substrate", Status: OK, Detail: describe(s) + ", as " + substrateVar + " says"}
}

// describe is a substrate with how it isolates.
func describe(s substrate.Substrate) string {
	if isolation := s.Isolation(); strings.HasPrefix(isolation, s.Name()) {
		return isolation
	}
	return s.Name() + ", " + s.Isolation()
}

// chosenLine says which substrate a turn would get, and why not a better one.
func chosenLine(best substrate.Substrate, firecracker string, unproven bool) Finding {
	var better []string
	if best.Name() != substrates.Firecracker {
		better = append(better, "firecracker "+firecracker)
		if !strings.Contains(best.Isolation(), "KVM") && !unproven {
			better = append(better, "KVM cannot be used")
		}
	}
	detail := describe(best)
	if len(better) > 0 {
		detail += " (" + strings.Join(better, ", ") + ")"
	}
	if unproven && !strings.Contains(best.Isolation(), "KVM") {
		detail += "; KVM was not tried yet, the first turn does and may choose a better one"
	}
	return Finding{Name: "substrate", Status: OK, Detail: detail}
}

// getFirecracker says where Firecracker comes from.
const getFirecracker = "the release for x86_64 is at https://github.com/firecracker-microvm/firecracker/releases, with checksums; " +
	"put firecracker into PATH, or set TURN_FIRECRACKER"

// firecracker also tells in a few words why it is not used, and whether all that is
// missing is a guest that has started.
func (c *checker) firecracker(ctx context.Context) (f Finding, why string, unproven bool) {
	path, version, err := firecracker.Find(ctx, c.home, firecracker.Options{})
	if err != nil {
		return c.noFirecracker(err)
	}
	found := fmt.Sprintf("%s (%s)", version, path)
	s, err := firecracker.New(ctx, c.home, firecracker.Options{Kernel: c.guest})
	var restricted error
	if err == nil {
		restricted = s.Standstill()
	}
	switch {
	case restricted == nil && err == nil && !s.Jail().Confined():
		return c.notJailed(found, s.Jail()), "is used", false
	case restricted != nil:
		return Finding{Name: "firecracker", Status: Warn, Detail: found + ": a guest runs under it, but " + oneLine(restricted) + "; " + turnstone.HintOf(restricted)}, "is used", false
	case err == nil:
		return Finding{Name: "firecracker", Status: OK, Detail: found + ": a guest runs under it, in a jail"}, "is used", false
	case errors.Is(err, firecracker.ErrUnproven):
		return Finding{Name: "firecracker", Status: OK, Detail: found + ": no guest was started yet, the first turn does"}, "was not tried yet", true
	}
	return Finding{Name: "firecracker", Status: Warn, Detail: found + " cannot be used: " + oneLine(err)}, "cannot be used", false
}

// notJailed says why Firecracker has no jail. Turns run without one, and keep no machines.
func (c *checker) notJailed(found string, j firecracker.Jail) Finding {
	return Finding{Name: "firecracker", Status: Warn, Fix: host.AllowUserNamespaces(),
		Detail: found + ": a guest runs under it, but it runs without a jail, behind its filters of system calls alone, and machines are neither kept nor resumed: " +
			strings.Join(strings.Fields(j.Reason), " ")}
}

// noFirecracker is no fault: other substrates do. One that was named and is not there,
// or cannot be used, is.
func (c *checker) noFirecracker(err error) (f Finding, why string, unproven bool) {
	for _, name := range []string{"TURN_FIRECRACKER", "TURN_JAILER"} {
		if v := os.Getenv(name); v != "" {
			return Finding{Name: "firecracker", Status: Warn, Detail: fmt.Sprintf("%s=%s: %s", name, v, oneLine(err)), Fix: "unset " + name}, "cannot be used", false
		}
	}
	var e *turnstone.Error
	if errors.As(err, &e) && e.Subject != "firecracker" { // it is there, and old, or without its jailer
		return Finding{Name: "firecracker", Status: Warn, Detail: oneLine(err) + "; " + e.Hint}, "cannot be used", false
	}
	if c.noKVM() {
		return Finding{Name: "firecracker", Status: OK, Detail: "not installed, and of no use without KVM"}, "is not installed", false
	}
	return Finding{Name: "firecracker", Status: OK, Detail: "not installed, and not needed: " + getFirecracker}, "is not installed", false
}

// gvisor tries a sandbox, which takes less than a second and is remembered.
func (c *checker) gvisor(ctx context.Context) Finding {
	const build = "make build # in Turnstone's source: builds bin/runsc, which belongs beside turn, or into PATH, or into TURN_RUNSC"
	s, err := gvisor.New(ctx, c.home, gvisor.Options{})
	if err != nil {
		return Finding{Name: "gvisor", Status: c.unlessChosen(Warn), Detail: oneLine(err), Fix: c.unlessFine(build)}
	}
	if ok, why := s.Usable(ctx); !ok {
		return Finding{Name: "gvisor", Status: Warn, Detail: s.Version() + " cannot be used: " + why}
	}
	return Finding{Name: "gvisor", Status: OK, Detail: s.Version() + ": a sandbox runs"}
}

// unlessChosen is OK where turns run under KVM anyway: what comes after that in the
// order is not missed.
func (c *checker) unlessChosen(s Status) Status {
	if c.underKVM {
		return OK
	}
	return s
}

func (c *checker) unlessFine(fix string) string {
	if c.underKVM {
		return ""
	}
	return fix
}

// qemu looks at QEMU and, through it, at KVM. Where something else runs turns, they do
// without it.
func (c *checker) qemu(ctx context.Context) []Finding {
	q, err := qemu.New(ctx, c.home, qemu.Options{Kernel: c.guest})
	if err != nil {
		status := Fail
		if c.chosen != "" {
			status = Warn
		}
		return one("qemu", status, oneLine(err), "sudo apt-get install --no-install-recommends -y qemu-system-x86")
	}
	v := q.KVM(ctx, nil)
	c.underKVM = v.Usable
	return append([]Finding{c.jail(q.Version(), q.Jail())}, c.kvm(v)...)
}

// jail says how QEMU is confined. Turns run without namespaces too; what breaks out of QEMU
// then has what its user has.
func (c *checker) jail(version string, j qemu.Jail) Finding {
	if j.Namespaces() {
		return Finding{Name: "qemu", Status: OK, Detail: version + ": in namespaces of its own"}
	}
	f := Finding{Name: "qemu", Status: Warn, Detail: version + ": runs without namespaces, behind its filters of system calls alone: " + strings.Join(strings.Fields(j.Reason), " ")}
	if c.uid != 0 {
		f.Fix = host.AllowUserNamespaces()
	}
	return f
}

// oneLine is an error's text for a Finding.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
