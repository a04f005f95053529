package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/firecracker"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/substrate"
)

// A madeUp is a fake host: its installed programs and stored verdicts.
type madeUp struct {
	asked  string
	kvm    string // "none", "stock", "this kernel", "untried"
	fc     string // "there", "untried", "not", "mismatched"
	gvisor bool
	kernel string // "default", "user's", "test", "broken"
}

func (h madeUp) String() string {
	return fmt.Sprintf("%s, KVM %s, firecracker %s, gVisor %t, kernel %s", h.asked, h.kvm, h.fc,
		h.gvisor, h.kernel)
}

// everyHost calls f for all combinations.
func everyHost(f func(madeUp)) {
	for _, asked := range driver.Names() {
		for _, k := range []string{"none", "stock", "this kernel", "untried"} {
			for _, fc := range []string{"there", "untried", "not", "mismatched"} {
				for _, g := range []bool{true, false} {
					for _, kernel := range []string{"default", "user's", "test", "broken"} {
						f(madeUp{asked, k, fc, g, kernel})
					}
				}
			}
		}
	}
}

func unavailable(subject, why string) error {
	return turnstone.NewError("test", turnstone.KindUnavailable, subject, errors.New(why)).
		WithHint("try something")
}

var errBroken = unavailable("guest kernel", "is no kernel")

func (h madeUp) guest() substrate.GuestKernel {
	return substrate.GuestKernel{KernelKind: substrate.KernelKind{Own: h.kernel == "user's" ||
		h.kernel == "test", Test: h.kernel == "test"}}
}

// verdict returns QEMU's verdict of KVM.
func (h madeUp) verdict() kvm.Verdict {
	own := h.guest().Own
	switch {
	case h.kvm == "stock":
		return kvm.Verdict{Usable: true, Proven: true, Known: true}
	case h.kvm == "this kernel" && own:
		return kvm.Verdict{Usable: true, Proven: true, Emulated: true, Known: true}
	case h.kvm == "this kernel":
		return kvm.Verdict{Reason: kvm.ErrEmulated.Error(), Proven: true, Emulated: true,
			Known: true}
	case h.kvm == "untried":
		return kvm.Verdict{Reason: "not proven yet"}
	}
	return kvm.Verdict{Known: true, Reason: "no such file"}
}

// findErr returns why Firecracker's programs are unusable.
func (h madeUp) findErr() error {
	switch h.fc {
	case "not":
		return unavailable("firecracker", "executable file not found in $PATH")
	case "mismatched":
		return turnstone.NewError("test", turnstone.KindUnavailable, "/opt/jailer",
			&firecracker.JailerError{Jailer: "/opt/jailer", JailerRelease: "1.14.0",
				Binary: "/opt/firecracker", Release: "1.15.1"}).
			WithHint("get the other")
	}
	return nil
}

// fcErr returns why no guest runs under Firecracker.
func (h madeUp) fcErr() error {
	v := h.verdict()
	switch {
	case h.findErr() != nil:
		return h.findErr()
	case v.Known && !v.Usable:
		return unavailable("firecracker", "KVM: "+v.Reason)
	case h.fc == "untried":
		return unavailable("firecracker", "") // the cause is set below
	}
	return nil
}

// open returns the drivers. prove starts a guest; nil: no guest is started.
func (h madeUp) open(name, how string, prove func() bool) (substrate.Substrate, error) {
	isolation := map[string]string{"KVM": "microvm (KVM" + h.guest().Isolation() + ")",
		"TCG": "microvm (TCG" + h.guest().Isolation() + ")", "": "gvisor (systrap)"}[how]
	works := named{name: name, isolation: isolation}
	unproven := func(err error) (substrate.Substrate, error) {
		switch {
		case prove == nil:
			return nil, turnstone.NewError("test", turnstone.KindUnavailable, name, err)
		case prove():
			return works, nil
		}
		return nil, unavailable(name, "a guest does not start")
	}
	v := h.verdict()
	switch {
	case name == driver.Firecracker && h.fcErr() != nil && h.fc == "untried" &&
		(!v.Known || v.Usable):
		return unproven(firecracker.ErrUnproven)
	case name == driver.Firecracker && h.fcErr() != nil:
		return nil, h.fcErr()
	case name == driver.GVisor && !h.gvisor:
		return nil, unavailable("gvisor", "no runsc")
	case name == driver.QEMU && how == "KVM" && h.kvm == "untried":
		return unproven(driver.ErrUnproven)
	case name == driver.QEMU && how == "KVM" && !v.Usable:
		return nil, v.Unavailable("test", h.guest().KernelKind)
	}
	return works, nil
}

// chooser returns a turn's Chooser on this host.
func (h madeUp) chooser(prove func() bool) *driver.Chooser {
	return &driver.Chooser{
		Kernel: func(context.Context) (substrate.GuestKernel, error) {
			if h.kernel == "broken" {
				return substrate.GuestKernel{}, errBroken
			}
			return h.guest(), nil
		},
		Open: func(_ context.Context, name, how string,
			_ substrate.GuestKernel) (substrate.Substrate, error) {
			return h.open(name, how, prove)
		},
	}
}

// scene returns doctor's view of the host.
func (h madeUp) scene(ctx context.Context) scene {
	s := scene{asked: h.asked, decision: h.chooser(nil).Decide(ctx, h.asked, driver.Needs{})}
	if h.kernel == "broken" {
		s.guestErr = errBroken
	}
	s.fc = fcScene{path: "/opt/firecracker", version: "Firecracker v1.15.1", findErr: h.findErr(),
		jail: firecracker.Jail{Wall: "jail"}}
	if s.fc.findErr == nil {
		_, s.fc.err = h.open(driver.Firecracker, "KVM", nil)
	}
	s.qemu = qemuScene{version: "QEMU 7.2", jail: qemu.Jail{Wall: "namespaces"}, kvm: h.verdict()}
	s.gvisor.version = "runsc"
	if !h.gvisor {
		s.gvisor.err = unavailable("gvisor", "no runsc")
	}
	return s
}

// turn returns the behavior of a turn that runs now: the number of guests that it starts for
// trials, and its substrate.
func (h madeUp) turn(ctx context.Context, works bool) (proofs int, on string) {
	c := h.chooser(func() bool { proofs++; return works })
	s, err := c.Choose(ctx, h.asked, driver.Needs{})
	if err != nil {
		return proofs, ""
	}
	return proofs, describe(s)
}

// TestDoctorSaysWhatTurnsDo: on every host, doctor's lines match the behavior of turns and do not
// contradict each other.
//
//testrun:user
func TestDoctorSaysWhatTurnsDo(t *testing.T) {
	c := machineOf(t, 0, map[string]string{"dev/kvm": ""})
	c.opt.Kernel = "/srv/vmlinux"
	everyHost(func(h madeUp) {
		found := c.tell(h.scene(t.Context()))
		lines, all := map[string]Finding{}, ""
		for _, f := range found {
			lines[f.Name] = f
			all += fmt.Sprintf("%s %s: %s\n", f.Status, f.Name, f.Detail)
			if f.Detail == "" || strings.Contains(f.Detail, "\n") ||
				f.Status == StatusOK && f.Fix != "" {
				t.Errorf("%s: %+v", h, f)
			}
		}
		fail := func(what string) { t.Errorf("%s: %s\n%s", h, what, all) }
		proofs, good := h.turn(t.Context(), true)
		more, bad := h.turn(t.Context(), false)
		said := lines["substrate"].Detail
		if tries := strings.Contains(all, "first turn"); tries != (proofs+more > 0) {
			fail(fmt.Sprintf("the first turn starts %d or %d guests to find out", proofs, more))
		}
		if strings.Contains(said, "tries") != (more > 1) ||
			strings.Contains(said, "the first turn does") != (more == 1) {
			fail(fmt.Sprintf("up to %d guests are started", more))
		}
		if bad != "" && !strings.HasPrefix(said, bad) {
			fail("where no guest starts, turns run on " + bad)
		}
		if name, _, _ := strings.Cut(good, ","); proofs > 0 && !strings.Contains(said, "; "+name) {
			fail("where one starts, turns run on " + good)
		}
		if (lines["substrate"].Status == StatusFail) != (good == "") ||
			Usable(found) != (good != "") {
			fail("whether turns run is told wrongly: " + good)
		}
		if strings.Contains(lines["kvm"].Detail, "a guest runs under it") &&
			strings.Contains(said, "qemu with KVM cannot be used") ||
			strings.Contains(lines["firecracker"].Detail, ": a guest runs") &&
				strings.Contains(said, "firecracker cannot be used") {
			fail("it runs, and cannot be used")
		}
		if strings.Contains(all, "turns run under gVisor") &&
			(!strings.HasPrefix(good, "gvisor") || bad != good) {
			fail("turns do not all run under gVisor")
		}
		if strings.Contains(lines["kvm"].Detail, "TCG") && !strings.Contains(bad, "TCG") {
			fail("nothing runs under TCG")
		}
		if strings.Contains(lines["kvm"].Detail, "not tried yet") != (h.kvm == "untried" &&
			h.kernel != "broken") {
			fail("KVM")
		}
		if strings.Contains(said, "test kernel, which auto chooses last") != (strings.HasPrefix(
			good, "gvisor") && h.kernel == "test" && h.asked == driver.Auto) {
			fail("what a test kernel changes is not told")
		}
		if fixes := lines["kvm"].Fix == tryTurn; fixes && proofs+more == 0 {
			fail("a turn is to try what turns do not try")
		}
	})
}

// TestDoctorLines: the exact lines of some of these hosts.
func TestDoctorLines(t *testing.T) {
	c := machineOf(t, 0, map[string]string{"dev/kvm": ""})
	c.opt.Kernel = "/srv/vmlinux"
	for _, tt := range []struct {
		host      madeUp
		kvm       string
		substrate string
	}{
		{madeUp{"auto", "this kernel", "there", true, "test"},
			"ok a guest runs under it only with this kernel (TURN_KERNEL=/srv/vmlinux), not with " +
				"Debian's: its guests are emulated, and xrstor or cmpxchg16b is not",
			"ok gvisor (systrap) (firecracker and qemu with KVM would boot a test kernel, which " +
				"auto chooses last)"},
		{madeUp{"auto", "untried", "untried", true, "test"},
			"ok not tried yet, and no turn does because turns run on gvisor; `turn exec " +
				"--substrate qemu -- true` does",
			"ok gvisor (systrap) (firecracker and qemu with KVM would boot a test kernel, which " +
				"auto chooses last)"},
		{madeUp{"auto", "this kernel", "not", false, "test"},
			"ok a guest runs under it only with this kernel",
			"ok qemu, microvm (KVM, test kernel) (gvisor cannot be used, firecracker is not " +
				"installed)"},
		{madeUp{"auto", "untried", "untried", true, "default"},
			"warn not tried yet, the first turn does, unless firecracker works",
			"ok gvisor (systrap); firecracker and qemu with KVM were not tried yet: the first " +
				"turn tries them in this order and uses the first that works"},
		{madeUp{"auto", "untried", "not", true, "default"},
			"warn not tried yet, the first turn does",
			"ok gvisor (systrap) (firecracker is not installed); qemu with KVM was not tried " +
				"yet: the first turn does, and uses it if it works"},
		{madeUp{"auto", "untried", "there", true, "default"},
			"ok not tried yet, and no turn does because turns run on firecracker; ",
			"ok firecracker, microvm (KVM)"},
		{madeUp{"auto", "stock", "mismatched", true, "default"}, "ok a guest runs under it",
			"ok qemu, microvm (KVM) (firecracker cannot be used)"},
		{madeUp{"firecracker", "stock", "untried", true, "default"}, "ok a guest runs under it",
			"warn none is known to work; firecracker was not tried yet: the first turn does, and " +
				"uses it if it works"},
		{madeUp{"gvisor", "untried", "untried", true, "default"},
			"ok not tried yet, and no turn does because TURN_SUBSTRATE=gvisor names another " +
				"substrate; ", "ok gvisor (systrap), as TURN_SUBSTRATE says"},
		{madeUp{"auto", "stock", "there", false, "broken"},
			"warn not checked: the guest kernel that has to start under it is not available",
			"fail none can run a sandbox here"},
	} {
		lines := map[string]string{}
		for _, f := range c.tell(tt.host.scene(t.Context())) {
			lines[f.Name] = string(f.Status) + " " + f.Detail
		}
		if !strings.HasPrefix(lines["kvm"], tt.kvm) ||
			!strings.HasPrefix(lines["substrate"], tt.substrate) {
			t.Errorf("%s:\n%s\n%s", tt.host, lines["kvm"], lines["substrate"])
		}
	}
}

// TestStillUsable: a device that rejects access now is reported, even if it worked yesterday.
func TestStillUsable(t *testing.T) {
	usable := kvm.Verdict{Usable: true, Proven: true, Known: true}
	for _, try := range []error{nil, kvm.ErrEmulated} {
		if v := stillUsable(usable, try); !v.Usable {
			t.Errorf("%v: %+v", try, v)
		}
	}
	if v := stillUsable(usable, syscall.EBUSY); v.Usable || !strings.Contains(v.Reason, "busy") {
		t.Errorf("%+v", v)
	}
	if v := stillUsable(kvm.Verdict{Reason: "x"}, syscall.EBUSY); v.Reason != "x" {
		t.Errorf("%+v", v)
	}
}

// TestRestrictedFirecracker: the restrictions of a version of Firecracker are reported before and
// after a guest was started; its name occurs once.
func TestRestrictedFirecracker(t *testing.T) {
	c := machineOf(t, 0, map[string]string{"dev/kvm": ""})
	for _, fc := range []string{"untried", "there"} {
		for version, want := range map[string]Status{"1.16.1": StatusWarn, "1.15.1": StatusOK} {
			s := madeUp{"firecracker", "stock", fc, true, "default"}.scene(t.Context())
			s.fc.version = "Firecracker v" + version
			s.fc.restricted = firecracker.Standstill(s.fc.version)
			f := c.firecracker(s)
			if f.Status != want ||
				strings.Contains(f.Detail, "it loses the connection") != (want == StatusWarn) ||
				strings.Contains(f.Detail, "no guest was started yet") != (fc == "untried") ||
				strings.Count(f.Detail, version) != 1 {
				t.Errorf("%s: %+v", fc, f)
			}
		}
	}
}

// TestNamedQEMU checks that a QEMU that cannot run is reported with the variable that names it.
func TestNamedQEMU(t *testing.T) {
	c := machineOf(t, 0, nil)
	c.opt.QEMU = filepath.Join(t.TempDir(), "none")
	f := c.qemu(c.look(t.Context()))[0]
	if f.Status == StatusOK || f.Fix != "unset TURN_QEMU" ||
		!strings.HasPrefix(f.Detail, "TURN_QEMU="+c.opt.QEMU) {
		t.Errorf("%+v", f)
	}
}

// A tiersOf has the tiers with a nil error.
type tiersOf map[turnstone.Tier]error

func (h tiersOf) HasTier(_ context.Context, _ string, t turnstone.Tier) error { return h[t] }

// TestTierLines checks what is said of the tiers, and that the first line that is fine is the tier
// that turns get.
func TestTierLines(t *testing.T) {
	no := unavailable("runsc", "is not\ninstalled")
	for _, tt := range []struct {
		host  tiersOf
		want  []string
		tiers string
	}{
		{tiersOf{}, []string{"ok available, and the default of a deterministic turn",
			"ok available with tier: strict or --tier strict"}, "[seeded strict]"},
		{tiersOf{"seeded": no}, []string{"warn not available, because it needs gvisor: ",
			"ok available, and the default of a deterministic turn"}, "[strict]"},
		{tiersOf{"strict": no}, []string{"ok available, and the default",
			"warn not available, because it needs qemu: "}, "[seeded]"},
		{tiersOf{"seeded": no, "strict": no}, []string{"warn not", "warn not"}, "[]"},
	} {
		found := tierLines(scene{tiers: lookAtTiers(t.Context(), tt.host, "auto")})
		for i, f := range found {
			if got := string(f.Status) + " " + f.Detail; !strings.HasPrefix(got, tt.want[i]) ||
				strings.Contains(got, "\n") {
				t.Errorf("%v: %q, want %q", tt.host, got, tt.want[i])
			}
		}
		if got := fmt.Sprint(Tiers(found)); got != tt.tiers {
			t.Errorf("%v: %s", tt.host, got)
		}
	}
}
